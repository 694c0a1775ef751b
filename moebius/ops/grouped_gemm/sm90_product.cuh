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
// An epilogue whose work is more than a store would keep the tensor cores waiting: its warpgroups leave the
// rounded sums in shared memory, and warps beside the loader finish the tile during the next one.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_layout.cuh"
#include "moebius/ptx/wgmma_narrow.h"

namespace moebius::ops::sm90 {
namespace detail {

template <class T>
__device__ __forceinline__ int depth_of(const ProductArgs& args, const TileUnit& unit) {
    return T::kReduceRows ? unit.row_end - unit.row_begin : args.depth;
}
// At least one: an empty expert's gradients are the product of a stage of zeros.
__device__ __forceinline__ int stages_of(int depth) {
    return depth > kTileDepth ? (depth + kTileDepth - 1) / kTileDepth : 1;
}

// How many products a stage's last rows take.
__device__ __forceinline__ int steps_of(int rows) {
    return (rows + kStepDepth - 1) / kStepDepth;
}

// The first row of a warpgroup's part of a tile: of all rows, or of an expert's output.
template <class T>
__device__ __forceinline__ int row_of(const TileUnit& unit, int group) {
    return unit.row_unit * kTileRows + group * kGroupRows + (T::kReduceRows ? 0 : unit.row_begin);
}
// The block's tiles.
template <class T>
__device__ __forceinline__ typename T::Walk walk_of(const ProductArgs& args, const Shared& shared) {
    return typename T::Walk(shared.row_ends, args.plan, static_cast<int>(blockIdx.x),
                            static_cast<int>(gridDim.x), shared.row_ends[args.plan.experts]);
}

// Row ends of the experts, and behind them the number of tiles, by one warp: a lane sums a run of experts,
// the warp scans the sums.
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
    __syncwarp();
    int units = 0;
    for (int e = lane; e < args.plan.experts; e += 32)
        units += args.plan.units(e > 0 ? row_ends[e - 1] : 0, row_ends[e]);
    for (int step = 16; step > 0; step /= 2) units += __shfl_xor_sync(~0u, units, step);
    if (lane == 0) row_ends[args.plan.experts] = units;
}

// A stage's operands, at `depth` of the sum (row of the experts' rows, where these are reduced).
template <class T>
__device__ __forceinline__ void load_a(const ProductArgs& args, uint32_t to, uint32_t barrier, int row,
                                       int depth) {
    if constexpr (T::kAMnMajor) {
#pragma unroll
        for (int box = 0; box < kTileRows / 64; ++box)
            ptx::tma_load(to + box * kBoxBytes, &args.a, barrier, row + 64 * box, depth, 0);
    } else {
        ptx::tma_load(to, &args.a, barrier, depth, row, 0);
    }
}
template <class T>
__device__ __forceinline__ void load_b(const ProductArgs& args, uint32_t to, uint32_t barrier, int column,
                                       int depth, int expert) {
    const int z = T::kReduceRows ? 0 : expert;
    if constexpr (T::kBMnMajor) {
#pragma unroll
        for (int box = 0; box < kTileColumns / 64; ++box)
            ptx::tma_load(to + box * kBoxBytes, &args.b, barrier, column + 64 * box, depth, z);
    } else if constexpr (T::kPairedB) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            ptx::tma_load(to + half * kBBytes / 2, &args.b, barrier, depth, column + half * args.second, z);
    } else {
        ptx::tma_load(to, &args.b, barrier, depth, column, z);
    }
}

// For load_tiles: the operands are there from the start.
struct AllReady {
    __device__ __forceinline__ void operator()(int) const {}
};

// One thread: fills the ring for all the block's tiles. `ready`: returns when an expert's operands are there.
template <class T, class Ready>
__device__ __forceinline__ void load_tiles(const ProductArgs& args, const Shared& shared, Ready ready) {
    auto walk = walk_of<T>(args, shared);
    RingPosition ring;
    for (typename T::Walk::Unit unit; walk.next(unit);) {
        ready(unit.expert);
        const int row = unit.row_unit * kTileRows + (T::kReduceRows ? 0 : unit.row_begin),
                  column = unit.column_unit * T::kColumns;
        const int depth = depth_of<T>(args, unit), stages = stages_of(depth);
        for (int i = 0; i < stages; ++i, ring.advance()) {
            // Partner: the warps that multiply.
            ptx::barrier_wait(shared.free(ring.stage), (ring.round & 1) ^ 1);
            const bool tail = T::kReduceRows && (i + 1) * kTileDepth > depth;
            const uint32_t barrier = tail ? shared.raw(ring.stage) : shared.full(ring.stage);
            ptx::barrier_arrive_expect(barrier, kStageBytes);
            const int at = i * kTileDepth + (T::kReduceRows ? unit.row_begin : 0);
            load_a<T>(args, shared.a(ring.stage), barrier, row, at);
            load_b<T>(args, shared.b(ring.stage), barrier, column, at, unit.expert);
        }
    }
}

