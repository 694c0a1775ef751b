#include <type_traits>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/permute/cuda.h"
#include "moebius/ptx/reduce.h"
#include "moebius/ptx/rows_in_use.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kLoads = 4;  // vectors a thread has in flight

template <class T>
struct Gather {
    DeviceRows<const T> x;
    DeviceRows<T> out;
    DeviceRows<const T> dot_with;
    const int32_t* source;
    ptx::SplitSizes sizes;
    int64_t copies, topk, hidden;
    const float* weights;  // or null
    float* dots;           // or null
};

constexpr int kRowsEach = 4;  // a block's: what they are is read ahead

template <int kThreads, int N, class T>
__device__ void gather_row(const Gather<T>& a, int64_t row, int64_t named) {
    const int64_t copy = named >= 0 && named < a.copies ? named : 0;
    const T* x = a.x.row(copy / a.topk);
    const T* other = a.dots != nullptr ? a.dot_with.row(row) : nullptr;
    T* out = a.out.row(row);
    const float weight = a.weights != nullptr ? a.weights[copy] : 1.0f;
    float dot = 0.0f;
    constexpr int64_t kStep = kThreads * N;
    for (int64_t base = int64_t{threadIdx.x} * N; base < a.hidden; base += kLoads * kStep) {
        ptx::Pack<T, N> value[kLoads], factor[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int64_t column = base + i * kStep;
            if (column >= a.hidden) break;
            value[i] = ptx::load<N>(x + column);
            if (other != nullptr) factor[i] = ptx::load<N>(other + column);
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int64_t column = base + i * kStep;
            if (column >= a.hidden) break;
            float number[N];
            ptx::unpack(value[i], number);
            if (other != nullptr) {
                float along[N];
                ptx::unpack(factor[i], along);
#pragma unroll
                for (int j = 0; j < N; ++j) dot += number[j] * along[j];
            }
            if (a.weights != nullptr) {
#pragma unroll
                for (int j = 0; j < N; ++j) number[j] *= weight;
                value[i] = ptx::pack<T>(number);
            }
            ptx::store(out + column, value[i]);
        }
    }
    if (a.dots == nullptr) return;
    dot = ptx::block_sum<kThreads>(dot);
    if (threadIdx.x == 0 && named == copy) a.dots[copy] = dot;
}

// A block takes kRowsEach rows. Of rows past the sum of the sizes nothing is read or written.
template <int kThreads, int N, class T>
__global__ void __launch_bounds__(kThreads) gather_rows_any(const Gather<T> a) {
    const int64_t used = ptx::rows_in_use(a.sizes), first = int64_t{blockIdx.x} * kRowsEach;
    const int rows = used - first < kRowsEach ? static_cast<int>(used - first) : kRowsEach;
    int32_t named[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
        if (i < rows) named[i] = a.source[first + i];
    }
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
        if (i < rows) gather_row<kThreads, N>(a, first + i, named[i]);
    }
}

template <class T>
struct Combine {
    DeviceRows<const T> y;
    DeviceRows<T> out;
    const int32_t* row_of;
    int64_t tokens, rows, topk, hidden;
    const float* weights;  // or null
};

// threadIdx.x: vectors of a token's row; threadIdx.y: tokens. Slots in order, kLoads rows in flight.
template <int N, class T>
__global__ void combine_rows_any(const Combine<T> a) {
    const int64_t token = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (token >= a.tokens) return;
    const int32_t* row_of = a.row_of + token * a.topk;
    const float* weights = a.weights != nullptr ? a.weights + token * a.topk : nullptr;
    for (int64_t column = int64_t{threadIdx.x} * N; column < a.hidden; column += int64_t{blockDim.x} * N) {
        float total[N] = {};
        for (int64_t base = 0; base < a.topk; base += kLoads) {
            ptx::Pack<T, N> value[kLoads];
            float weight[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                if (base + i >= a.topk) break;
                const int64_t named = row_of[base + i], row = named >= 0 && named < a.rows ? named : 0;
                value[i] = ptx::load<N>(a.y.row(row) + column);
                weight[i] = weights != nullptr ? weights[base + i] : 1.0f;
            }
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                if (base + i >= a.topk) break;
                float number[N];
                ptx::unpack(value[i], number);
#pragma unroll
                for (int j = 0; j < N; ++j) total[j] += weight[i] * number[j];
            }
        }
        ptx::store(a.out.row(token) + column, ptx::pack<T>(total));
    }
}

