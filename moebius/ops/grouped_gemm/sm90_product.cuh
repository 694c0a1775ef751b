// One kernel for all grouped products on Hopper in bf16: out (rows, columns) = A (rows, depth) · B (columns,
// depth)^T with fp32 sums, A's, B's or the output's rows belonging to experts.
//
//   kind      rows             columns         depth          A             B
//   Forward   of the expert    out features    in features    x, K-major    W[e], K-major
//   Dgrad     of the expert    in features     out features   dy, K-major   W[e], MN-major
//   Wgrad     out features     in features     of the expert  dy, MN-major  x, MN-major
//
// A block computes tiles of 128 × 256, one after another (persistent: as many blocks as the card has SMs).
// One warp loads (TMA) into a ring of stages 64 deep; two warpgroups multiply, 64 × 256 each: of all shapes
// that fit the registers this one reads the fewest bytes of shared memory for a product. The second warpgroup
// runs kLead stages behind the first, so that one multiplies while the other stores its tile.
//
// Rows of a tile past the expert's end belong to the next expert (or nobody): they are multiplied and not
// stored. Where the reduction runs over the expert's rows, the last stage's rows past the end are zeroed in
// shared memory, in both operands (they may hold NaN), by a warp of its own between TMA and the warpgroups.
//
// Clusters of two blocks share an operand by multicast: kRowBlocks = 2 is two tiles above each other (B
// shared), kColumnBlocks = 2 side by side (A shared).
#pragma once

#include <cstdint>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm/sm90_tiles.h"
#include "moebius/ptx/matrix.h"
#include "moebius/ptx/sync.h"
#include "moebius/ptx/tma.h"
#include "moebius/ptx/wgmma.h"

namespace moebius::ops::sm90 {

inline constexpr int kTileRows = 128, kTileColumns = 256, kTileDepth = 64, kStages = 4;
inline constexpr int kGroupRows = 64;  // of a warpgroup
inline constexpr int kGroups = 2;
inline constexpr int kThreads = (1 + kGroups) * 128;
inline constexpr int kLead = 2;  // stages
static_assert(kLead >= 2 && kLead < kStages);

inline constexpr uint32_t kRowBytes = kTileDepth * 2;  // of 64 bf16: the width of every box
inline constexpr uint32_t kABytes = kTileRows * kRowBytes, kBBytes = kTileColumns * kRowBytes;
inline constexpr uint32_t kStageBytes = kABytes + kBBytes;
inline constexpr uint32_t kBoxBytes = 64 * kRowBytes;     // 64 × 64
inline constexpr uint32_t kStagingBytes = 2 * kBoxBytes;  // a warpgroup's, for what it stores

// Shared memory: stages, each A and B; staging of the warpgroups; barriers; row_ends.
inline constexpr uint32_t kStagingAt = kStages * kStageBytes;
inline constexpr uint32_t kBarriersAt = kStagingAt + kGroups * kStagingBytes;
inline constexpr uint32_t kRowEndsAt = kBarriersAt + 3 * kStages * 8;
constexpr uint32_t shared_bytes(int64_t experts) {
    return kRowEndsAt + static_cast<uint32_t>(experts) * 4;
}
static_assert(shared_bytes(kMostExperts) <= 227 * 1024, "more than a block may have");

struct ProductArgs {
    CUtensorMap a,
        b;  // of three axes: (columns, rows, experts or 1); boxes of 64 columns, see box_rows_a and _b
    TilePlan plan;
    const void* split_sizes;  // (experts) int32 or int64
    int split_is_i64;
    int capacity;  // rows of all experts at most
    int depth;     // of Forward and Dgrad
    int second;    // kPairedB: the row of W[e] at which the tile's second half begins, for the first tile
};

template <bool kAMnMajorValue, bool kBMnMajorValue, bool kReduceRowsValue, bool kPairedBValue,
          int kRowBlocksValue, int kColumnBlocksValue>
struct ProductTraits {
    static constexpr bool kAMnMajor = kAMnMajorValue, kBMnMajor = kBMnMajorValue;
    static constexpr bool kReduceRows = kReduceRowsValue;  // depth = the expert's rows
    // B's tile is 128 rows of the weight and 128 more `second` rows below: gates and ups of the same columns.
    static constexpr bool kPairedB = kPairedBValue;
    static constexpr int kRowBlocks = kRowBlocksValue, kColumnBlocks = kColumnBlocksValue;
    static constexpr int kBlocks = kRowBlocks * kColumnBlocks;
    static constexpr int kColumns = kPairedB ? kTileColumns / 2 : kTileColumns;  // of the output in a tile
    static_assert(kBlocks <= 2 && !(kPairedB && kBMnMajor));
};

// Rows of a box of the tensor maps.
template <class T>
constexpr int box_rows_a() {
    return T::kAMnMajor ? kTileDepth : kTileRows / T::kColumnBlocks;
}
template <class T>
constexpr int box_rows_b() {
    return T::kBMnMajor ? kTileDepth : T::kPairedB || T::kRowBlocks == 2 ? kTileColumns / 2 : kTileColumns;
}

// What an epilogue of a warpgroup is told: where its 64 × 256 sums belong.
struct Place {
    int group, warp, lane, thread;  // warp in the group, lane in the warp, thread in the group
    int barrier;                    // a named one, the group's own (128 threads)
    uint32_t staging;               // kStagingBytes, at a multiple of 1,024
    uint32_t pass = 0;              // counts uses of the staging's two halves, over all tiles
    int expert, row, row_end;       // row: the first of the 64. row_end: past the last that exists
    int column;                     // the first
    bool empty;                     // the sum has no terms