// One warp, where the reduction runs over rows: zeroes those past the expert's end. A row of every box is 128
// bytes, whatever the swizzle does inside it.
template <class T>
__device__ __forceinline__ void zero_tails(const ProductArgs& args, const Shared& shared) {
    auto walk = walk_of<T>(args, shared);
    RingPosition ring;
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t raw_parities = 0;  // a bit a stage
    for (typename T::Walk::Unit unit; walk.next(unit);) {
        const int depth = depth_of<T>(args, unit), stages = stages_of(depth);
        for (int i = 0; i < stages; ++i, ring.advance()) {
            if ((i + 1) * kTileDepth <= depth) continue;
            ptx::barrier_wait(shared.raw(ring.stage), (raw_parities >> ring.stage) & 1);  // partner: TMA
            raw_parities ^= 1u << ring.stage;
            // Rows of the stage, as far as they are multiplied.
            const int first = depth - i * kTileDepth, end = i > 0 ? kStepDepth * steps_of(first) : kTileDepth;
            constexpr int kOperandBoxes = kStageBytes / kBoxBytes;
            for (int box = 0; box < kOperandBoxes; ++box) {
                for (int chunk = first * 8 + lane; chunk < end * 8; chunk += 32) {
                    ptx::store_shared(shared.a(ring.stage) + box * kBoxBytes + chunk * 16, uint4{0, 0, 0, 0});
                }
            }
            ptx::fence_async_shared();
            __syncwarp();
            if (lane == 0) ptx::barrier_arrive(shared.full(ring.stage));  // partner: the warps that multiply
        }
    }
}

// sums = the stage's product, or that added, kProductColumns at a time. The first is known to the compiler:
// nothing of the tile before is kept in registers while that is stored.
template <class T, int kProductColumns, bool kAdd>
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
    for (int k = 0; k < kTileDepth; k += kStepDepth) {
        if constexpr (kProductColumns == kTileColumns) {
            ptx::wgmma_64x256x16<T::kAMnMajor, T::kBMnMajor>(sums, descriptor_a, descriptor_b, kAdd || k > 0);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                auto& part = reinterpret_cast<float(&)[64]>(sums[64 * half]);
                const uint64_t columns = ptx::advance(descriptor_b, half * kBBytes / 2);
                if (kAdd || k > 0) {
                    ptx::wgmma_add_x16<T::kAMnMajor, T::kBMnMajor>(part, descriptor_a, columns);
                } else {
                    ptx::wgmma_x16<T::kAMnMajor, T::kBMnMajor>(part, descriptor_a, columns);
                }
            }
        }
        descriptor_a = ptx::advance(descriptor_a, T::kAMnMajor ? 16 * kRowBytes : 32);
        descriptor_b = ptx::advance(descriptor_b, T::kBMnMajor ? 16 * kRowBytes : 32);
    }
    ptx::wgmma_commit();
}

// The products of a stage's first rows alone, one after the other: a branch among products in flight makes
// ptxas wait for each of all stages.
template <class T>
__device__ __forceinline__ void multiply_steps(float (&sums)[128], const Shared& shared, uint32_t stage,
                                               int group, int steps) {
    static_assert(T::kAMnMajor && T::kBMnMajor, "rows of a stage are reduced");
    uint64_t descriptor_a =
        ptx::mn_major_descriptor(shared.a(stage) + static_cast<uint32_t>(group) * kBoxBytes, kBoxBytes);
    uint64_t descriptor_b = ptx::mn_major_descriptor(shared.b(stage), kBoxBytes);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ptx::wgmma_fence();
        ptx::wgmma_64x256x16<true, true>(sums, descriptor_a, descriptor_b, true);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        descriptor_a = ptx::advance(descriptor_a, kStepDepth * kRowBytes);
        descriptor_b = ptx::advance(descriptor_b, kStepDepth * kRowBytes);
    }
}

