#include <algorithm>

#include "moebius/ops/cross_entropy/cuda.h"
#include "moebius/ops/device_types.cuh"
#include "moebius/ptx/reduce.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int32_t kIgnored = -100;

template <class T, class D>
struct CrossEntropy {
    DeviceRows<const T> logits;
    DeviceRows<D> dlogits;  // may be null, or logits
    const int32_t* targets;
    float* token_loss;
    const float* grad_scale;  // with dlogits
    int32_t* bad;             // may be null
    int64_t vocabulary;
};

// Largest logit of a thread's share, and Σ e^(logit − largest): no logit and 0 at first.
struct RunningSum {
    float largest = -INFINITY, total = 0.0f;

    template <int N>
    __device__ void add(const float (&logit)[N]) {
        float top = logit[0];
#pragma unroll
        for (int i = 1; i < N; ++i) top = fmaxf(top, logit[i]);
        if (top > largest) {
            total *= expf(largest - top);
            largest = top;
        }
        if (largest == -INFINITY) return;  // nothing but zeros so far
#pragma unroll
        for (int i = 0; i < N; ++i) total += expf(logit[i] - largest);
    }
};

// A block a row. The row is read twice, the second time from a cache; the gradient may be written over it:
// every element is written by the thread that read it.
template <int kThreads, int N, class T, class D>
__global__ void __launch_bounds__(kThreads) cross_entropy_any(const CrossEntropy<T, D> a) {
    constexpr int64_t kStep = kThreads * N;
    const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N;
    const int32_t target = a.targets[row];
    const T* logits = a.logits.row(row);
    if (target < 0 || target >= a.vocabulary) {
        if (threadIdx.x == 0) {
            if (target != kIgnored && a.bad != nullptr) *a.bad = 1;
            a.token_loss[row] = 0.0f;
        }
        if (!a.dlogits) return;
        const float zeros[N] = {};
        for (int64_t column = first; column < a.vocabulary; column += kStep)
            ptx::store_floats<N>(a.dlogits.row(row) + column, zeros);
        return;
    }
    RunningSum own;
    const float target_logit = ptx::load_float(logits + target);
#pragma unroll 4
    for (int64_t column = first; column < a.vocabulary; column += kStep) {
        float logit[N];
        ptx::load_floats<N>(logits + column, logit);
        own.add(logit);
    }
    const float largest = ptx::block_max<kThreads>(own.largest);
    // The block's barriers in here: all have read the target's logit before one writes gradients.
    const float total = ptx::block_sum<kThreads>(own.total * expf(own.largest - largest));
    const float at_target = target_logit - largest;
    if (threadIdx.x == 0) a.token_loss[row] = logf(total) - at_target;
    if (!a.dlogits) return;
    const float scale = *a.grad_scale, factor = scale / total;
    const float of_target = scale * (expf(at_target) / total - 1.0f);
#pragma unroll 2
    for (int64_t column = first; column < a.vocabulary; column += kStep) {
        float value[N];
        ptx::load_floats<N>(logits + column, value);
#pragma unroll
        for (int i = 0; i < N; ++i)
            value[i] = column + i == target ? of_target : expf(value[i] - largest) * factor;
        ptx::store_floats<N>(a.dlogits.row(row) + column, value);
    }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, const Exec& exec) {
    const int64_t tokens = args.logits.size(0);
    const DType gradient = args.dlogits ? args.dlogits.dtype : args.logits.dtype;
    with_device_type(args.logits.dtype, [&](auto type) {
        with_device_type(gradient, [&](auto gradient_type) {
            using T = decltype(type);
            using D = decltype(gradient_type);
            const CrossEntropy<T, D> a{{args.logits.as<T>(), args.logits.stride[0]},
                                       device_rows<D>(args.dlogits),
                                       args.targets.as<int32_t>(),
                                       args.token_loss.as<float>(),
                                       device_data<float>(args.grad_scale),
                                       device_data<int32_t>(args.bad),
                                       args.logits.size(1)};
            constexpr int N = std::min(kVector<T>, kVector<D>);
            const bool vectors = rows_in_vectors(args.logits, N) && rows_in_vectors(args.dlogits, N);
            const bool narrow = a.vocabulary <= 128 * N;
            const auto kernel =
                vectors ? narrow ? cross_entropy_any<32, N, T, D> : cross_entropy_any<256, N, T, D>
                        : cross_entropy_any<256, 1, T, D>;
            launch("cross_entropy", kernel, {grid_for(tokens, 1), vectors && narrow ? 32u : 256u}, exec, a);
        });
    });
}

}  // namespace moebius::ops::cuda
