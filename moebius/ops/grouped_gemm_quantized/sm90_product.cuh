// One kernel for all grouped products of FP8 codes on Hopper: out (rows, columns) = A (rows, depth) · B
// (columns, depth)^T, both K-major, A's, B's or the output's rows belonging to experts.
//
//   kind      rows             columns         depth                   A                   B
//   Forward   of the expert    out features    in features             x                   W[e]
//   Dgrad     of the expert    in features     out features            dy                  W[e]^T, a copy
//   Wgrad     out features     in features     of the expert, padded   dy^T, a copy        x^T, a copy
//                                              to blocks of 128
//
// A block computes tiles of 128 × 256, one after another (persistent: as many blocks as the card has SMs).
// One warp loads operands and scales (TMA) into a ring of stages 128 deep; two warpgroups multiply, 64 × 256
// each.
//
// The tensor core keeps about 14 bits of a sum, so a stage's product of 64 × 128 is added to the sums in fp32
// before the next is begun: 64 registers a thread for it beside 128 for the sums. While a warpgroup adds, the
// other one's product runs. That is where scales are multiplied, which belong to blocks of 128 along the
// depth; scales of whole tensors are multiplied once, before the tile is stored.
//
// Rows of a tile past the expert's end belong to the next expert (or nobody): they are multiplied and not
// stored.
//
// An epilogue whose work is more than a store would keep the tensor cores waiting: its warpgroups leave the
// rounded sums in shared memory, and three warps beside the loader finish the tile during the next one.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90_load.cuh"
#include "moebius/ptx/matrix.h"

namespace moebius::ops::sm90::quantized {

// What an epilogue may be beside run():
//   kFetches   fetch() starts copies into the staging while the tile is multiplied; run() awaits them
//   kFinishes  no run() but finish_tiles(), for warps that finish all tiles of the block
// and the registers of a thread of these warps and of the warpgroups.
struct PlainEpilogue {
    static constexpr bool kFetches = false, kFinishes = false;
    static constexpr int kLoaderRegisters = 24, kGroupRegisters = 240;
};

// A box of the staging as TMA reads it with the 128-byte swizzle: 16-byte chunk c of row r lies at 128·r +
// 16·(c ^ r % 8).

// Columns 64·block … of the sums, rounded to bf16.
__device__ __forceinline__ void stage_rounded(uint32_t to, const float (&sums)[128], int block,
                                              const Place& place) {
    const uint32_t row_address = to + static_cast<uint32_t>(16 * place.warp + place.lane % 16) * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // two chunks: 16 columns
        const uint32_t chunk = static_cast<uint32_t>((2 * i + place.lane / 16) ^ (place.lane % 8));
        const float* d = &sums[32 * block + 8 * i];
        ptx::store_matrices(row_address + chunk * 16, ptx::pack_bf16(d[0], d[1]), ptx::pack_bf16(d[2], d[3]),
                            ptx::pack_bf16(d[4], d[5]), ptx::pack_bf16(d[6], d[7]));
    }
}