// The rounded sums, for finish_tiles.
__device__ __forceinline__ void stage_sums(const float (&sums)[128], const Place& place, const Shared& shared,
                                           uint32_t tiles) {
    ptx::barrier_wait(shared.taken(place.group), (tiles & 1) ^ 1);  // partner: finish_tiles
#pragma unroll
    for (int block = 0; block < kBoxes; ++block) {
        StagedBlock pairs;
        round_block(pairs, sums, block);
        stage_block(place.box(block), pairs, place);
    }
    __syncwarp();
    if (place.lane == 0) ptx::barrier_arrive(shared.staged(place.group));  // partner: finish_tiles
}

// For multiply_tiles: nobody waits until operands have been read.
struct NobodyWaits {
    template <class Unit>
    __device__ __forceinline__ void operator()(const Unit&) const {}
};

// A warpgroup: all tiles of the block, its 64 rows of each. `read`: called by one thread a tile, when all of
// its operands are in shared memory.
template <class T, class Epilogue, class Read = NobodyWaits>
__device__ __forceinline__ void multiply_tiles(const ProductArgs& args,
                                               const typename Epilogue::Args& epilogue, const Shared& shared,
                                               int group, Read read = {}) {
    constexpr int kLeadBarrier = 1 + kGroups, kColumns = BlockShape<Epilogue::kFinishers>::kProductColumns;
    auto walk = walk_of<T>(args, shared);
    Place place;
    place.group = group;
    place.thread = static_cast<int>(threadIdx.x % 128);
    place.warp = place.thread / 32;
    place.lane = place.thread % 32;
    place.barrier = 1 + group;
    place.staging = shared.staging(group);
    place.fetched = shared.fetched(group);
    const auto release = [&](uint32_t stage) {
        if (place.lane == 0) ptx::barrier_arrive(shared.free(stage));  // partner: load_tiles
    };
    RingPosition ring;
    bool first_tile = true;
    uint32_t tiles = 0;  // that exist
    for (typename T::Walk::Unit unit; walk.next(unit);) {
        const int depth = __shfl_sync(~0u, depth_of<T>(args, unit), 0), stages = stages_of(depth);
        // What the stages after the first have in full; of a last one with fewer rows, those behind the end
        // are not multiplied.
        const int full = T::kReduceRows && stages > 1 ? depth / kTileDepth : stages;
        place.expert = unit.expert;
        place.row = row_of<T>(unit, group);
        place.row_end = unit.row_end;
        if constexpr (T::kReduceRows) place.row_end = epilogue.rows;
        place.column = unit.column_unit * T::kColumns;
        place.empty = T::kReduceRows && unit.row_begin == unit.row_end;
        const bool mine = place.row < place.row_end && unit.has(group);
        const bool exists = __shfl_sync(~0u, static_cast<int>(mine), 0) != 0;
        // Partner: the first group, kLead stages into its first tile; the second group begins there.
        if (first_tile && group == 1) ptx::named_barrier_wait(kLeadBarrier, kGroups * 128);
        const bool leads = first_tile && group == 0;
        first_tile = false;
        if (!exists) {
            if (leads) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
            for (int i = 0; i < stages; ++i, ring.advance()) {
                ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: TMA, or zero_tails
                release(ring.stage);
            }
            if (group == 0 && place.thread == 0) read(unit);
            continue;
        }
        float sums[128];
        ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: TMA, or zero_tails
        multiply_stage<T, kColumns, false>(sums, shared, ring.stage, group);
        if constexpr (Epilogue::kFetches) {
            if (place.thread == 0 && !place.empty) Epilogue::fetch(epilogue, place);
            __syncwarp();
        }
        uint32_t last = ring.stage;
        ring.advance();
        for (int i = 1; i < full; ++i, ring.advance()) {
            ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: TMA, or zero_tails
            multiply_stage<T, kColumns, true>(sums, shared, ring.stage, group);
            ptx::wgmma_wait<1>();  // the products of the stage before are done
            release(last);
            last = ring.stage;
            if (leads && i + 1 == kLead) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_hold(sums);
        if constexpr (T::kReduceRows) {
            if (full < stages) {
                release(last);
                ptx::barrier_wait(shared.full(ring.stage), ring.round & 1);  // partner: zero_tails
                multiply_steps<T>(sums, shared, ring.stage, group, steps_of(depth - full * kTileDepth));
                ptx::wgmma_hold(sums);
                last = ring.stage;
                ring.advance();
            }
        }
        if (leads && full < kLead) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
        release(last);
        if (group == 0 && place.thread == 0) read(unit);
        if constexpr (Epilogue::kFinishers > 0) {
            stage_sums(sums, place, shared, tiles++);
        } else {
            Epilogue::run(epilogue, sums, place);
        }
    }
    if (place.thread == 0) ptx::tma_wait_read<0>();
}

// A warp of those that finish: its rows of all the block's tiles.
template <class T, class Epilogue>
__device__ __forceinline__ void finish_tiles(const ProductArgs& args, const typename Epilogue::Args& epilogue,
                                             const Shared& shared, int warp) {
    auto walk = walk_of<T>(args, shared);
    StagedTile tile;
    tile.warp = warp;
    tile.lane = static_cast<int>(threadIdx.x % 32);
    uint32_t parities = 0;  // a bit a group
    for (typename T::Walk::Unit unit; walk.next(unit);) {
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
            tile.row = row_of<T>(unit, group);
            tile.rows = min(kGroupRows, unit.row_end - tile.row);
            if (tile.rows <= 0 || !unit.has(group)) continue;
            tile.column = unit.column_unit * T::kColumns;
            tile.staging = shared.staging(group);
            tile.staged = shared.staged(group);
            tile.parity = (parities >> group) & 1;
            parities ^= 1u << group;
            Epilogue::finish(epilogue, tile);
            __syncwarp();
            if (tile.lane == 0) ptx::barrier_arrive(shared.taken(group));  // partner: stage_sums
        }
    }
}