    // Waits until the half of the staging that is next may be written. By the whole group.
    __device__ __forceinline__ uint32_t begin_pass() {
        if (thread == 0) ptx::tma_wait_read<1>();
        ptx::named_barrier_wait(barrier, 128);  // partner: this group
        return staging + (pass++ & 1) * kBoxBytes;
    }
    // What the group has written is there for TMA, and for itself.
    __device__ __forceinline__ void end_pass() const {
        ptx::fence_async_shared();
        ptx::named_barrier_wait(barrier, 128);  // partner: this group
    }
};

namespace detail {

// Ring positions: the index of a stage, and how often the ring has been passed.
struct RingPosition {
    uint32_t stage = 0, round = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            ++round;
        }
    }
};

struct Shared {
    uint32_t base;
    const int* row_ends;
    __device__ __forceinline__ uint32_t a(uint32_t stage) const { return base + stage * kStageBytes; }
    __device__ __forceinline__ uint32_t b(uint32_t stage) const { return a(stage) + kABytes; }
    __device__ __forceinline__ uint32_t staging(int group) const {
        return base + kStagingAt + static_cast<uint32_t>(group) * kStagingBytes;
    }
    // full: operands are there (arrivals: 1 and the bytes). free: all warpgroups that read them are done.
    // raw: operands are there, rows past the end not yet zeroed.
    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + kBarriersAt + stage * 8; }
    __device__ __forceinline__ uint32_t free(uint32_t stage) const { return full(stage) + kStages * 8; }
    __device__ __forceinline__ uint32_t raw(uint32_t stage) const { return full(stage) + 2 * kStages * 8; }
};

// The block's place in its cluster, and what it walks.
template <class T>
struct Blocks {
    int row_rank, column_rank;  // of the block in its unit
    int first, step;
    __device__ __forceinline__ Blocks() {
        const int rank = T::kBlocks == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
        row_rank = T::kRowBlocks == 2 ? rank : 0;
        column_rank = T::kColumnBlocks == 2 ? rank : 0;
        first = static_cast<int>(blockIdx.x) / T::kBlocks;
        step = static_cast<int>(gridDim.x) / T::kBlocks;
    }
    __device__ __forceinline__ int row(const TileUnit& unit) const {  // of the output's expert
        return (unit.row_unit * T::kRowBlocks + row_rank) * kTileRows;
    }
    __device__ __forceinline__ int column(const TileUnit& unit) const {
        return (unit.column_unit * T::kColumnBlocks + column_rank) * T::kColumns;
    }
};

template <class T>
__device__ __forceinline__ int depth_of(const ProductArgs& args, const TileUnit& unit) {
    return T::kReduceRows ? unit.row_end - unit.row_begin : args.depth;
}
// At least one: an empty expert's gradients are the product of a stage of zeros.
__device__ __forceinline__ int stages_of(int depth) {
    return depth > kTileDepth ? (depth + kTileDepth - 1) / kTileDepth : 1;
}

