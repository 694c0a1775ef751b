// A token a warp: lane l holds the logits of experts l, l + 32, …, in `kEach` registers. Experts past the
// last have −∞ for a logit. Every lane gets a sum's bits.
#pragma once

#include <type_traits>

#include "moebius/ops/router/cuda.h"
#include "moebius/ptx/reduce.h"

namespace moebius::ops::cuda {

inline constexpr int kRouterWarps = 8, kRouterThreads = 32 * kRouterWarps;

__device__ inline int lane_index() {
    return static_cast<int>(threadIdx.x % 32);
}
__device__ inline int warp_index() {
    return static_cast<int>(threadIdx.x / 32);
}

template <int kEach>
__device__ inline void load_logits(const float* row, int64_t experts, float (&x)[kEach]) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        x[j] = e < experts ? row[e] : -INFINITY;
    }
}

// Σ of scores / e^shift, which the scores themselves are multiples of: no finite logit makes it 0.
struct ScoreSum {
    float sum, shift;
};

template <int kEach>
__device__ inline float largest_logit(const float (&x)[kEach]) {
    float most = x[0];
#pragma unroll
    for (int j = 1; j < kEach; ++j) most = fmaxf(most, x[j]);
    return ptx::warp_max(most);
}

// score[j] = e^(x − max x), 0 past the last expert.
template <int kEach>
__device__ inline ScoreSum softmax_scores(const float (&x)[kEach], int64_t experts, float (&score)[kEach]) {
    const float most = largest_logit(x);
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        score[j] = lane_index() + 32 * j < experts ? expf(x[j] - most) : 0.0f;
        total += score[j];
    }
    return {ptx::warp_sum(total), most};
}

// σ(x) / e^shift: σ(x) = e^x / (1 + e^x) itself would underflow where all logits are far below 0.
__device__ inline float shifted_sigmoid(float x, float shift) {
    const float small = expf(x > 0.0f ? -x : x);  // e^−|x|
    return (x > 0.0f ? 1.0f : expf(x - shift)) / (1.0f + small);
}
__device__ inline float plain_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// score[j] = σ(x) / e^shift, shift = min(0, max x); 0 past the last expert.
template <int kEach>
__device__ inline ScoreSum sigmoid_scores(const float (&x)[kEach], int64_t experts, float (&score)[kEach]) {
    const float shift = fminf(largest_logit(x), 0.0f);
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        score[j] = lane_index() + 32 * j < experts ? shifted_sigmoid(x[j], shift) : 0.0f;
        total += score[j];
    }
    return {ptx::warp_sum(total), shift};
}

// logsumexp of the logits whose softmax_scores these are; in double: its square is summed over tokens.
template <int kEach>
__device__ inline double log_sum_exp(const float (&score)[kEach], float shift) {
    double total = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) total += static_cast<double>(score[j]);
    return static_cast<double>(shift) + log(ptx::warp_sum(total));
}

// Calls f(registers a lane) as a constant.
template <class F>
void with_registers(int64_t experts, F&& f) {
    using std::integral_constant;
    if (experts <= 32) return f(integral_constant<int, 1>{});
    if (experts <= 64) return f(integral_constant<int, 2>{});
    if (experts <= 128) return f(integral_constant<int, 4>{});
    if (experts <= 256) return f(integral_constant<int, 8>{});
    f(integral_constant<int, 32>{});
}

}  // namespace moebius::ops::cuda