constexpr int kScalarThreads = 256;

__global__ void __launch_bounds__(kScalarThreads)
    permute_scalars_any(const float* values, const int32_t* source, float* out, int64_t count, bool back) {
    const int64_t row = int64_t{blockIdx.x} * kScalarThreads + threadIdx.x;
    if (row >= count) return;
    const int64_t copy = source[row];
    if (copy < 0 || copy >= count) return;
    if (back) {
        out[copy] = values[row];
    } else {
        out[row] = values[copy];
    }
}

}  // namespace

void gather_rows(const GatherRowsArgs& args, const Exec& exec) {
    const int64_t rows = args.out.size(0), hidden = args.x.size(1);
    if (hidden == 0 && !args.dots) return;
    const View& splits = args.split_sizes;
    with_device_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const Gather<T> a{
            .x = {args.x.as<T>(), args.x.stride[0]},
            .out = device_rows<T>(args.out),
            .dot_with = {device_data<T>(args.dot_with), args.dot_with.stride[0]},
            .source = args.source.as<int32_t>(),
            .sizes = {splits.data, splits.dtype == DType::I64, splits ? splits.numel() : 0, rows},
            .copies = args.x.size(0) * args.topk,
            .topk = args.topk,
            .hidden = hidden,
            .weights = device_data<float>(args.weights),
            .dots = device_data<float>(args.dots)};
        constexpr int N = kVector<T>;
        const bool vectors =
            rows_in_vectors(args.x, N) && rows_in_vectors(args.out, N) && rows_in_vectors(args.dot_with, N);
        const bool narrow = hidden <= 32 * kLoads * (vectors ? N : 1);
        const auto kernel = vectors  ? narrow ? gather_rows_any<32, N, T> : gather_rows_any<128, N, T>
                             : narrow ? gather_rows_any<32, 1, T>
                                     : gather_rows_any<128, 1, T>;
        launch("gather_rows", kernel, {grid_for(rows, kRowsEach), narrow ? 32u : 128u}, exec, a);
    });
}

void combine_rows(const CombineRowsArgs& args, const Exec& exec) {
    const int64_t tokens = args.out.size(0), hidden = args.out.size(1);
    if (hidden == 0) return;
    with_device_type(args.y.dtype, [&](auto type) {
        using T = decltype(type);
        const Combine<T> a{.y = {args.y.as<T>(), args.y.stride[0]},
                           .out = device_rows<T>(args.out),
                           .row_of = args.row_of.as<int32_t>(),
                           .tokens = tokens,
                           .rows = args.y.size(0),
                           .topk = args.y.size(0) > 0 ? args.row_of.size(1) : 0,
                           .hidden = hidden,
                           .weights = device_data<float>(args.weights)};
        constexpr int N = kVector<T>;
        const bool vectors = rows_in_vectors(args.y, N) && rows_in_vectors(args.out, N);
        const dim3 block = row_block(hidden, vectors ? N : 1);
        launch("combine_rows", vectors ? combine_rows_any<N, T> : combine_rows_any<1, T>,
               {grid_for(tokens, block.y), block}, exec, a);
    });
}

void permute_scalars(const PermuteScalarsArgs& args, const Exec& exec) {
    const int64_t count = args.source.numel();
    launch("permute_scalars", permute_scalars_any, {grid_for(count, kScalarThreads), kScalarThreads}, exec,
           args.values.as<float>(), args.source.as<int32_t>(), args.out.as<float>(), count, args.back);
}

}  // namespace moebius::ops::cuda
