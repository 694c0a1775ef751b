// What quantize and the operations that quantize a gated activation have in common where a tile is two times
// 128 columns of 128 rows of one expert: its numbers, in bf16, to codes in both directions. The sides lie
// `apart` in the quantized tensor: gates and ups, or neighbours. A block along a row and one down a column
// lie whole in a side.
//
// First by rows, sixteen a warp, half a warp each, eight columns of either side a thread: the row's largest
// magnitudes and its codes, while the columns' largest magnitudes are found and the numbers are left in
// shared memory. Then by columns: codes that lie transposed.
#pragma once

#include <type_traits>

#include "moebius/ops/quantize/any_pairs_mx.cuh"

namespace moebius::ops::cuda::pairs {

// Finds the scales of a thread's rows under Line128, one row after the other.
class LineRows {
  public:
    __device__ __forceinline__ LineRows(const Quantize& q, const Place& at) {
        const int64_t row = at.first + at.row_of(0), block = (at.column + at.chunk / 8 * at.apart) / kTile;
        to_ = static_cast<float*>(q.row.scale) + block * ((q.source.rows + 3) / 4 * 4) + row;
    }
    // By whole warps. One half of the lanes finds a side's, the other the other's.
    __device__ __forceinline__ void find(const Quantize& q, const Place& at, bool exists,
                                         const Eights& magnitudes, float (&scale)[2]) const {
        uint32_t both = most_of_sides(magnitudes);
#pragma unroll
        for (int step = 8; step > 0; step /= 2) both = ptx::max_bf16(both, __shfl_xor_sync(~0u, both, step));
        both = ptx::max_bf16(both, 0u);  // of NaN alone
        const bool second = at.chunk >= 8;
        const tiles::Scale own = tiles::scale_of(q, second ? ptx::high_bf16(both) : ptx::low_bf16(both));
        const float other = __shfl_xor_sync(~0u, own.scale, 8);
        scale[0] = second ? other : own.scale;
        scale[1] = second ? own.scale : other;
        if (at.chunk % 8 == 0 && exists) *to_ = own.inverse;
    }
    __device__ __forceinline__ void advance(const Quantize&) {
        to_ += 2;
    }

  private:
    float* to_;  // of the side whose scale the thread finds
};

// Writes a thread's rows of a tile, one after the other.
template <Blocks kBlocks, bool kE5M2>
class RowWriter {
    static constexpr bool kMx = kBlocks == Blocks::Mx;

  public:
    __device__ __forceinline__ RowWriter(const Quantize& q, const Place& at, const Shared& shared)
        : place_(place_of(shared, at.row_of(0), at.chunk)), scales_(q, at) {
        codes_ = q.row.data + (at.first + at.row_of(0)) * q.row.stride + at.column + 8 * at.chunk;
    }
    // Takes the numbers' magnitudes into `most`. By whole warps, zeros where nothing `exists`.
    __device__ __forceinline__ void put(const Quantize& q, const Place& at, bool exists,
                                        const Eights& numbers, Eights& most, float tensor_scale) {
        const Eights magnitudes = magnitudes_of(numbers, most);
        if (q.column.data != nullptr) {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const uint32_t(&p)[4] = numbers.pairs[side];
                ptx::store_shared(place_ + side * 2 * kBoxBytes, uint4{p[0], p[1], p[2], p[3]});
            }
        }
        if (q.row.data != nullptr) {
            if constexpr (kMx) {
                PowersOfTwo scale[2];
                scales_.template find<kE5M2>(q, at, exists, magnitudes, scale);
                write_codes(at, exists, numbers, scale);
            } else {
                float scale[2] = {tensor_scale, tensor_scale};
                if constexpr (kBlocks == Blocks::Line128) scales_.find(q, at, exists, magnitudes, scale);
                write_codes(at, exists, numbers, scale);
            }
        }
        codes_ += 2 * q.row.stride;
        scales_.advance(q);
        place_ += 2 * Shared::kRowBytes;
    }

  private:
    template <class Scale>
    __device__ __forceinline__ void write_codes(const Place& at, bool exists, const Eights& numbers,
                                                const Scale (&scale)[2]) const {
        if (!exists) return;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            uint32_t codes[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) codes[i] = code_pair<kE5M2>(numbers.pairs[side][i], scale[side]);
            *reinterpret_cast<uint2*>(codes_ + side * at.apart) = {codes[0] | codes[1] << 16,
                                                                   codes[2] | codes[3] << 16};
        }
    }

    uint32_t place_;
    uint8_t* codes_;
    std::conditional_t<kMx, MxRows, LineRows> scales_;
};

