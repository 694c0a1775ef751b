// Codes and scales of an MX product on Hopper, from global to shared memory. A warp each for A's and B's
// codes (TMA, by one thread) and for A's and B's row-wise scales.
//
//   K-major   codes: rows of 64 bytes along K, A's swizzled by 64 bytes
//   MN-major  codes: rows of K; A's 128 bytes, swizzled by 128, B's four boxes of 64 bytes a row; scales with
//             them, two rows of 128 or 256 bytes
#pragma once

#include <type_traits>

#include "moebius/ops/grouped_gemm_quantized/sm90_mx_layout.cuh"
#include "moebius/ptx/cp_async.h"

namespace moebius::ops::sm90::mx {

// Blocks of column-wise scales of the experts before one: Σ ⌈rows/32⌉. Experts are asked for in order.
class BlocksBefore {
  public:
    __device__ __forceinline__ int operator()(const MxShared& shared, const TilePlan& plan, int expert) {
        while (expert_ < expert) {
            const int end = shared.row_ends[expert_];
            blocks_ += (end - begin_ + kScaleBlock - 1) / kScaleBlock;
            begin_ = end;
            expert_ += plan.expert_step;
        }
        return blocks_;
    }

  private:
    int expert_ = 0, begin_ = 0, blocks_ = 0;
};

// What a converting warp loads beside: the first B's codes, the second A's, the third and fourth B's and A's
// row-wise scales, where there are such. One place in the code for all, so that it is in the cache once.
template <class T>
class Loader {
  public:
    __device__ __forceinline__ Loader(const MxProductArgs& args, const MxShared& shared, int warp)
        : walk_(shared.walk(args.product.plan)), warp_(warp) {
        const auto use = [&](uint32_t barriers, int slots, int step, int ahead_of_readers) {
            barriers_ = barriers;
            slots_ = slots;
            step_ = step;
            ahead = ahead_of_readers;
        };
        // A's codes are read later than B's: of their slots one fewer is filled ahead.
        if (warp == 0) use(CodesB(shared.barriers()).full(), kCodeStagesB, 1, kCodeStagesB);
        if (warp == 1) use(CodesA(shared.barriers()).full(), kCodeStagesA, 1, kCodeStagesA - 1);
        if (!T::kBMnMajor && warp == 2)
            use(ScalesB(shared.barriers()).full(), kScaleSlots, kScaleStages, kScaleSlots - 1);
        if (!T::kAMnMajor && warp == 3)
            use(ScalesA(shared.barriers()).full(), kScaleSlots, kScaleStages, kScaleSlots - 1);
    }

    int ahead = 0;  // calls of next() before the first stage is converted

    // After a stage of a tile has been converted.
    __device__ __forceinline__ void after(int stage, const MxProductArgs& args, const MxShared& shared) {
        if (stage % kScaleStages % step_ == 0) next(args, shared);
    }
    __device__ __forceinline__ void next(const MxProductArgs& args, const MxShared& shared) {
        stage_ += step_;
        if (stage_ >= stages_) {
            if (slots_ == 0 || !walk_.next(unit_)) {
                slots_ = 0;
                return;
            }
            stage_ = 0;
            stages_ = sm90::detail::stages_of(sm90::detail::depth_of<T>(args.product, unit_));
        }
        ptx::barrier_wait(barriers_ + (slots_ + slot_) * 8, parity_ ^ 1);  // partner: its readers
        if (warp_ < 2) {
            if (threadIdx.x % 32 == 0) {
                if (warp_ == 0) {
                    load_codes<false>(args, shared);
                } else {
                    load_codes<true>(args, shared);
                }
            }
            __syncwarp();
        } else if (warp_ == 2) {
            if constexpr (!T::kBMnMajor) load_scales<false>(args.row_scales_b, shared);
        } else {
            if constexpr (!T::kAMnMajor) load_scales<true>(args.row_scales_a, shared);
        }
        if (++slot_ == slots_) {
            slot_ = 0;
            parity_ ^= 1;
        }
    }

