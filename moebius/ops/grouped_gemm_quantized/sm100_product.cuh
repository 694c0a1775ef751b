// One persistent kernel for all grouped products of MX operands on Blackwell: forward, dgrad and wgrad, and
// what epilogues make of their sums. Compiled so far, never run: docs/kernels.md lists what that leaves open.
//
// An expert's rows begin anywhere, and tiles of 128 rows begin with them. So scales are taken as they lie,
// compact, and a warp a stage puts them into the tensor cores' order on the way to shared memory: no copy of
// them in another layout, and nothing that an expert's first row would have to be a multiple of.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm100_layout.h"
#include "moebius/ptx/matrix.h"
#include "moebius/ptx/split_sizes.h"
#include "moebius/ptx/sync.h"
#include "moebius/ptx/tcgen05.h"
#include "moebius/ptx/tma.h"

namespace moebius::ops::sm100 {

using sm90::TilePlan;
using sm90::TileUnit;
using sm90::TileWalk;

struct ProductArgs {
    CUtensorMap a, b;  // of three axes: (columns, rows, experts or 1); boxes of 128 × 128
    ProductShape shape;
    const void* split_sizes;  // (experts) int32 or int64
    int split_is_i64;
};

// Where the 32 rows of a finishing warp's tile belong, one a lane.
struct Place {
    int expert, row, row_end;  // row: this lane's. row_end: past the last that exists
    int row_block;             // of Forward and Dgrad: the warp's, of all experts' blocks of 32 rows
    int column;                // the tile's first
    int warp, lane;

    __device__ __forceinline__ bool exists() const { return row < row_end; }
};

namespace detail {

struct Shared {
    uint32_t base;
    const int *row_ends, *first_blocks;
    __device__ __forceinline__ uint32_t box(uint32_t stage, int index) const {
        return base + stage * kStageBytes + static_cast<uint32_t>(index) * kBoxBytes;
    }
    __device__ __forceinline__ uint32_t scales(uint32_t stage, int box) const {
        return base + kScalesAt + stage * kStageScaleBytes + static_cast<uint32_t>(box) * kScaleBytes;
    }
    __device__ __forceinline__ uint32_t staging(int warp) const {
        return base + kStagingAt + static_cast<uint32_t>(warp) * kStagingBytes;
    }
    // codes: TMA has brought them. scaled: scales are there, and rows that do not count are zero. free: all
    // products that read the stage are done.
    __device__ __forceinline__ uint32_t codes(uint32_t stage) const { return base + kBarriersAt + stage * 8; }
    __device__ __forceinline__ uint32_t scaled(uint32_t stage) const { return codes(stage) + kStages * 8; }
    __device__ __forceinline__ uint32_t free(uint32_t stage) const { return codes(stage) + 2 * kStages * 8; }
    // multiplied: a tile's sums are whole. drained: of a tile the columns that the next one needs are read.
    __device__ __forceinline__ uint32_t multiplied() const { return codes(3 * kStages); }
    __device__ __forceinline__ uint32_t drained() const { return codes(3 * kStages + 1); }
};

// A place in the ring of stages, of one of its users.
struct RingPosition {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// By one warp: where each expert's rows end, and Σ ⌈rows/32⌉ of the experts before it.
__device__ __forceinline__ void scan_splits(const ProductArgs& args, int* row_ends, int* first_blocks) {
    const ptx::SplitSizes sizes{args.split_sizes, args.split_is_i64 != 0, args.shape.plan.experts,
                                args.shape.capacity};
    const int lane = static_cast<int>(threadIdx.x % 32);
    int64_t rows = 0, blocks = 0;
    for (int base = 0; base < args.shape.plan.experts; base += 32) {
        const int e = base + lane;
        const int64_t size = e < args.shape.plan.experts ? sizes[e] : 0;
        const int64_t end = min(rows + ptx::inclusive_scan_warp(size), int64_t{args.shape.capacity});
        int64_t begin = __shfl_up_sync(~0u, end, 1);
        if (lane == 0) begin = rows;
        const int64_t own = (end - begin + kScaleBlock - 1) / kScaleBlock;
        const int64_t behind = blocks + ptx::inclusive_scan_warp(own);
        if (e < args.shape.plan.experts) {
            row_ends[e] = static_cast<int>(end);
            first_blocks[e] = static_cast<int>(behind - own);
        }
        rows = __shfl_sync(~0u, end, 31);
        blocks = __shfl_sync(~0u, behind, 31);
    }
}

// One thread: codes of all the block's tiles.
template <class T>
__device__ __forceinline__ void load_tiles(const ProductArgs& args, const Shared& shared, TileWalk walk) {
    RingPosition position;
    for (TileUnit unit; walk.next(unit);) {
        const int stages = stages_of(depth_of<T>(args.shape, unit));
        for (int i = 0; i < stages; ++i, position.advance()) {
            const uint32_t stage = position.stage, full = shared.codes(stage);
            ptx::barrier_wait(shared.free(stage), position.parity ^ 1);  // partner: multiply_tiles
            ptx::barrier_arrive_expect(full, kStageBytes);
#pragma unroll
            for (int box = 0; box < kBoxes; ++box) {
                const Corner corner = corner_of<T>(args.shape, unit, i, box);
                ptx::tma_load(shared.box(stage, box), box == 0 ? &args.a : &args.b, full, corner.x, corner.y,
                              corner.z);
            }
        }
    }
    // No arrival may come when the block is gone.
    for (int i = 0; i < kStages; ++i, position.advance())
        ptx::barrier_wait(shared.free(position.stage), position.parity ^ 1);  // partner: multiply_tiles
}

// One thread: all the block's products.
template <class T>
__device__ __forceinline__ void multiply_tiles(const ProductArgs& args, const Shared& shared,
                                               uint32_t tensor_memory, TileWalk walk) {
    constexpr uint32_t kStepA = block_step(T::kAMnMajor), kStepB = block_step(T::kBMnMajor);
    const auto codes = [](bool mn_major, uint32_t address) {
        return mn_major ? mn_major_codes(address, kBoxBytes) : k_major_codes(address);
    };
    RingPosition position;
    int number = 0;
    for (TileUnit unit; walk.next(unit);) {
        const int depth = depth_of<T>(args.shape, unit), stages = stages_of(depth);
        if (stages == 0) continue;
        if (number > 0) ptx::barrier_wait(shared.drained(), (number - 1) & 1);  // partner: finish_tiles
        const uint32_t sums = tensor_memory_at(tensor_memory, 0, sum_column(number));
        for (int i = 0; i < stages; ++i, position.advance()) {
            const uint32_t stage = position.stage;
            ptx::barrier_wait(shared.codes(stage), position.parity);   // partner: TMA
            ptx::barrier_wait(shared.scaled(stage), position.parity);  // partner: scale_tiles
            ptx::tensor_fence_after_sync();
            uint32_t scales[kBoxes];
#pragma unroll
            for (int box = 0; box < kBoxes; ++box) {
                scales[box] = tensor_memory_at(tensor_memory, 0, scale_column(static_cast<int>(stage), box));
                ptx::tensor_copy_scales(scales[box], scale_rows(shared.scales(stage, box)));
            }
            const uint64_t a = codes(T::kAMnMajor, shared.box(stage, 0));
            const uint64_t b = codes(T::kBMnMajor, shared.box(stage, 1));
            const int blocks = blocks_from(depth, i);
#pragma unroll
            for (int k = 0; k < kStageBlocks; ++k) {
                if (k >= blocks) break;
                ptx::mx_multiply(
                    sums, shared_descriptor_at(a, k * kStepA), shared_descriptor_at(b, k * kStepB),
                    mx_instruction_at(args.shape.instruction, k), scales[0], scales[1], i > 0 || k > 0);
            }
            ptx::tensor_commit(shared.free(stage));  // partners: load_tiles, scale_tiles
        }
        ptx::tensor_commit(shared.multiplied());  // partner: finish_tiles
        ++number;
    }
}

// Rows from `valid` on belong to the next expert, or to none: those that are multiplied become zeros. A row
// of a box is 128 bytes, however swizzled.
__device__ __forceinline__ void zero_rows(const Shared& shared, uint32_t stage, int valid) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int row = valid + lane / 8; row < counted_rows(valid); row += 4) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
            ptx::store_shared(shared.box(stage, box) + static_cast<uint32_t>(row * 128 + lane % 8 * 16),
                              make_uint4(0, 0, 0, 0));
    }
}