// By the whole block, after its rows: the scales of the tile's columns. Returns the largest magnitude of the
// thread's.
template <int kSides>
__device__ __forceinline__ float find_column_scales(const Quantize& q, const Place& at,
                                                    EightsOf<kSides>& most, SharedOf<kSides>& shared) {
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t& own = most.pairs[side][i];
            own = ptx::max_bf16(own, __shfl_xor_sync(~0u, own, 16));
            if (at.half == 0) shared.most[at.warp][64 * side + 4 * at.chunk + i] = own;
            own = 0;
        }
    }
    __syncthreads();  // the numbers, and what each warp found
    const int inner = static_cast<int>(threadIdx.x);
    static_assert(kTileThreads == 2 * kTile);
    if (inner >= kSides * kTile) return 0;
    uint32_t pair = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) pair = ptx::max_bf16(pair, shared.most[warp][inner / 2]);
    const float amax = inner % 2 == 0 ? ptx::low_bf16(pair) : ptx::high_bf16(pair);
    if (q.column.data == nullptr) return amax;
    const tiles::Scale scale = tiles::scale_of(q, amax);
    shared.scale[inner] = scale.scale;
    static_cast<float*>(q.column.scale)[at.row_block * q.source.columns + at.column + inner % kTile +
                                        inner / kTile * at.apart] = scale.inverse;
    return amax;
}

// By columns, eight a warp at a time: a lane has column lane / 4 of these, rows 16·(lane % 4) … of each 64.
template <bool kE5M2, bool kFound, int kSides>
__device__ __forceinline__ void write_columns(const Quantize& q, const Place& at,
                                              const SharedOf<kSides>& shared, float tensor_scale) {
    // Of matrix m, row 2·n + t is row 16·n + 2·m + t of the 64.
    const uint32_t from = place_of(shared, at.lane % 8 / 2 * 16 + at.lane / 8 * 2 + at.lane % 2, at.warp);
    const int inner = 8 * at.warp + at.lane / 4;
    uint8_t* to =
        q.column.data + (at.column + inner) * q.column.stride + at.row_block * kTile + at.lane % 4 * 16;
#pragma unroll
    for (int box = 0; box < 2 * kSides; ++box) {  // of 64 columns, two a side
        const float scale = kFound ? shared.scale[64 * box + inner] : tensor_scale;
        uint8_t* column = to + (box % 2 * 64 + box / 2 * at.apart) * q.column.stride;
#pragma unroll
        for (int group = 0; group < 2; ++group) {
            uint32_t words[4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint32_t pairs[4];
                constexpr int kRowBytes = SharedOf<kSides>::kRowBytes;
                ptx::load_matrices_transposed(from + (64 * group + 8 * half) * kRowBytes + box * kBoxBytes,
                                              pairs[0], pairs[1], pairs[2], pairs[3]);
                words[2 * half] = code_pair<kE5M2>(pairs[0], scale) | code_pair<kE5M2>(pairs[1], scale) << 16;
                words[2 * half + 1] = code_pair<kE5M2>(pairs[2], scale) | code_pair<kE5M2>(pairs[3], scale)
                                                                              << 16;
            }
            *reinterpret_cast<uint4*>(column + 64 * group) = uint4{words[0], words[1], words[2], words[3]};
        }
    }
}

// By the whole block, after the tile's rows. Line128 and Mx take the largest magnitude into `amax` and clear
// `most`; of Tensor `most` goes on over the block's tiles.
template <Blocks kBlocks, bool kE5M2, int kSides>
__device__ __forceinline__ void finish_columns(const Quantize& q, const Place& at, EightsOf<kSides>& most,
                                               float& amax, float tensor_scale, SharedOf<kSides>& shared) {
    if constexpr (kBlocks == Blocks::Mx) {
        amax = fmaxf(amax, largest(most));
        if (q.column.data != nullptr) write_mx_columns<kE5M2>(q, at, most, shared);
        most = {};
    } else {
        if constexpr (kBlocks == Blocks::Line128) amax = fmaxf(amax, find_column_scales(q, at, most, shared));
        __syncthreads();  // the columns' scales, or the numbers
        if (q.column.data != nullptr)
            write_columns<kE5M2, kBlocks == Blocks::Line128>(q, at, shared, tensor_scale);
    }
}
// The block's next tile may follow.
template <Blocks kBlocks, bool kE5M2>
__device__ __forceinline__ void finish_tile(const Quantize& q, const Place& at, Eights& most, float& amax,
                                            float tensor_scale, Shared& shared) {
    finish_columns<kBlocks, kE5M2>(q, at, most, amax, tensor_scale, shared);
    if constexpr (kBlocks != Blocks::Mx) __syncthreads();  // the numbers have been read
}
template <Blocks kBlocks>
__device__ __forceinline__ void observe(const Quantize& q, const Place& at, const Eights& most, float amax) {
    if (q.observed != nullptr)
        tiles::observe(q.observed, at.expert, kBlocks == Blocks::Tensor ? largest(most) : amax);
}

// Calls f(kind of blocks, whether E5M2) as constants.
template <class F>
void with_codes(const Format& format, F&& f) {
    const auto with_element = [&](auto blocks) {
        if (format.element == DType::F8E5M2) return f(blocks, std::true_type{});
        f(blocks, std::false_type{});
    };
    if (format.scale == ScaleKind::Tensor)
        return with_element(std::integral_constant<Blocks, Blocks::Tensor>{});
    if (format.scale == ScaleKind::MX32) return with_element(std::integral_constant<Blocks, Blocks::Mx>{});
    with_element(std::integral_constant<Blocks, Blocks::Line128>{});
}

}  // namespace moebius::ops::cuda::pairs
