// The gated activations' arithmetic on one (gate, up) pair. One definition for scaled_glu and for the fused
// epilogues of grouped_mlp, which must give the same bits: sums and products are spelled as intrinsics, so
// that no kernel contracts them otherwise than another. Order of operations: moebius/ops/swiglu/cpu_body.h.
#pragma once

namespace moebius::ptx {

struct GluConstants {
    float limit, alpha, offset;  // of the clamped QuickGeGLU
};

// y = s · value · up.
struct GluPair {
    float value;          // a·σ(α a), the gate clamped
    float derivative;     // of `value` by the gate; zero outside the clamp
    float up;             // clamped and offset
    float up_derivative;  // of `up`: 1, or 0 outside the clamp
};

// 1 / (1 + e^−x). Precise: within 2 ulp, for fp32 data. Else within 2^−21, for bf16 data, whose rounding is
// 2^−9.
template <bool kPrecise>
__device__ __forceinline__ float sigmoid(float x) {
    if constexpr (kPrecise) {
        return __frcp_rn(__fadd_rn(1.0f, expf(-x)));
    } else {
        float power, reciprocal;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, -1.44269504f)));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(__fadd_rn(1.0f, power)));
        return reciprocal;
    }
}

// The same of several values, for bf16 data: step by step, so that their latencies overlap where a warp is
// alone on its scheduler.
template <int kCount>
__device__ __forceinline__ void sigmoids(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(__fmul_rn(x[i], -1.44269504f)));
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(__fadd_rn(1.0f, x[i])));
}

// What the sigmoid is taken of.
template <bool kClamped>
__device__ __forceinline__ float sigmoid_argument(float gate, const GluConstants& constants) {
    if constexpr (!kClamped) return gate;
    return __fmul_rn(gate > constants.limit ? constants.limit : gate, constants.alpha);
}

// s: the sigmoid.
template <bool kClamped>
__device__ __forceinline__ GluPair glu_pair_of(float s, float gate, float up, const GluConstants& constants) {
    if constexpr (!kClamped) {
        const float value = __fmul_rn(gate, s);
        return {value, __fmaf_rn(value, __fsub_rn(1.0f, s), s), up, 1.0f};
    } else {
        const float limit = constants.limit;
        const float a = gate > limit ? limit : gate;
        const float u = up > limit ? limit : up < -limit ? -limit : up;
        const float value = __fmul_rn(a, s);
        const float derivative = __fmaf_rn(__fmul_rn(value, constants.alpha), __fsub_rn(1.0f, s), s);
        return {value, gate <= limit ? derivative : 0.0f, __fadd_rn(u, constants.offset),
                up >= -limit && up <= limit ? 1.0f : 0.0f};
    }
}

// Every kernel on bf16 data takes kPrecise = false, every kernel on fp32 data true.
template <bool kClamped, bool kPrecise>
__device__ __forceinline__ GluPair glu_pair(float gate, float up, const GluConstants& constants) {
    return glu_pair_of<kClamped>(sigmoid<kPrecise>(sigmoid_argument<kClamped>(gate, constants)), gate, up,
                                 constants);
}

__device__ __forceinline__ float glu_forward(const GluPair& pair, float scale) {
    return __fmul_rn(scale, __fmul_rn(pair.value, pair.up));
}

struct GluGradients {
    float dgate, dup;
    float dscale;      // this pair's term of Σ dy · value · up
    float activation;  // what forward gives
};

template <bool kClamped>
__device__ __forceinline__ GluGradients glu_backward(const GluPair& pair, float dy, float scale) {
    const float scaled = __fmul_rn(dy, scale);
    const float product = __fmul_rn(pair.value, pair.up);
    const float dup = __fmul_rn(scaled, pair.value);
    return {__fmul_rn(__fmul_rn(scaled, pair.up), pair.derivative),
            kClamped ? __fmul_rn(dup, pair.up_derivative) : dup, __fmul_rn(dy, product),
            __fmul_rn(scale, product)};
}

}  // namespace moebius::ptx
