// Codes to bf16 in an MX product on Hopper: B's by four warps into shared memory, as wgmma reads it; A's by
// the warpgroups that multiply, into registers.
//
// Where A is K-major, a thread reads four codes of a row at once, and a product sixteen deep takes its K in
// the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15, in both operands: the tensor core adds sixteen products at
// a time, so their order does not matter. Where A is MN-major, a thread reads two columns at once, and the
// sums' rows are those of even columns, then those of odd ones (Place::row_step).
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90_mx_load.cuh"

namespace moebius::ops::sm90::mx {

// Rows of a warp's part of A, as bf16, of one stage: of each sixteen of K what wgmma takes.
struct Fragments {
    uint32_t at[kTileDepth / 16][4];
    __device__ __forceinline__ void hold() {
#pragma unroll
        for (auto& pairs : at) ptx::wgmma_hold(pairs);
    }
};

// Sixteen codes as pairs of bf16, in order.
struct Pairs {
    uint32_t at[8];
};
template <ptx::Codes kCodes>
__device__ __forceinline__ Pairs widen_all(uint4 codes, const uint32_t (&factors)[8]) {
    Pairs pairs;
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        ptx::widen<kCodes>(words[i], factors[2 * i], factors[2 * i + 1], pairs.at[2 * i],
                           pairs.at[2 * i + 1]);
    }
    return pairs;
}

// A converting thread's part of a stage of B: eight times sixteen codes and their scales. They are read
// first, so that the slot can be filled again while they are converted.
constexpr int kPieces = 8, kHalfPieces = kPieces / 2;

// K-major: sixteen codes of every 32nd row.
template <class T>
class PartAlong {
  public:
    __device__ __forceinline__ explicit PartAlong(int thread)
        : codes_at_(static_cast<uint32_t>(thread * 16)),
          scales_at_(static_cast<uint32_t>(thread / 4) * kScaleRowBytes + thread % 4 / 2),
          row_at_(static_cast<uint32_t>(thread / 4) * kRowBytes),
          chunk_(static_cast<uint32_t>((2 * (thread % 4)) ^ (thread / 4 % 8)) * 16) {
        static_assert(!T::kAMnMajor);
    }
    __device__ __forceinline__ void load(uint32_t codes, uint32_t scales) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            codes_[i] = ptx::load_shared(codes + codes_at_ + i * 32 * kTileDepth);
            powers_[i] = ptx::load_shared_byte(scales + scales_at_ + i * 32 * kScaleRowBytes);
        }
    }
    template <int kHalf>
    __device__ __forceinline__ void convert(uint32_t to, int) const {
#pragma unroll
        for (int i = kHalf * kHalfPieces; i < (kHalf + 1) * kHalfPieces; ++i) {
            const uint32_t factor = ptx::e8m0_pair(powers_[i]);
            const uint32_t factors[8] = {factor, factor, factor, factor, factor, factor, factor, factor};
            const Pairs pairs = widen_all<T::kB>(codes_[i], factors);
            const uint32_t at = to + row_at_ + i * 32 * kRowBytes + chunk_, beside = at ^ 16;
            ptx::store_shared(at, uint4{pairs.at[0], pairs.at[2], pairs.at[4], pairs.at[6]});
            ptx::store_shared(beside, uint4{pairs.at[1], pairs.at[3], pairs.at[5], pairs.at[7]});
        }
    }

  private:
    uint32_t codes_at_, scales_at_, row_at_, chunk_;
    uint4 codes_[kPieces];
    uint32_t powers_[kPieces];
};

