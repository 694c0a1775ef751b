#include <algorithm>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/global_norm/cuda.h"
#include "moebius/ptx/reduce.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;             // vectors a thread has in flight
constexpr int64_t kMostParts = 4096;  // blocks; more elements make longer walks

template <bool kWhole, int N, class T>
__device__ void add_squares(const T* values, int64_t count, int64_t base, double (&total)[2]) {
    float value[kLoads][N];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int64_t first = base + (i * kThreads + static_cast<int>(threadIdx.x)) * N;
        ptx::load_part<kWhole, N>(values + first, count - first, value[i]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const double x = value[i][j];
            total[i % 2] += x * x;
        }
    }
}

// In fp64, where the square of every finite float is finite. A thread's walk depends on the count alone.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) squares_any(const T* values, int64_t count, double* parts) {
    constexpr int64_t kShare = kThreads * kLoads * N;
    double total[2] = {};
    for (int64_t base = blockIdx.x * kShare; base < count; base += gridDim.x * kShare) {
        if (base + kShare <= count) {
            add_squares<true, N>(values, count, base, total);
        } else {
            add_squares<false, N>(values, count, base, total);
        }
    }
    const double sum = ptx::block_sum<kThreads>(total[0] + total[1]);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_squares_any(const double* parts, int64_t count, double* out) {
    double total = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) total += parts[i];
    total = ptx::block_sum<kThreads>(total);
    if (threadIdx.x == 0) *out += total;
}

struct ClipFactor {
    const double* sum_of_squares;
    const float *grad_factor, *loss;  // may be null
    float max_norm;
    float *norm, *clip;
    int32_t* bad;
};

__global__ void clip_factor_any(const ClipFactor a) {
    const double factor = a.grad_factor != nullptr ? static_cast<double>(*a.grad_factor) : 1.0;
    const double norm = factor * sqrt(*a.sum_of_squares);
    const auto rounded = static_cast<float>(norm);
    *a.norm = rounded;
    const bool finite = isfinite(rounded) && (a.loss == nullptr || isfinite(*a.loss));
    if (!finite) *a.bad = 1;
    const double limit = a.max_norm > 0 ? static_cast<double>(a.max_norm) / (norm + 1e-6) : 1.0;
    *a.clip = finite ? static_cast<float>(factor * (limit < 1.0 ? limit : 1.0)) : 0.0f;
}

}  // namespace

void sum_of_squares(const SumOfSquaresArgs& args, const Exec& exec) {
    const int64_t count = args.values.numel();
    with_device_type(args.values.dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = kVector<T>;
        const bool vectors = starts_aligned(args.values, N);
        const int64_t each = int64_t{kThreads} * kLoads * (vectors ? N : 1);
        const int64_t blocks = std::clamp<int64_t>(ceil_div(count, each), 1, kMostParts);
        const Scratch parts("sum_of_squares", static_cast<size_t>(blocks) * sizeof(double), exec);
        launch("sum_of_squares", vectors ? squares_any<N, T> : squares_any<1, T>,
               {dim3(static_cast<unsigned>(blocks)), kThreads}, exec, args.values.as<T>(), count,
               parts.as<double>());
        launch("sum_of_squares parts", add_squares_any, {1, kThreads}, exec, parts.as<double>(), blocks,
               args.sum_of_squares.as<double>());
    });
}

void clip_factor(const ClipFactorArgs& args, const Exec& exec) {
    launch("clip_factor", clip_factor_any, {1, 1}, exec,
           ClipFactor{args.sum_of_squares.as<double>(), device_data<float>(args.grad_factor),
                      device_data<float>(args.loss), args.max_norm, args.norm.as<float>(),
                      args.clip.as<float>(), args.bad.as<int32_t>()});
}

}  // namespace moebius::ops::cuda