// A warp: the scales of stage `stage`, which it alone fills. What a stage holds next is asked for before the
// products are through with what it holds now.
template <class T>
__device__ __forceinline__ void scale_tiles(const ProductArgs& args, const Shared& shared, uint32_t stage,
                                            TileWalk walk) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t parity = 0, before = 0;  // stages of the tiles before, modulo kStages
    for (TileUnit unit; walk.next(unit);) {
        const int depth = depth_of<T>(args.shape, unit), stages = stages_of(depth);
        const int first_block = shared.first_blocks[unit.expert];
        for (int i = static_cast<int>((stage + kStages - before) % kStages); i < stages; i += kStages) {
            uint32_t words[kBoxes][4];
            gather_scales<T, 0>(words[0], args.shape, unit, first_block, i, lane);
            gather_scales<T, 1>(words[1], args.shape, unit, first_block, i, lane);
            gather_scales<T, 2>(words[2], args.shape, unit, first_block, i, lane);
            ptx::barrier_wait(shared.free(stage), parity ^ 1);  // partner: multiply_tiles
#pragma unroll
            for (int box = 0; box < kBoxes; ++box) {
                ptx::store_shared(shared.scales(stage, box) + static_cast<uint32_t>(lane) * 16,
                                  make_uint4(words[box][0], words[box][1], words[box][2], words[box][3]));
            }
            if constexpr (T::kReduceRows) {
                const int valid = depth - i * kTileDepth;
                if (valid < counted_rows(valid)) {
                    ptx::barrier_wait(shared.codes(stage), parity);  // partner: TMA
                    zero_rows(shared, stage, valid);
                }
            }
            ptx::fence_async_shared();
            ptx::barrier_arrive(shared.scaled(stage));  // partner: multiply_tiles
            parity ^= 1;
        }
        before = (before + static_cast<uint32_t>(stages)) % kStages;
    }
}

}  // namespace detail