namespace detail {

// A warp of a warpgroup is done with a stage.
__device__ __forceinline__ void release(const Shared& shared, uint32_t stage, int lane) {
    __syncwarp();                                            // all lanes have read their scales
    if (lane == 0) ptx::barrier_arrive(shared.free(stage));  // partner: load_tiles
}

// Turns on the tensor core: left alone it takes instructions of both warpgroups in turn, and their products
// end together. A group passes the turn on when kPassAt of its product's depth are done: what is left covers
// the way to the other's first instruction. Measured: 2 to 4% for RowBlocks, a loss for the others.
inline constexpr int kPassAt = 64;
struct Turns {
    uint32_t own, other;  // barriers of four arrivals: the turn is this group's, the other one's
    uint32_t parity = 0;
    bool passes;  // one thread a warp
    __device__ __forceinline__ Turns(const Shared& shared, const Place& place)
        : own(shared.turn(place.group)), other(shared.turn(place.group ^ 1)), passes(place.lane == 0) {}
    __device__ __forceinline__ void take() {
        ptx::barrier_wait(own, parity);  // partner: the other group's pass
        parity ^= 1;
    }
    __device__ __forceinline__ void pass() const {
        if (passes) ptx::barrier_arrive(other);  // partner: the other group's take
    }
};

// part = the product of the group's rows with half of the columns, over a stage; begins it.
template <class T>
__device__ __forceinline__ void multiply_half(float (&part)[64], const Shared& shared, uint32_t stage,
                                              int group, int half) {
    const uint64_t a =
        ptx::k_major_descriptor(shared.a(stage) + static_cast<uint32_t>(group * kGroupRows) * kRowBytes);
    const uint64_t b =
        ptx::k_major_descriptor(shared.b(stage) + static_cast<uint32_t>(half * kHalfColumns) * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileDepth; k += 32) {
        if (T::kTurns && k == kPassAt) ptx::wgmma_commit();
        ptx::wgmma_64x128x32<T::kA, T::kB>(part, ptx::advance(a, k), ptx::advance(b, k), k > 0);
    }
    ptx::wgmma_commit();
}

// The factors of one stage, as scales give them: of a thread's rows r and r + 8.
struct RowFactors {
    float low, high;
};
__device__ __forceinline__ RowFactors row_factors(const Shared& shared, uint32_t stage, const Place& place) {
    const int row = place.group * kGroupRows + 16 * place.warp + place.lane / 4 + place.row % 4;
    const uint32_t at = shared.scale_a(stage) + static_cast<uint32_t>(row) * 4;
    return {ptx::load_shared_float(at), ptx::load_shared_float(at + 8 * 4)};
}

// 128 × 128 scales of the weight's two blocks of columns, a stage ahead.
struct BlockFactors {
    const float *at, *last;
    int second;  // from the first half's to the second's
    float next[2];
    __device__ __forceinline__ BlockFactors(const ProductArgs& args, const Place& place, int stages,
                                            bool paired) {
        const int rows = paired ? args.columns + args.second : args.columns;  // of the weight
        const int blocks = (rows + kHalfColumns - 1) / kHalfColumns, block = place.column / kHalfColumns;
        at = args.scales_b + (static_cast<int64_t>(place.expert) * blocks + block) * stages;
        last = at + (stages - 1);
        second = paired ? args.second / kHalfColumns * stages : block + 1 < blocks ? stages : 0;
        load();
    }
    __device__ __forceinline__ void load() {
        next[0] = __ldg(at);
        next[1] = __ldg(at + second);
        if (at < last) ++at;
    }
};

// sums (its half) += part · factors.
__device__ __forceinline__ void add_scaled(float (&sums)[128], const float (&part)[64], int half,
                                           RowFactors rows) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
        sums[64 * half + i] = fmaf(part[i], i % 4 < 2 ? rows.low : rows.high, sums[64 * half + i]);
}
// The same with a factor for every column, which lie at `columns`.
__device__ __forceinline__ void add_scaled_columns(float (&sums)[128], const float (&part)[64], int half,
                                                   RowFactors rows, uint32_t columns) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        const float2 column =
            ptx::load_shared_floats(columns + static_cast<uint32_t>(half * kHalfColumns + 8 * j) * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float row = i < 2 ? rows.low : rows.high;
            float& sum = sums[64 * half + 4 * j + i];
            sum = fmaf(part[4 * j + i] * row, i % 2 == 0 ? column.x : column.y, sum);
        }
    }
}