// MN-major: sixteen columns in every other row of sixteen, of one block of scales.
template <class T>
class PartAcross {
  public:
    __device__ __forceinline__ explicit PartAcross(int thread) {
        const int lane = thread % 32, warp = thread / 32;
        const int part = lane % 4, odd = lane / 4 % 2, block = lane / 8 % 2, box = lane / 16 + 2 * (warp % 2);
        row_ = kScaleBlock * block + 16 * (warp / 2) + odd;
        codes_at_ = static_cast<uint32_t>((box * kTileDepth + row_) * 64 + part * 16);
        scales_at_ = static_cast<uint32_t>(block * kTileColumns + box * 64 + part * 16);
        row_at_ = static_cast<uint32_t>(box) * kBoxBytes + static_cast<uint32_t>(row_) * kRowBytes;
        chunk_ = static_cast<uint32_t>((2 * part) ^ odd) * 16;
    }
    __device__ __forceinline__ void load(uint32_t codes, uint32_t scales) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) codes_[i] = ptx::load_shared(codes + codes_at_ + i * 2 * 64);
        const uint4 powers = ptx::load_shared(scales + scales_at_);
        ptx::e8m0_pairs(powers.x, factors_[0], factors_[1]);
        ptx::e8m0_pairs(powers.y, factors_[2], factors_[3]);
        ptx::e8m0_pairs(powers.z, factors_[4], factors_[5]);
        ptx::e8m0_pairs(powers.w, factors_[6], factors_[7]);
    }
    // Rows of the stage from `rows` on become zero.
    template <int kHalf>
    __device__ __forceinline__ void convert(uint32_t to, int rows) const {
#pragma unroll
        for (int i = kHalf * kHalfPieces; i < (kHalf + 1) * kHalfPieces; ++i) {
            // Row 2i of sixteen, where the product takes it.
            const int place = T::kAMnMajor ? 2 * i : 2 * (i / 2) + 8 * (i % 2);
            Pairs pairs = widen_all<T::kB>(codes_[i], factors_);
            if constexpr (T::kReduceRows) {
                if (row_ + 2 * i >= rows) pairs = {};
            }
            const uint32_t at =
                to + row_at_ + static_cast<uint32_t>(place) * kRowBytes + (chunk_ ^ (place % 8 * 16));
            ptx::store_shared(at, uint4{pairs.at[0], pairs.at[1], pairs.at[2], pairs.at[3]});
            ptx::store_shared(at ^ 16, uint4{pairs.at[4], pairs.at[5], pairs.at[6], pairs.at[7]});
        }
    }

  private:
    int row_;
    uint32_t codes_at_, scales_at_, row_at_, chunk_;
    uint4 codes_[kPieces];
    uint32_t factors_[8];
};

// A converting warp: its part of B for all the block's tiles, and what it loads.
template <class T>
__device__ __forceinline__ void convert_tiles(const MxProductArgs& args, const MxShared& shared, int warp) {
    const int thread = static_cast<int>(threadIdx.x % 128);
    const bool first_lane = thread % 32 == 0;
    Loader<T> loader(args, shared, warp);
    for (int i = 0; i < loader.ahead; ++i) loader.next(args, shared);
    TileWalk walk = shared.walk(args.product.plan);
    CodesB codes(shared.barriers());
    WideB wide(shared.barriers());
    ScalesB scales(shared.barriers());
    std::conditional_t<T::kBMnMajor, PartAcross<T>, PartAlong<T>> part(thread);
    for (TileUnit unit; walk.next(unit);) {
        const int depth = sm90::detail::depth_of<T>(args.product, unit),
                  stages = sm90::detail::stages_of(depth);
        for (int i = 0; i < stages; ++i, codes.advance(), wide.advance()) {
            if (!T::kBMnMajor && i % kScaleStages == 0) scales.wait_full();
            codes.wait_full();
            part.load(shared.at(codes), T::kBMnMajor ? shared.scales(codes)
                                                     : shared.at(scales) + i % kScaleStages * kStageBlocks);
            __syncwarp();
            const bool ends = !T::kBMnMajor && (i % kScaleStages == kScaleStages - 1 || i + 1 == stages);
            if (first_lane) {
                ptx::barrier_arrive(codes.free());
                if (ends) ptx::barrier_arrive(scales.free());
            }
            if (ends) scales.advance();
            wide.wait_free();
            part.template convert<0>(shared.at(wide), depth - i * kTileDepth);
            // By now the other warps have read their codes, too.
            if (warp == 0) loader.after(i, args, shared);
            part.template convert<1>(shared.at(wide), depth - i * kTileDepth);
            ptx::fence_async_shared();
            __syncwarp();
            if (first_lane) ptx::barrier_arrive(wide.full());
            if (warp != 0) loader.after(i, args, shared);
        }
    }
}

// A warp's way through A's stages.
template <class T>
class ReaderA {
  public:
    __device__ __forceinline__ ReaderA(const MxShared& shared, const Place& place)
        : shared_(shared), codes_(shared.barriers()), scales_(shared.barriers()) {
        const int row = place.group * kGroupRows + 16 * place.warp, lane = place.lane;
        first_lane_ = lane == 0;
        if constexpr (T::kAMnMajor) {
            // Rows of K: the lane's; the warp's sixteen columns are a chunk.
            codes_at_ = static_cast<uint32_t>(lane * kTileRows + (row / 16 ^ lane % 8) * 16);
            scales_at_ = static_cast<uint32_t>(row + 2 * (lane / 4));
        } else {
            const int own = row + lane % 16;
            codes_at_ = static_cast<uint32_t>(own * kTileDepth + (lane / 16 ^ own / 2 % 4) * 16);
            scales_at_ = static_cast<uint32_t>(row + lane / 4) * kScaleRowBytes;
        }
        depth_ = 2 * (lane % 4);
    }