// A tile's sums, of a finishing warp: a lane has a row.
struct Sums {
    uint32_t at;       // of column 0
    uint32_t drained;  // the barrier
    int overlap;       // the first of the kOverlap columns that the next tile needs
    uint32_t staging;  // the warp's, kStagingBytes

    // 16 bytes of a row in the staging, where no eight rows' meet in a bank.
    __device__ __forceinline__ uint32_t staging_at(int row, int part) const {
        return staging + static_cast<uint32_t>(row) * kStagingRow +
               static_cast<uint32_t>(part ^ row % 8) * 16;
    }

    // Columns `column` … `column` + 31. By the whole warp, whose lanes may have gone ways of their own
    // before.
    __device__ __forceinline__ void load(uint32_t (&words)[32], int column) const {
        __syncwarp();
        ptx::tensor_load(at + static_cast<uint32_t>(column), words);
    }
    __device__ __forceinline__ void wait(uint32_t (&words)[32]) const {
        ptx::tensor_wait_load();
        ptx::tensor_hold(words);
    }
    // All lanes have read the overlap.
    __device__ __forceinline__ void release() const {
        ptx::tensor_fence_before_sync();
        ptx::barrier_arrive(drained);  // partner: multiply_tiles
    }
};

namespace detail {

// A warp: its 32 rows of all the block's tiles.
template <class T, class Epilogue>
__device__ __forceinline__ void finish_tiles(const ProductArgs& args, const typename Epilogue::Args& epilogue,
                                             const Shared& shared, uint32_t tensor_memory, TileWalk walk) {
    Place place;
    place.warp = static_cast<int>(threadIdx.x / 32);
    place.lane = static_cast<int>(threadIdx.x % 32);
    int number = 0;
    for (TileUnit unit; walk.next(unit);) {
        place.expert = unit.expert;
        place.row_block = shared.first_blocks[unit.expert] + unit.row_unit * kFinishers + place.warp;
        place.row = line_of<T>(args.shape, unit, 0) + static_cast<int>(threadIdx.x);
        place.row_end = T::kReduceRows ? args.shape.rows : unit.row_end;
        place.column = unit.column_unit * T::kColumns;
        if (depth_of<T>(args.shape, unit) == 0) {
            if constexpr (T::kReduceRows) Epilogue::empty(epilogue, place);
            continue;
        }
        ptx::barrier_wait(shared.multiplied(), number & 1);  // partner: multiply_tiles
        ptx::tensor_fence_after_sync();
        Epilogue::run(epilogue,
                      {.at = tensor_memory_at(tensor_memory, 32 * place.warp, sum_column(number)),
                       .drained = shared.drained(),
                       .overlap = overlap_column(number),
                       .staging = shared.staging(place.warp)},
                      place);
        ++number;
    }
}

}  // namespace detail

template <class T, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product_mx_sm100(const __grid_constant__ ProductArgs args,
                             const __grid_constant__ typename Epilogue::Args epilogue) {
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kRowEndsAt);
    int* first_blocks = row_ends + args.shape.plan.experts;
    const detail::Shared shared{ptx::shared_address(moebius_stages), row_ends, first_blocks};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (warp == kLoader) detail::scan_splits(args, row_ends, first_blocks);
    if (warp == kMultiplier) ptx::tensor_memory_allocate(shared.base + kAddressAt, kTensorMemoryColumns);
    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < kStages; ++stage) {
            ptx::barrier_init(shared.codes(stage), 1);
            ptx::barrier_init(shared.scaled(stage), 32);
            ptx::barrier_init(shared.free(stage), 1);
        }
        ptx::barrier_init(shared.multiplied(), 1);
        ptx::barrier_init(shared.drained(), kFinishers * 32);
        ptx::fence_barrier_init();
        ptx::tma_prefetch_map(&args.a);
        ptx::tma_prefetch_map(&args.b);
    }
    ptx::tensor_fence_before_sync();
    __syncthreads();
    ptx::tensor_fence_after_sync();
    const uint32_t tensor_memory = ptx::load_shared_word(shared.base + kAddressAt);
    const TileWalk walk(row_ends, args.shape.plan, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));

    if (warp < kFinishers) {
        detail::finish_tiles<T, Epilogue>(args, epilogue, shared, tensor_memory, walk);
    } else if (warp == kLoader) {
        if (ptx::elect_lane()) detail::load_tiles<T>(args, shared, walk);
        __syncwarp();
    } else if (warp == kMultiplier) {
        if (ptx::elect_lane()) detail::multiply_tiles<T>(args, shared, tensor_memory, walk);
        __syncwarp();
    } else {
        detail::scale_tiles<T>(args, shared, static_cast<uint32_t>(warp - kScaler), walk);
    }
    ptx::tensor_fence_before_sync();
    __syncthreads();
    ptx::tensor_fence_after_sync();
    if (warp == kMultiplier) ptx::tensor_memory_free(tensor_memory, kTensorMemoryColumns);
}

}  // namespace moebius::ops::sm100