// Row ends of the experts, by one warp: a lane sums a run of experts, the warp scans the sums.
__device__ __forceinline__ void scan_splits(const ProductArgs& args, int* row_ends) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int run = (args.plan.experts + 31) / 32, begin = lane * run;
    const auto size = [&](int e) -> int64_t {
        if (e >= args.plan.experts) return 0;
        const int64_t value = args.split_is_i64 ? static_cast<const int64_t*>(args.split_sizes)[e]
                                                : int64_t{static_cast<const int32_t*>(args.split_sizes)[e]};
        return value < 0 ? 0 : value < args.capacity ? value : args.capacity;
    };
    int64_t sum = 0;
    for (int i = 0; i < run; ++i) sum += size(begin + i);
    int64_t before = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
    }
    before -= sum;
    for (int i = 0; i < run && begin + i < args.plan.experts; ++i) {
        before += size(begin + i);
        row_ends[begin + i] = static_cast<int>(before < args.capacity ? before : args.capacity);
    }
}

// One copy of a box into this block, or into both of the cluster.
template <bool kShared>
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                                         int z) {
    if constexpr (kShared) {
        ptx::tma_load_multicast(to, map, barrier, uint16_t{3}, x, y, z);
    } else {
        ptx::tma_load(to, map, barrier, x, y, z);
    }
}

// A stage's operands, at `depth` of the sum (row of the experts' rows, where these are reduced). A shared
// operand is loaded half by each block of the cluster, into both.
template <class T>
__device__ __forceinline__ void load_a(const ProductArgs& args, uint32_t to, uint32_t barrier, int row,
                                       int depth, int rank) {
    constexpr bool kShared = T::kColumnBlocks == 2;
    constexpr int kHalf = kTileRows / 2;
    if constexpr (T::kAMnMajor) {
#pragma unroll
        for (int box = 0; box < kTileRows / 64; ++box) {
            if (kShared && box != rank) continue;
            load_box<kShared>(to + box * kBoxBytes, &args.a, barrier, row + 64 * box, depth, 0);
        }
    } else {
        const int from = kShared ? rank * kHalf : 0;
        load_box<kShared>(to + from * kRowBytes, &args.a, barrier, depth, row + from, 0);
    }
}
template <class T>
__device__ __forceinline__ void load_b(const ProductArgs& args, uint32_t to, uint32_t barrier, int column,
                                       int depth, int expert, int rank) {
    constexpr bool kShared = T::kRowBlocks == 2;
    constexpr int kHalf = kTileColumns / 2;
    const int z = T::kReduceRows ? 0 : expert;
    if constexpr (T::kBMnMajor) {
#pragma unroll
        for (int box = 0; box < kTileColumns / 64; ++box) {
            if (kShared && box / 2 != rank) continue;
            load_box<kShared>(to + box * kBoxBytes, &args.b, barrier, column + 64 * box, depth, z);
        }
    } else if constexpr (T::kPairedB || kShared) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (kShared && half != rank) continue;
            const int from = T::kPairedB ? half * args.second : half * kHalf;
            load_box<kShared>(to + half * kHalf * kRowBytes, &args.b, barrier, depth, column + from, z);
        }
    } else {
        load_box<kShared>(to, &args.b, barrier, depth, column, z);
    }
}

// One thread: fills the ring for all the block's tiles.
template <class T, class Epilogue>
__device__ __forceinline__ void load_tiles(const ProductArgs& args, const typename Epilogue::Args& epilogue,
                                           const Shared& shared) {
    const Blocks<T> blocks;
    TileWalk walk(shared.row_ends, args.plan, blocks.first, blocks.step);
    RingPosition ring;
    for (TileUnit unit; walk.next(unit);) {
        const int row = blocks.row(unit) + (T::kReduceRows ? 0 : unit.row_begin),
                  column = blocks.column(unit);
        const int depth = depth_of<T>(args, unit), stages = stages_of(depth);
        for (int i = 0; i < stages; ++i, ring.advance()) {
            const uint32_t parity = (ring.round & 1) ^ 1;
            // Partner: the warps that multiply, of all blocks that this stage's loads write.
            if constexpr (T::kBlocks == 1) {
                ptx::barrier_wait(shared.free(ring.stage), parity);
            } else {
                ptx::barrier_wait_cluster(shared.free(ring.stage), parity);
            }
            const bool tail = T::kReduceRows && (i + 1) * kTileDepth > depth;
            const uint32_t barrier = tail ? shared.raw(ring.stage) : shared.full(ring.stage);
            ptx::barrier_arrive_expect(barrier, kStageBytes);
            const int at = i * kTileDepth + (T::kReduceRows ? unit.row_begin : 0);
            load_a<T>(args, shared.a(ring.stage), barrier, row, at, blocks.column_rank);
            load_b<T>(args, shared.b(ring.stage), barrier, column, at, unit.expert, blocks.row_rank);
            // What the epilogue will read of this tile.
            if constexpr (requires { Epilogue::prefetch(epilogue, row, column); }) {
                if (i == 0) Epilogue::prefetch(epilogue, row, column);
            }
        }
    }
}