// A tile's sums with promotion. after_stage(i): called when stage i is done.
template <class T, class F>
__device__ __forceinline__ void sum_promoted(float (&sums)[128], const ProductArgs& args,
                                             const Shared& shared, const Place& place, RingPosition& ring,
                                             Turns& turns, int stages, F&& after_stage) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    if (stages == 0) return;
    const auto blocks = [&] {
        if constexpr (T::kScaling == Scaling::RowBlocks)
            return BlockFactors(args, place, stages, T::kPairedB);
        else
            return 0;
    };
    [[maybe_unused]] auto block = blocks();
    for (int i = 0; i < stages; ++i, ring.advance()) {
        const uint32_t stage = ring.stage;
        ptx::barrier_wait(shared.full(stage), ring.parity);  // partner: TMA
        float part[64];
        RowFactors rows{1, 1};
        [[maybe_unused]] float weights[2];
        if constexpr (T::kScaling == Scaling::RowBlocks) {
            weights[0] = block.next[0];
            weights[1] = block.next[1];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (T::kTurns) turns.take();
            multiply_half<T>(part, shared, stage, place.group, half);
            if (half == 0) {
                if constexpr (T::kScalesA) rows = row_factors(shared, stage, place);
                if constexpr (T::kScaling == Scaling::RowBlocks) block.load();
            }
            RowFactors factors = rows;
            if constexpr (T::kScaling == Scaling::RowBlocks)
                factors = {rows.low * weights[half], rows.high * weights[half]};
            if constexpr (T::kTurns) {
                ptx::wgmma_wait<1>();
                turns.pass();
            }
            ptx::wgmma_wait<0>();
            ptx::wgmma_hold(part);
            if constexpr (T::kScalesB) {
                add_scaled_columns(sums, part, half, factors,
                                   shared.scale_b(stage) + static_cast<uint32_t>(place.lane % 4) * 8);
                if (half == 1) release(shared, stage, place.lane);
            } else {
                if (half == 1) release(shared, stage, place.lane);
                if constexpr (T::kScaling == Scaling::Tensor) {
#pragma unroll
                    for (int j = 0; j < 64; ++j) sums[64 * half + j] += part[j];
                } else {
                    add_scaled(sums, part, half, factors);
                }
            }
        }
        after_stage(i);
    }
}

// A tile's sums as the tensor core makes them. after_stage(i): called when stage i has begun.
template <class T, class F>
__device__ __forceinline__ void sum_in_tensor_core(float (&sums)[128], const Shared& shared,
                                                   const Place& place, RingPosition& ring, int stages,
                                                   F&& after_stage) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    if (stages == 0) return;
    uint32_t last = 0;
    for (int i = 0; i < stages; ++i, ring.advance()) {
        ptx::barrier_wait(shared.full(ring.stage), ring.parity);  // partner: TMA
        const uint64_t a = ptx::k_major_descriptor(
            shared.a(ring.stage) + static_cast<uint32_t>(place.group * kGroupRows) * kRowBytes);
        const uint64_t b = ptx::k_major_descriptor(shared.b(ring.stage));
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < kTileDepth; k += 32)
            ptx::wgmma_64x256x32<T::kA, T::kB>(sums, ptx::advance(a, k), ptx::advance(b, k), true);
        ptx::wgmma_commit();
        if (i > 0) {
            ptx::wgmma_wait<1>();  // the products of the stage before are done
            release(shared, last, place.lane);
        }
        last = ring.stage;
        after_stage(i);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums);
    release(shared, last, place.lane);
}