  private:
    template <bool kLeft>
    __device__ __forceinline__ void load_codes(const MxProductArgs& args, const MxShared& shared) {
        constexpr bool kMnMajor = kLeft ? T::kAMnMajor : T::kBMnMajor;
        constexpr uint32_t kScaleBytes = !kMnMajor ? 0 : kLeft ? kScaleBytesA : kScaleBytesB;
        const CUtensorMap *map = kLeft ? &args.product.a : &args.product.b,
                          *scale_map = kLeft ? &args.scale_a : &args.scale_b;
        std::conditional_t<kLeft, CodesA, CodesB> codes(shared.barriers());
        codes.slot = slot_;
        const int first = kLeft ? unit_.row_unit * kTileRows + (T::kReduceRows ? 0 : unit_.row_begin)
                                : unit_.column_unit * kTileColumns;
        const int expert = kLeft || T::kReduceRows ? 0 : unit_.expert;
        const int depth = stage_ * kTileDepth + (T::kReduceRows ? unit_.row_begin : 0);
        const uint32_t to = shared.at(codes), full = codes.full();
        ptx::barrier_arrive_expect(full, (kLeft ? kCodeBytesA : kCodeBytesB) + kScaleBytes);
        if constexpr (!kMnMajor) {
            ptx::tma_load(to, map, full, depth, first, expert);
        } else {
            constexpr int kBoxColumns = kLeft ? kTileRows : 64, kBoxesOfCodes = kLeft ? 1 : kTileColumns / 64;
#pragma unroll
            for (int box = 0; box < kBoxesOfCodes; ++box) {
                ptx::tma_load(to + box * kBoxColumns * kTileDepth, map, full, first + kBoxColumns * box,
                              depth, expert);
            }
            int block = stage_ * kStageBlocks;
            if constexpr (T::kReduceRows) block += blocks_before_(shared, args.product.plan, unit_.expert);
            ptx::tma_load(shared.scales(codes), scale_map, full, first, block, expert);
        }
    }

    // Rows past the last count as that one; blocks past a row's end as 2^−127, a number, since their codes
    // are zero.
    template <bool kLeft>
    __device__ __forceinline__ void load_scales(const RowScales& of, const MxShared& shared) const {
        std::conditional_t<kLeft, ScalesA, ScalesB> scales(shared.barriers());
        scales.slot = slot_;
        const int lane = static_cast<int>(threadIdx.x % 32), block = stage_ * kStageBlocks;
        const int first =
            kLeft ? unit_.row_unit * kTileRows + unit_.row_begin : unit_.column_unit * kTileColumns;
        const uint8_t* from = of.data + block;
        if (!kLeft) from += static_cast<int64_t>(unit_.expert) * of.rows * of.blocks;
        const uint32_t to = shared.at(scales) + static_cast<uint32_t>(lane) * kScaleRowBytes;
        constexpr int kRows = (kLeft ? kTileRows : kTileColumns) / 32;  // of a lane
        const auto row = [&](int i) {
            return from + static_cast<int64_t>(min(first + lane + 32 * i, of.rows - 1)) * of.blocks;
        };
        if (of.aligned) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) ptx::cp_async_8(to + i * 32 * kScaleRowBytes, row(i));
            ptx::cp_async_arrive(scales.full());
        } else {
#pragma unroll 1
            for (int i = 0; i < kRows; ++i)
                ptx::store_shared(to + i * 32 * kScaleRowBytes, load_bytes(row(i), of.blocks - block));
            ptx::barrier_arrive(scales.full());
        }
    }
    __device__ static uint2 load_bytes(const uint8_t* from, int count) {
        static_assert(kScaleRowBytes == 8);
        uint64_t value = 0;
#pragma unroll 1
        for (int i = 0; i < 8 && i < count; ++i) value |= static_cast<uint64_t>(__ldg(from + i)) << 8 * i;
        return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
    }

    TileWalk walk_;
    TileUnit unit_;
    BlocksBefore blocks_before_;
    int warp_, stage_ = 0, stages_ = 0;
    uint32_t barriers_ = 0, slot_ = 0, parity_ = 0;
    int slots_ = 0, step_ = 1;
};

}  // namespace moebius::ops::sm90::mx