// One warp, where the reduction runs over rows: zeroes those past the expert's end. A row of every box is 128
// bytes, whatever the swizzle does inside it.
template <class T>
__device__ __forceinline__ void zero_tails(const ProductArgs& args, const Shared& shared) {
    const Blocks<T> blocks;
    TileWalk walk(shared.row_ends, args.plan, blocks.first, blocks.step);
    RingPosition ring;
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t raw_parities = 0;  // a bit a stage
    for (TileUnit unit; walk.next(unit);) {
        const int depth = depth_of<T>(args, unit), stages = stages_of(depth);
        for (int i = 0; i < stages; ++i, ring.advance()) {
            if ((i + 1) * kTileDepth <= depth) continue;
            ptx::barrier_wait(shared.raw(ring.stage), (raw_parities >> ring.stage) & 1);  // partner: TMA
            raw_parities ^= 1u << ring.stage;
            const int first = depth - i * kTileDepth;  // row of the stage
            constexpr int kBoxes = kTileRows / 64 + kTileColumns / 64;
            for (int box = 0; box < kBoxes; ++box) {
                for (int chunk = first * 8 + lane; chunk < 64 * 8; chunk += 32) {
                    ptx::store_shared(shared.a(ring.stage) + box * kBoxBytes + chunk * 16, uint4{0, 0, 0, 0});
                }
            }
            ptx::fence_async_shared();
            __syncwarp();
            if (lane == 0) ptx::barrier_arrive(shared.full(ring.stage));  // partner: the warps that multiply
        }
    }
}

// A warp of a warpgroup is done with a stage.
template <class T>
__device__ __forceinline__ void release(const Shared& shared, uint32_t stage, int lane) {
    if constexpr (T::kBlocks == 1) {
        if (lane == 0) ptx::barrier_arrive(shared.free(stage));  // partner: load_tiles
    } else {
        if (lane < T::kBlocks) ptx::barrier_arrive_at(shared.free(stage), static_cast<uint32_t>(lane));
    }
}

// sums = the stage's product, or that added. The first is known to the compiler: nothing of the tile before
// is kept in registers while that is stored.
template <class T, bool kAdd>
__device__ __forceinline__ void multiply_stage(float (&sums)[128], const Shared& shared, uint32_t stage,
                                               int group) {
    const uint32_t a =
        shared.a(stage) + static_cast<uint32_t>(group) * kBoxBytes;  // 64 rows, or the group's box
    uint64_t descriptor_a =
        T::kAMnMajor ? ptx::mn_major_descriptor(a, kBoxBytes) : ptx::k_major_descriptor(a);
    uint64_t descriptor_b = T::kBMnMajor ? ptx::mn_major_descriptor(shared.b(stage), kBoxBytes)
                                         : ptx::k_major_descriptor(shared.b(stage));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileDepth; k += 16) {
        ptx::wgmma_64x256x16<T::kAMnMajor, T::kBMnMajor>(sums, descriptor_a, descriptor_b, kAdd || k > 0);
        descriptor_a = ptx::advance(descriptor_a, T::kAMnMajor ? 16 * kRowBytes : 32);
        descriptor_b = ptx::advance(descriptor_b, T::kBMnMajor ? 16 * kRowBytes : 32);
    }
    ptx::wgmma_commit();
}

