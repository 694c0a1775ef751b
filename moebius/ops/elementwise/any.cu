#include <algorithm>
#include <type_traits>

#include "moebius/base/philox.h"
#include "moebius/ops/device_types.cuh"
#include "moebius/ops/elementwise/cuda.h"
#include "moebius/ptx/philox.h"
#include "moebius/ptx/reduce.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // vectors a thread has in flight

// Calls f(whether the block's share is all there, its first element).
template <int N, class F>
__device__ void with_share(int64_t count, F&& f) {
    constexpr int64_t kShare = kThreads * kLoads * N;
    const int64_t base = blockIdx.x * kShare;
    if (base + kShare <= count) return f(std::true_type{}, base);
    f(std::false_type{}, base);
}

// The first element of this thread's vector `i` of a share: neighbours in a warp read neighbouring vectors.
template <int N>
__device__ int64_t first_element(int64_t base, int i) {
    return base + (i * kThreads + static_cast<int>(threadIdx.x)) * N;
}

template <int N, class From, class To>
__global__ void __launch_bounds__(kThreads) convert_any(const From* x, To* out, int64_t count) {
    with_share<N>(count, [&](auto whole, int64_t base) {
        constexpr bool kWhole = decltype(whole)::value;
        float value[kLoads][N];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int64_t first = first_element<N>(base, i);
            ptx::load_part<kWhole, N>(x + first, count - first, value[i]);
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int64_t first = first_element<N>(base, i);
            ptx::store_part<kWhole, N>(out + first, count - first, value[i]);
        }
    });
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads) add_any(const T* x, const T* y, T* out, int64_t count) {
    with_share<N>(count, [&](auto whole, int64_t base) {
        constexpr bool kWhole = decltype(whole)::value;
        float a[kLoads][N], b[kLoads][N];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int64_t first = first_element<N>(base, i);
            ptx::load_part<kWhole, N>(x + first, count - first, a[i]);
            ptx::load_part<kWhole, N>(y + first, count - first, b[i]);
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int64_t first = first_element<N>(base, i);
#pragma unroll
            for (int j = 0; j < N; ++j) a[i][j] += b[i][j];
            ptx::store_part<kWhole, N>(out + first, count - first, a[i]);
        }
    });
}

// The factor in double without contraction: the same bits as on the CPU.
template <class T>
__global__ void __launch_bounds__(kThreads) jitter_any(const T* x, T* out, int64_t count, double epsilon,
                                                       ptx::PhiloxStream random, int64_t first_index) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= count) return;
    const double unit = ptx::philox_uniform(random, static_cast<unsigned long long>(first_index + i));
    const double sway = __dmul_rn(epsilon, __dadd_rn(__dmul_rn(2.0, unit), -1.0));
    ptx::store_float(out + i, ptx::load_float(x + i) * static_cast<float>(__dadd_rn(1.0, sway)));
}

// Elements of a block at least, and blocks at most: from the count alone.
constexpr int64_t kLeastSum = 4096, kMostSums = 1024;

__global__ void __launch_bounds__(kThreads) sum_parts_any(const float* x, int64_t count, double* parts) {
    double total = 0;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
         i += int64_t{gridDim.x} * kThreads)
        total += static_cast<double>(x[i]);
    total = ptx::block_sum<kThreads>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}
__global__ void __launch_bounds__(kThreads) sum_into_any(const double* parts, int64_t count, float* out) {
    double total = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) total += parts[i];
    total = ptx::block_sum<kThreads>(total);
    if (threadIdx.x == 0) *out = static_cast<float>(static_cast<double>(*out) + total);
}

}  // namespace

void convert(const ConvertArgs& args, const Exec& exec) {
    const int64_t count = args.x.numel();
    with_device_type(args.x.dtype, [&](auto from) {
        with_device_type(args.out.dtype, [&](auto to) {
            using From = decltype(from);
            using To = decltype(to);
            constexpr int N = kVector<From> < kVector<To> ? kVector<From> : kVector<To>;
            const bool vectors = starts_aligned(args.x, N) && starts_aligned(args.out, N);
            launch("convert", vectors ? convert_any<N, From, To> : convert_any<1, From, To>,
                   {grid_for(count, kThreads * kLoads * (vectors ? N : 1)), kThreads}, exec,
                   args.x.as<From>(), args.out.as<To>(), count);
        });
    });
}

void add(const AddArgs& args, const Exec& exec) {
    const int64_t count = args.x.numel();
    with_device_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = kVector<T>;
        const bool vectors =
            starts_aligned(args.x, N) && starts_aligned(args.y, N) && starts_aligned(args.out, N);
        launch("add", vectors ? add_any<N, T> : add_any<1, T>,
               {grid_for(count, kThreads * kLoads * (vectors ? N : 1)), kThreads}, exec, args.x.as<T>(),
               args.y.as<T>(), args.out.as<T>(), count);
    });
}

void jitter(const JitterArgs& args, const Exec& exec) {
    const Philox random(args.seed, args.purpose);
    const int64_t count = args.x.numel();
    with_device_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        launch("jitter", jitter_any<T>, {grid_for(count, kThreads), kThreads}, exec, args.x.as<T>(),
               args.out.as<T>(), count, static_cast<double>(args.epsilon),
               ptx::PhiloxStream{args.seed, random.stream()}, args.first_index);
    });
}

void sum_into(const SumArgs& args, const Exec& exec) {
    const int64_t count = args.x.numel();
    const int64_t blocks = std::clamp<int64_t>(ceil_div(count, kLeastSum), 1, kMostSums);
    const Scratch parts("sum_into", static_cast<size_t>(blocks) * sizeof(double), exec);
    launch("sum_into parts", sum_parts_any, {dim3(static_cast<unsigned>(blocks)), kThreads}, exec,
           args.x.as<float>(), count, parts.as<double>());
    launch("sum_into", sum_into_any, {1, kThreads}, exec, parts.as<double>(), blocks, args.out.as<float>());
}

}  // namespace moebius::ops::cuda
