// One kernel for all grouped products of MX operands on Hopper, whose FP8 tensor cores know no scales of 32:
// codes become bf16 on their way to the tensor cores, exactly, and no bf16 copy is kept. Kinds, tiles and the
// order of sums are those of grouped_gemm/sm90_product.cuh, and so are the bits for the same numbers.
//
// A stage of 128 × 256 × 64 takes the tensor cores 1,024 cycles, in which shared memory moves 128 KiB at
// most. The two warpgroups read B twice, 64 KiB. So A's codes go from there to registers, which wgmma takes A
// from, and only B is written back as bf16, 32 KiB, by four warps that also load. With codes coming in and
// read once, 24 KiB each, that is 144 KiB a stage. docs/kernels.md has what bounds it.
//
// A warpgroup converts its part of A for the next stage while the products of this one run.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90_mx_convert.cuh"

namespace moebius::ops::sm90::mx {

// sums = the stage's product, or that added. The first is known to the compiler: nothing of the tile before
// is kept in registers while that is stored.
template <class T, bool kAdd>
__device__ __forceinline__ void multiply_stage(float (&sums)[128], const Fragments& a, uint32_t b) {
    constexpr uint32_t kHalfBytes = kBBytes / 2, kStep = T::kBMnMajor ? 16 * kRowBytes : 32;
    uint64_t low = T::kBMnMajor ? ptx::mn_major_descriptor(b, kBoxBytes) : ptx::k_major_descriptor(b);
    uint64_t high = ptx::advance(low, kHalfBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileDepth / 16; ++k) {
        ptx::wgmma_64x128x16<T::kBMnMajor, 0>(sums, a.at[k], low, kAdd || k > 0);
        ptx::wgmma_64x128x16<T::kBMnMajor, 1>(sums, a.at[k], high, kAdd || k > 0);
        low = ptx::advance(low, kStep);
        high = ptx::advance(high, kStep);
    }
    ptx::wgmma_commit();
}

// A warpgroup: all tiles of the block, its 64 rows of each.
template <class T, class Epilogue>
__device__ __forceinline__ void multiply_tiles(const MxProductArgs& args,
                                               const typename Epilogue::Args& epilogue,
                                               const MxShared& shared, int group) {
    constexpr int kLeadBarrier = 1 + kGroups;
    TileWalk walk = shared.walk(args.product.plan);
    Place place;
    place.group = group;
    place.thread = static_cast<int>(threadIdx.x % 128);
    place.warp = place.thread / 32;
    place.lane = place.thread % 32;
    place.barrier = 1 + group;
    place.staging = shared.staging(group);
    place.fetched = shared.fetched(group);
    if constexpr (T::kAMnMajor) {
        place.row_step = 2;
        place.half_step = 1;
    }
    ReaderA<T> reader(shared, place);
    WideB wide(shared.barriers());
    const auto release = [&](uint32_t barrier) {
        if (place.lane == 0) ptx::barrier_arrive(barrier);  // partner: convert_tiles
    };
    bool first_tile = true;
    for (TileUnit unit; walk.next(unit);) {
        const int depth = __shfl_sync(~0u, sm90::detail::depth_of<T>(args.product, unit), 0);
        const int stages = sm90::detail::stages_of(depth);
        place.expert = unit.expert;
        place.row = sm90::detail::row_of<T>(unit, group);
        place.row_end = unit.row_end;
        if constexpr (T::kReduceRows) place.row_end = epilogue.rows;
        place.column = unit.column_unit * kTileColumns;
        place.empty = T::kReduceRows && unit.row_begin == unit.row_end;
        const bool mine = place.row < place.row_end && unit.has(group);
        const bool exists = __shfl_sync(~0u, static_cast<int>(mine), 0) != 0;
        // Partner: the first group, kLead stages into its first tile; the second group begins there.
        if (first_tile && group == 1) ptx::named_barrier_wait(kLeadBarrier, kGroups * 128);
        bool leads = first_tile && group == 0;
        first_tile = false;
        if (leads && (!exists || stages < kLead)) {
            ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
            leads = false;
        }
        if (!exists) {
            for (int i = 0; i < stages; ++i, wide.advance()) {
                reader.skip(i, stages);
                wide.wait_full();
                release(wide.free());
            }
            continue;
        }
        float sums[128];
        Fragments even, odd;
        reader.read(even, 0, stages, depth);
        wide.wait_full();
        multiply_stage<T, false>(sums, even, shared.at(wide));
        if constexpr (Epilogue::kFetches) {
            if (place.thread == 0 && !place.empty) Epilogue::fetch(epilogue, place);
            __syncwarp();
        }
        uint32_t last = wide.free();
        wide.advance();
        // Stage i into `next`, while that of `before` is multiplied.
        const auto step = [&](Fragments& before, Fragments& next, int i) {
            reader.read(next, i, stages, depth - i * kTileDepth);
            wide.wait_full();
            multiply_stage<T, true>(sums, next, shared.at(wide));
            ptx::wgmma_wait<1>();  // the products of the stage before are done
            before.hold();
            release(last);
            last = wide.free();
            wide.advance();
            if (leads && i + 1 == kLead) ptx::named_barrier_arrive(kLeadBarrier, kGroups * 128);
        };
        int i = 1;
        for (; i + 1 < stages; i += 2) {
            step(even, odd, i);
            step(odd, even, i + 1);
        }
        if (i < stages) {
            step(even, odd, i);
            ptx::wgmma_wait<0>();
            odd.hold();
        } else {
            ptx::wgmma_wait<0>();
            even.hold();
        }
        ptx::wgmma_hold(sums);
        release(last);
        Epilogue::run(epilogue, sums, place);
    }
    if (place.thread == 0) ptx::tma_wait_read<0>();
}

template <class T, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product_mx_sm90(const __grid_constant__ MxProductArgs args,
                            const __grid_constant__ typename Epilogue::Args epilogue) {
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kMxRowEndsAt);
    const MxShared shared{ptx::shared_address(moebius_stages), row_ends};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (warp == 0) sm90::detail::scan_splits(args.product, row_ends);
    if (threadIdx.x == 32) {
        CodesA::init(shared.barriers());
        CodesB::init(shared.barriers());
        WideB::init(shared.barriers());
        ScalesA::init(shared.barriers());
        ScalesB::init(shared.barriers());
        for (int group = 0; group < kGroups; ++group) ptx::barrier_init(shared.fetched(group), 1);
        ptx::fence_barrier_init();
        ptx::tma_prefetch_map(&args.product.a);
        ptx::tma_prefetch_map(&args.product.b);
    }
    __syncthreads();

    const int group = warp / 4 - 1;
    if (group < 0) {
        ptx::give_registers<kConverterRegisters>();
        convert_tiles<T>(args, shared, warp);
    } else {
        ptx::take_registers<kMultiplierRegisters>();
        multiply_tiles<T, Epilogue>(args, epilogue, shared, group);
    }
}

}  // namespace moebius::ops::sm90::mx
