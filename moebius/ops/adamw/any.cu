#include "moebius/ops/adamw/cuda.h"
#include "moebius/ops/device_types.cuh"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;
// Vectors of N elements of each buffer that a thread has in flight.
template <int N>
constexpr int kLoads = N == 8 ? 1 : 2;

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

// The ways in which the master is held.
struct WideMaster {
    float* master;
    __nv_bfloat16* weights;  // may be null
    static constexpr int kBytes = 4;

    template <bool kWhole, int N>
    __device__ void get(int64_t first, int64_t left, float (&value)[N]) const {
        ptx::load_part<kWhole, N>(master + first, left, value);
    }
    template <bool kWhole, int N>
    __device__ void set(int64_t first, int64_t left, const float (&value)[N]) const {
        ptx::store_part<kWhole, N>(master + first, left, value);
        if (weights != nullptr) ptx::store_part<kWhole, N>(weights + first, left, value);
    }
};
struct NoMaster {
    __nv_bfloat16* weights;
    static constexpr int kBytes = 2;

    template <bool kWhole, int N>
    __device__ void get(int64_t first, int64_t left, float (&value)[N]) const {
        ptx::load_part<kWhole, N>(weights + first, left, value);
    }
    template <bool kWhole, int N>
    __device__ void set(int64_t first, int64_t left, const float (&value)[N]) const {
        ptx::store_part<kWhole, N>(weights + first, left, value);
    }
};
struct SplitMaster {                     // as base/split_float.h
    __nv_bfloat16 *weights, *remainder;  // the remainder's bits, moved as those of the weights are
    static constexpr int kBytes = 2;

    template <bool kWhole, int N>
    __device__ void get(int64_t first, int64_t left, float (&value)[N]) const {
        float high[N], low[N];
        ptx::load_part<kWhole, N>(weights + first, left, high);
        ptx::load_part<kWhole, N>(remainder + first, left, low);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const unsigned rest = __float_as_uint(low[j]) >> 16;
            value[j] = __uint_as_float(__float_as_uint(high[j]) - ((rest & 0x8000u) << 1) + rest);
        }
    }
    template <bool kWhole, int N>
    __device__ void set(int64_t first, int64_t left, const float (&value)[N]) const {
        unsigned short high[N], low[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const unsigned word = __float_as_uint(value[j]);
            const bool is_nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
            high[j] = static_cast<unsigned short>(is_nan ? (word >> 16) | 0x0040u : (word + 0x8000u) >> 16);
            low[j] = static_cast<unsigned short>(word & (is_nan ? 0x7FFFu : 0xFFFFu));
        }
        store_halves<kWhole>(weights + first, left, high);
        store_halves<kWhole>(remainder + first, left, low);
    }
    template <int N>
    __device__ static void store_pack(unsigned short* to, const unsigned short (&half)[N]) {
        if constexpr (N == 1) {
            *to = half[0];
        } else {
            ptx::Pack<unsigned short, N> pack;
            auto* word = reinterpret_cast<unsigned*>(&pack.word);
#pragma unroll
            for (int j = 0; j < N / 2; ++j) word[j] = half[2 * j] | unsigned{half[2 * j + 1]} << 16;
            ptx::store(to, pack);
        }
    }
    template <bool kWhole, int N>
    __device__ static void store_halves(__nv_bfloat16* to, int64_t left, const unsigned short (&half)[N]) {
        auto* at = reinterpret_cast<unsigned short*>(to);
        if constexpr (kWhole) {
            store_pack(at, half);
        } else {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (j < left) at[j] = half[j];
            }
        }
    }
};

template <class P, class G, class M, class V>
struct Range {
    P master;
    const G* grad;
    M* m;
    V* v;
    int64_t count;
};

// Elements an access: 16 bytes of the widest type, neighbours in a warp side by side.
template <class P, class G, class M, class V>
constexpr int kElements = P::kBytes == 2 && sizeof(G) == 2 && sizeof(M) == 2 && sizeof(V) == 2 ? 8 : 4;

// One element's update. Spelled out, so that every form of the master rounds alike.
__device__ __forceinline__ void step(const Factors& f, float grad, float& m, float& v, float& p) {
    const float g = grad * f.clip;
    m = fmaf(m, f.beta1, __fmul_rn(g, f.rest1));
    v = fmaf(v, f.beta2, __fmul_rn(__fmul_rn(g, g), f.rest2));
    const float by = __fmul_rn(m, f.correct1) / __fadd_rn(sqrtf(__fmul_rn(v, f.correct2)), f.eps);
    p = fmaf(-fmaf(p, f.weight_decay, by), f.learning_rate, p);
}