    // Stage i of a tile's `stages`; `rows` of K count where the reduction runs over rows.
    __device__ __forceinline__ void read(Fragments& out, int i, int stages, int rows) {
        wait(i);
        uint32_t words[8], powers[2];
        const uint32_t codes = shared_.at(codes_) + codes_at_;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t(&w)[8] = words;
            if constexpr (T::kAMnMajor) {  // the next 32 rows of K
                ptx::load_matrices_transposed(codes + h * 32 * kTileRows, w[4 * h], w[4 * h + 1],
                                              w[4 * h + 2], w[4 * h + 3]);
            } else {  // the next two chunks of a row
                ptx::load_matrices(codes ^ (h * 32), w[4 * h], w[4 * h + 1], w[4 * h + 2], w[4 * h + 3]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            powers[h] = ptx::load_shared_bytes(
                T::kAMnMajor ? shared_.scales(codes_) + scales_at_ + h * kTileRows
                             : shared_.at(scales_) + scales_at_ + i % kScaleStages * kStageBlocks +
                                   h * 8 * kScaleRowBytes);
        }
        release(i, stages);
        if constexpr (T::kAMnMajor) {
            widen_across(out, words, powers, rows);
        } else {
            widen_along(out, words, powers);
        }
    }
    // Instead of read().
    __device__ __forceinline__ void skip(int i, int stages) {
        wait(i);
        release(i, stages);
    }

  private:
    __device__ __forceinline__ void wait(int i) {
        if (!T::kAMnMajor && i % kScaleStages == 0) scales_.wait_full();
        codes_.wait_full();
    }
    __device__ __forceinline__ void release(int i, int stages) {
        const bool ends = !T::kAMnMajor && (i % kScaleStages == kScaleStages - 1 || i + 1 == stages);
        __syncwarp();
        if (first_lane_) {
            ptx::barrier_arrive(codes_.free());
            if (ends) ptx::barrier_arrive(scales_.free());
        }
        codes_.advance();
        if (ends) scales_.advance();
    }

    // words[4h + 2s + half]: codes 4·(l % 4) … of sixteen 2h + s, of row l / 4 + 8·half. powers[half]: of
    // both blocks.
    __device__ __forceinline__ static void widen_along(Fragments& out, const uint32_t (&words)[8],
                                                       const uint32_t (&powers)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint32_t factor = ptx::e8m0_pair(powers[half] >> 8 * h & 0xFFu);
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    uint32_t(&pairs)[4] = out.at[2 * h + s];
                    ptx::widen<T::kA>(words[4 * h + 2 * s + half], factor, factor, pairs[half],
                                      pairs[2 + half]);
                }
            }
        }
    }
    // words[4h + t]: rows 32h + 8t + 2·(l % 4) and the next, of each columns 2·(l / 4) and the next.
    // powers[h]: of both columns.
    __device__ __forceinline__ void widen_across(Fragments& out, uint32_t (&words)[8],
                                                 const uint32_t (&powers)[2], int rows) const {
        const bool tail = T::kReduceRows && rows < kTileDepth;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t low = ptx::e8m0_pair(powers[h] & 0xFFu), high = ptx::e8m0_pair(powers[h] >> 8);
            if (tail && kScaleBlock * h >= rows) low = high = 0;  // nobody's scales
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                uint32_t word = words[4 * h + t];
                if (tail) {
                    const int left = rows - (kScaleBlock * h + 8 * t + depth_);
                    word = left <= 0 ? 0 : left == 1 ? word & 0xFFFFu : word;
                }
                uint32_t(&pairs)[4] = out.at[2 * h + t / 2];
                ptx::widen<T::kA>(__byte_perm(word, 0, 0x3120), low, high, pairs[2 * (t % 2)],
                                  pairs[2 * (t % 2) + 1]);
            }
        }
    }

    const MxShared& shared_;
    CodesA codes_;
    ScalesA scales_;
    uint32_t codes_at_, scales_at_;  // of the lane in a slot
    int depth_;
    bool first_lane_;
};

}  // namespace moebius::ops::sm90::mx