// Row ends and barriers, by the whole block.
template <class Epilogue>
__device__ __forceinline__ void begin_product(const ProductArgs& args, const Shared& shared, int* row_ends,
                                              int warp) {
    if (warp == 0) scan_splits(args, row_ends);
    if (threadIdx.x == 32) {
        for (uint32_t stage = 0; stage < kStages; ++stage) {
            ptx::barrier_init(shared.full(stage), 1);
            ptx::barrier_init(shared.free(stage), kGroups * 4);
            ptx::barrier_init(shared.raw(stage), 1);
        }
        for (int group = 0; group < kGroups; ++group) {
            ptx::barrier_init(shared.staged(group), 4);
            if constexpr (Epilogue::kFinishers > 0)
                ptx::barrier_init(shared.taken(group), Epilogue::kFinishers);
            ptx::barrier_init(shared.fetched(group), 1);
        }
        ptx::fence_barrier_init();
        ptx::tma_prefetch_map(&args.a);
        ptx::tma_prefetch_map(&args.b);
    }
    __syncthreads();
}

}  // namespace detail

template <class T, class Epilogue>
__global__ void __launch_bounds__(BlockShape<Epilogue::kFinishers>::kThreads, 1)
    grouped_product_sm90(const __grid_constant__ ProductArgs args,
                         const __grid_constant__ typename Epilogue::Args epilogue) {
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kRowEndsAt);
    const detail::Shared shared{ptx::shared_address(moebius_stages), row_ends};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    detail::begin_product<Epilogue>(args, shared, row_ends, warp);

    using Shape = BlockShape<Epilogue::kFinishers>;
    const int group = warp / 4 - Shape::kLoaders;
    if (group < 0) {
        ptx::give_registers<Shape::kLoading>();
        if (warp == 0 && threadIdx.x % 32 == 0) detail::load_tiles<T>(args, shared, detail::AllReady{});
        if constexpr (T::kReduceRows) {
            if (warp == 1) detail::zero_tails<T>(args, shared);
        }
        if constexpr (Epilogue::kFinishers > 0) {
            static_assert(!T::kReduceRows, "the warps are taken");
            if (warp > 0 && (Shape::kLoaders == 1 || warp <= Epilogue::kFinishers))
                detail::finish_tiles<T, Epilogue>(args, epilogue, shared, warp - 1);
        }
    } else {
        ptx::take_registers<Shape::kMultiplying>();
        detail::multiply_tiles<T, Epilogue>(args, epilogue, shared, group);
    }
}

}  // namespace moebius::ops::sm90
