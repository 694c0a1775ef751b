#include "moebius/ops/adamw/cuda.h"
#include "moebius/ops/device_types.cuh"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 2;  // vectors of each buffer that a thread has in flight

struct Scalars {
    const float *learning_rate, *clip;
    const int64_t* step;
    const int32_t* bad;
    float beta1, beta2, eps, weight_decay;
};

// What is the same for all elements of a step.
struct Factors {
    float clip, beta1, rest1, beta2, rest2;
    float correct1, correct2;  // 1 / (1 − βᵗ)
    float learning_rate, eps, weight_decay;
    bool skip;
};

// `t` steps in fp64: in fp32, 1 − β2ᵗ of the first steps would keep four digits.
__device__ float bias_correction(float beta, int64_t t) {
    return static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(beta), static_cast<double>(t))));
}

__global__ void adamw_factors_any(const Scalars a, Factors* out) {
    const int64_t t = *a.step > 1 ? *a.step : 1;
    *out = {.clip = *a.clip,
            .beta1 = a.beta1,
            .rest1 = 1.0f - a.beta1,
            .beta2 = a.beta2,
            .rest2 = 1.0f - a.beta2,
            .correct1 = bias_correction(a.beta1, t),
            .correct2 = bias_correction(a.beta2, t),
            .learning_rate = *a.learning_rate,
            .eps = a.eps,
            .weight_decay = a.weight_decay,
            .skip = *a.bad != 0};
}

template <class G, class M, class V>
struct Range {
    float* master;
    __nv_bfloat16* weights;  // may be null
    const G* grad;
    M* m;
    V* v;
    int64_t count;
};

// The block's share from `base` on, all of it there with kWhole. Four elements an access, whatever their
// type: 16 bytes of fp32, 8 of bf16, neighbours in a warp side by side.
template <bool kWhole, int N, class G, class M, class V>
__device__ void update(const Range<G, M, V>& r, const Factors& f, int64_t base) {
    float grad[kLoads][N], m[kLoads][N], v[kLoads][N], master[kLoads][N];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int64_t first = base + (i * kThreads + static_cast<int>(threadIdx.x)) * N,
                      left = r.count - first;
        ptx::load_part<kWhole, N>(r.grad + first, left, grad[i]);
        ptx::load_part<kWhole, N>(r.m + first, left, m[i]);
        ptx::load_part<kWhole, N>(r.v + first, left, v[i]);
        ptx::load_part<kWhole, N>(r.master + first, left, master[i]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int64_t first = base + (i * kThreads + static_cast<int>(threadIdx.x)) * N,
                      left = r.count - first;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float g = grad[i][j] * f.clip, p = master[i][j];
            m[i][j] = m[i][j] * f.beta1 + g * f.rest1;
            v[i][j] = v[i][j] * f.beta2 + (g * g) * f.rest2;
            const float step = (m[i][j] * f.correct1) / (sqrtf(v[i][j] * f.correct2) + f.eps);
            master[i][j] = p - (step + p * f.weight_decay) * f.learning_rate;
        }
        ptx::store_part<kWhole, N>(r.m + first, left, m[i]);
        ptx::store_part<kWhole, N>(r.v + first, left, v[i]);
        ptx::store_part<kWhole, N>(r.master + first, left, master[i]);
        if (r.weights != nullptr) ptx::store_part<kWhole, N>(r.weights + first, left, master[i]);
    }
}

template <int N, class G, class M, class V>
__global__ void __launch_bounds__(kThreads) adamw_any(const Range<G, M, V> r, const Factors* factors) {
    const Factors f = *factors;
    if (f.skip) return;
    constexpr int64_t kShare = kThreads * kLoads * N;
    const int64_t base = blockIdx.x * kShare;
    if (base + kShare <= r.count) {
        update<true, N>(r, f, base);
    } else {
        update<false, N>(r, f, base);
    }
}

}  // namespace

void adamw(const AdamWArgs& args, const Exec& exec) {
    const Scratch scratch("adamw factors", sizeof(Factors), exec);
    auto* factors = scratch.as<Factors>();
    launch("adamw factors", adamw_factors_any, {1, 1}, exec,
           Scalars{args.learning_rate.as<float>(), args.clip.as<float>(), args.step.as<int64_t>(),
                   args.bad.as<int32_t>(), args.beta1, args.beta2, args.eps, args.weight_decay},
           factors);
    constexpr int N = 4;
    const bool vectors = starts_aligned(args.master, N) && starts_aligned(args.weights, N) &&
                         starts_aligned(args.grad, N) && starts_aligned(args.m, N) &&
                         starts_aligned(args.v, N);
    with_device_type(args.grad.dtype, [&](auto grad) {
        with_device_type(args.m.dtype, [&](auto m) {
            with_device_type(args.v.dtype, [&](auto v) {
                using G = decltype(grad);
                using M = decltype(m);
                using V = decltype(v);
                const Range<G, M, V> range{args.master.as<float>(), device_data<__nv_bfloat16>(args.weights),
                                           args.grad.as<G>(),       args.m.as<M>(),
                                           args.v.as<V>(),          args.master.numel()};
                launch("adamw", vectors ? adamw_any<N, G, M, V> : adamw_any<1, G, M, V>,
                       {grid_for(range.count, kThreads * kLoads * (vectors ? N : 1)), kThreads}, exec, range,
                       factors);
            });
        });
    });
}

}  // namespace moebius::ops::cuda