// A warpgroup: all tiles of the block, its 64 rows of each.
template <class T, class Epilogue>
__device__ __forceinline__ void multiply_tiles(const ProductArgs& args,
                                               const typename Epilogue::Args& epilogue, const Shared& shared,
                                               int group) {
    TileWalk walk(shared.row_ends, args.plan, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    Place place;
    place.group = group;
    place.thread = static_cast<int>(threadIdx.x % 128);
    place.warp = place.thread / 32;
    place.lane = place.thread % 32;
    place.barrier = 1 + group;
    place.staging = shared.staging(group);
    place.fetched = shared.fetched(group);
    RingPosition ring;
    bool first_tile = true;
    [[maybe_unused]] uint32_t tiles = 0;  // that exist
    Turns turns(shared, place);
    if (T::kTurns && group == 1) turns.pass();  // the first group begins
    for (TileUnit unit; walk.next(unit);) {
        const int stages = __shfl_sync(~0u, stages_of<T>(args, unit), 0);
        place.expert = unit.expert;
        place.row = unit.row_unit * kTileRows + group * kGroupRows + (T::kReduceRows ? 0 : unit.row_begin);
        place.row_end = unit.row_end;
        if constexpr (T::kReduceRows) place.row_end = epilogue.rows;
        place.column = unit.column_unit * T::kColumns;
        place.empty = T::kReduceRows && unit.row_begin == unit.row_end;
        const bool exists = __shfl_sync(~0u, static_cast<int>(place.row < place.row_end), 0) != 0;
        // Partner: the first group, kLead stages into its first tile; the second group begins there.
        if (!T::kTurns && first_tile && group == 1) ptx::named_barrier_wait(1 + kGroups, kGroups * 128);
        const bool leads = !T::kTurns && first_tile && group == 0;
        first_tile = false;
        if (leads && (!exists || stages < kLead)) ptx::named_barrier_arrive(1 + kGroups, kGroups * 128);
        if (!exists) {
            for (int i = 0; i < stages; ++i, ring.advance()) {
                ptx::barrier_wait(shared.full(ring.stage), ring.parity);  // partner: TMA
                if constexpr (T::kTurns) {
                    for (int half = 0; half < 2; ++half) {
                        turns.take();
                        turns.pass();
                    }
                }
                release(shared, ring.stage, place.lane);
            }
            continue;
        }
        const auto after_stage = [&](int stage) {
            if constexpr (Epilogue::kFetches) {
                if (stage == 0 && place.thread == 0) Epilogue::fetch(epilogue, place);
                __syncwarp();
            }
            if (leads && stage + 1 == kLead) ptx::named_barrier_arrive(1 + kGroups, kGroups * 128);
        };
        float sums[128];
        [[maybe_unused]] float factor = 1;
        // Nobody has to give an empty expert a scale.
        if (T::kScaling == Scaling::Tensor && !place.empty)
            factor = __ldg(args.scales_a + unit.expert) * __ldg(args.scales_b + unit.expert);
        if constexpr (T::kPromote) {
            sum_promoted<T>(sums, args, shared, place, ring, turns, stages, after_stage);
        } else {
            sum_in_tensor_core<T>(sums, shared, place, ring, stages, after_stage);
        }
        if constexpr (T::kScaling == Scaling::Tensor) {
#pragma unroll
            for (float& sum : sums) sum *= factor;
        }
        if constexpr (Epilogue::kFinishes) {
            ptx::barrier_wait(shared.taken(group), (tiles++ & 1) ^ 1);  // partner: the finishing warps
#pragma unroll
            for (int box = 0; box < kBoxes; ++box)
                stage_rounded(place.staging + static_cast<uint32_t>(box) * kBoxBytes, sums, box, place);
            __syncwarp();
            if (place.lane == 0) ptx::barrier_arrive(shared.staged(group));  // partner: the finishing warps
        } else {
            Epilogue::run(epilogue, sums, place);
        }
    }
    if (place.thread == 0) ptx::tma_wait_read<0>();
}

}  // namespace detail

template <class T, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product_quantized_sm90(const __grid_constant__ ProductArgs args,
                                   const __grid_constant__ typename Epilogue::Args epilogue) {
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kRowEndsAt);
    const detail::Shared shared{ptx::shared_address(moebius_stages), row_ends};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (warp == 0) detail::scan_splits<T>(args, row_ends);
    if (threadIdx.x == 32) {
        for (uint32_t stage = 0; stage < kStages; ++stage) {
            ptx::barrier_init(shared.full(stage), 1);
            ptx::barrier_init(shared.free(stage), kGroups * 4);
        }
        for (int group = 0; group < kGroups; ++group) {
            ptx::barrier_init(shared.turn(group), 4);
            ptx::barrier_init(shared.staged(group), 4);
            ptx::barrier_init(shared.taken(group), kFinishers);
            ptx::barrier_init(shared.fetched(group), 1);
        }
        ptx::fence_barrier_init();
        ptx::tma_prefetch_map(&args.a);
        ptx::tma_prefetch_map(&args.b);
    }
    __syncthreads();

    const int group = warp / 4 - 1;
    if (group < 0) {
        ptx::give_registers<Epilogue::kLoaderRegisters>();
        if (warp == 0) {
            if (threadIdx.x % 32 == 0) detail::load_tiles<T>(args, shared);
        } else if constexpr (Epilogue::kFinishes) {
            Epilogue::finish_tiles(args, epilogue, shared, warp - 1);
        }
        __syncwarp();
    } else {
        ptx::take_registers<Epilogue::kGroupRegisters>();
        detail::multiply_tiles<T, Epilogue>(args, epilogue, shared, group);
    }
}

}  // namespace moebius::ops::sm90::quantized