// A warpgroup: all tiles of the block, its 64 rows of each.
template <class T, class Epilogue>
__device__ __forceinline__ void multiply_tiles(const ProductArgs& args,
                                               const typename Epilogue::Args& epilogue, const Shared& shared,
                                               int group) {
    constexpr int kLeadBarrier = 1 + kGroups;
    const Blocks<T> blocks;
    TileWalk walk(shared.row_ends, args.plan, blocks.first, blocks.step);
    Place place;
    place.group = group;
    place.thread = static_cast<int>(threadIdx.x % 128);
    place.warp = place.thread / 32;
    place.lane = place.thread % 32;
    place.barrier = 1 + group;
    place.staging = shared.staging(group);
    RingPosition ring;
    bool first_tile = true;
    for (TileUnit unit; walk.next(unit);) {
        const int stages = __shfl_sync(~0u, stages_of(depth_of<T>(args, unit)), 0);
        place.expert = unit.expert;
        place.row = blocks.row(unit) + group * kGroupRows + (T::kReduceRows ? 0 : unit.row_begin);
        place.row_end = T::kReduceRows ? Epilogue::rows(epilogue) : unit.row_end;
        place.column = blocks.column(unit);
        place.empty = T::kReduceRows && unit.row_begin == unit.row_end;
        const bool exists = __shfl_sync(~0u, static_cast<int>(place.row < place.row_end), 0) != 0;
        // Partner: the first group, kLead stages into its first tile; the second group begins there.
        if (first_tile && group == 1) ptx::named_barrier_wait(kLeadBarrier, kGroups * 128);
        const bool leads = first_tile && group == 0;
        first_tile = false;
        if (!exists) {
            if (leads) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
            for (int i = 0; i < stages; ++i, ring.advance()) {
                ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: TMA, or zero_tails
                release<T>(shared, ring.stage, place.lane);
            }
            continue;
        }
        float sums[128];
        ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: TMA, or zero_tails
        multiply_stage<T, false>(sums, shared, ring.stage, group);
        uint32_t last = ring.stage;
        ring.advance();
        for (int i = 1; i < stages; ++i, ring.advance()) {
            ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: TMA, or zero_tails
            multiply_stage<T, true>(sums, shared, ring.stage, group);
            ptx::wgmma_wait<1>();  // the products of the stage before are done
            release<T>(shared, last, place.lane);
            last = ring.stage;
            if (leads && i + 1 == kLead) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_hold(sums);
        if (leads && stages < kLead) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
        release<T>(shared, last, place.lane);
        Epilogue::run(epilogue, sums, place);
    }
    if (place.thread == 0) ptx::tma_wait_read<0>();
}

}  // namespace detail

template <class T, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product_sm90(const __grid_constant__ ProductArgs args,
                         const __grid_constant__ typename Epilogue::Args epilogue) {
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kRowEndsAt);
    const detail::Shared shared{ptx::shared_address(moebius_stages), row_ends};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (warp == 0) detail::scan_splits(args, row_ends);
    if (threadIdx.x == 32) {
        for (uint32_t stage = 0; stage < kStages; ++stage) {
            ptx::barrier_init(shared.full(stage), 1);
            ptx::barrier_init(shared.free(stage), kGroups * 4 * T::kBlocks);
            ptx::barrier_init(shared.raw(stage), 1);
        }
        ptx::fence_barrier_init();
        ptx::tma_prefetch_map(&args.a);
        ptx::tma_prefetch_map(&args.b);
    }
    __syncthreads();
    if constexpr (T::kBlocks > 1) ptx::cluster_barrier();  // the other block's barriers are there, too

    const int group = warp / 4 - 1;
    if (group < 0) {
        ptx::give_registers<40>();
        if (warp == 0 && threadIdx.x % 32 == 0) detail::load_tiles<T, Epilogue>(args, epilogue, shared);
        if constexpr (T::kReduceRows) {
            if (warp == 1) detail::zero_tails<T>(args, shared);
        }
        __syncwarp();
    } else {
        ptx::take_registers<232>();
        detail::multiply_tiles<T, Epilogue>(args, epilogue, shared, group);
        __syncwarp();
    }
    // Nobody leaves while the other block may still write to it or arrive on its barriers.
    if constexpr (T::kBlocks > 1) ptx::cluster_barrier();
}

}  // namespace moebius::ops::sm90