// The block's share from `base` on, all of it there with kWhole.
template <bool kWhole, int N, class P, class G, class M, class V>
__device__ void update(const Range<P, G, M, V>& r, const Factors& f, int64_t base) {
    float grad[kLoads<N>][N], m[kLoads<N>][N], v[kLoads<N>][N], master[kLoads<N>][N];
#pragma unroll
    for (int i = 0; i < kLoads<N>; ++i) {
        const int64_t first = base + (i * kThreads + static_cast<int>(threadIdx.x)) * N,
                      left = r.count - first;
        ptx::load_part<kWhole, N>(r.grad + first, left, grad[i]);
        ptx::load_part<kWhole, N>(r.m + first, left, m[i]);
        ptx::load_part<kWhole, N>(r.v + first, left, v[i]);
        r.master.template get<kWhole>(first, left, master[i]);
    }
#pragma unroll
    for (int i = 0; i < kLoads<N>; ++i) {
        const int64_t first = base + (i * kThreads + static_cast<int>(threadIdx.x)) * N,
                      left = r.count - first;
#pragma unroll
        for (int j = 0; j < N; ++j) step(f, grad[i][j], m[i][j], v[i][j], master[i][j]);
        ptx::store_part<kWhole, N>(r.m + first, left, m[i]);
        ptx::store_part<kWhole, N>(r.v + first, left, v[i]);
        r.master.template set<kWhole>(first, left, master[i]);
    }
}

template <int N, class P, class G, class M, class V>
__global__ void __launch_bounds__(kThreads) adamw_any(const Range<P, G, M, V> r, const Factors* factors) {
    const Factors f = *factors;
    if (f.skip) return;
    constexpr int64_t kShare = kThreads * kLoads<N> * N;
    const int64_t base = blockIdx.x * kShare;
    if (base + kShare <= r.count) {
        update<true, N>(r, f, base);
    } else {
        update<false, N>(r, f, base);
    }
}

// Calls f with the form in which these arguments hold the master.
template <class F>
void with_master(const AdamWArgs& a, F&& f) {
    auto* weights = device_data<__nv_bfloat16>(a.weights);
    if (a.master) return f(WideMaster{a.master.as<float>(), weights});
    if (a.remainder) return f(SplitMaster{weights, static_cast<__nv_bfloat16*>(a.remainder.data)});
    f(NoMaster{weights});
}

template <int N>
bool all_aligned(const AdamWArgs& a) {
    return starts_aligned(a.master, N) && starts_aligned(a.weights, N) && starts_aligned(a.remainder, N) &&
           starts_aligned(a.grad, N) && starts_aligned(a.m, N) && starts_aligned(a.v, N);
}

}  // namespace

void adamw(const AdamWArgs& args, const Exec& exec) {
    const Scratch scratch("adamw factors", sizeof(Factors), exec);
    auto* factors = scratch.as<Factors>();
    launch("adamw factors", adamw_factors_any, {1, 1}, exec,
           Scalars{args.learning_rate.as<float>(), args.clip.as<float>(), args.step.as<int64_t>(),
                   args.bad.as<int32_t>(), args.beta1, args.beta2, args.eps, args.weight_decay},
           factors);
    const auto run = [&]<class P, class G, class M, class V>(const Range<P, G, M, V>& range) {
        constexpr int N = kElements<P, G, M, V>;
        const bool vectors = all_aligned<N>(args);
        launch("adamw", vectors ? adamw_any<N, P, G, M, V> : adamw_any<1, P, G, M, V>,
               {grid_for(range.count, kThreads * (vectors ? kLoads<N> * N : kLoads<1>)), kThreads}, exec,
               range, factors);
    };
    with_device_type(args.grad.dtype, [&](auto grad) {
        with_device_type(args.m.dtype, [&](auto m) {
            with_device_type(args.v.dtype, [&](auto v) {
                with_master(args, [&](auto master) {
                    using R = Range<decltype(master), decltype(grad), decltype(m), decltype(v)>;
                    run(R{master, args.grad.as<decltype(grad)>(), args.m.as<decltype(m)>(),
                          args.v.as<decltype(v)>(), args.grad.numel()});
                });
            });
        });
    });
}

}  // namespace moebius::ops::cuda
