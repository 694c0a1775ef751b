// Sixteen tokens side by side: lane l of every vector belongs to token `first + l`, and row e of a lane
// matrix (n, 16) to expert or slot e. Nothing crosses lanes, so a token's result depends on its own logits
// only, and any number of experts costs the same code.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {

// Tokens of a piece of work, a multiple of 16.
inline constexpr int64_t kPieceTokens = 256;

MOEBIUS_INLINE I16 load(const int32_t* source) {
    I16 value;
    std::memcpy(&value, source, sizeof value);
    return value;
}
MOEBIUS_INLINE void store(int32_t* destination, I16 value) {
    std::memcpy(destination, &value, sizeof value);
}
MOEBIUS_INLINE I16 select(I16 mask, I16 yes, I16 no) {
    return (yes & mask) | (no & ~mask);
}

// lanes (n, 16) = the transpose of rows (count ≤ 16, n); zeros in the other lanes.
template <class T>
MOEBIUS_INLINE void to_lanes(const T* rows, int64_t count, int64_t n, T* lanes) {
    if (count < kLanes) std::memset(lanes, 0, static_cast<size_t>(n * kLanes) * sizeof(T));
    for (int64_t l = 0; l < count; ++l) {
        for (int64_t e = 0; e < n; ++e) lanes[e * kLanes + l] = rows[l * n + e];
    }
}
template <class T>
MOEBIUS_INLINE void from_lanes(const T* lanes, int64_t count, int64_t n, T* rows) {
    for (int64_t l = 0; l < count; ++l) {
        for (int64_t e = 0; e < n; ++e) rows[l * n + e] = lanes[e * kLanes + l];
    }
}

// All bits set in the lanes of tokens that count in statistics. `valid` may be null.
MOEBIUS_INLINE I16 counted_lanes(const uint8_t* valid, int64_t count) {
    int32_t mask[kLanes] = {};
    for (int64_t l = 0; l < count; ++l) mask[l] = !valid || valid[l] ? -1 : 0;
    return load(mask);
}

// The lanes' element in row index[l].
MOEBIUS_INLINE F16 pick(const float* lanes, I16 index) {
    float value[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) value[l] = lanes[int64_t{index[l]} * kLanes + l];
    return ops::load(value);
}

MOEBIUS_INLINE F16 log(F16 x) {
    float value[kLanes];
    ops::store(value, x);
    for (float& v : value) v = std::log(v);
    return ops::load(value);
}

// Σ of scores / e^shift, which the scores themselves are multiples of: no finite logit makes it 0.
struct ScoreSum {
    F16 sum, shift;
};

// scores[e] = e^(x_e − max x).
MOEBIUS_INLINE ScoreSum softmax_scores(const float* x, int64_t n, float* scores) {
    F16 most = ops::load(x);
    for (int64_t e = 1; e < n; ++e) most = maximum(most, ops::load(x + e * kLanes));
    F16 total = {};
    for (int64_t e = 0; e < n; ++e) {
        const F16 value = ops::exp(ops::load(x + e * kLanes) - most);
        ops::store(scores + e * kLanes, value);
        total += value;
    }
    return {total, most};
}

// scores[e] = σ(x_e) / e^shift, shift = min(0, max x): σ(x) = e^x / (1 + e^x) itself would underflow where
// all logits are far below 0.
MOEBIUS_INLINE ScoreSum sigmoid_scores(const float* x, int64_t n, float* scores) {
    F16 most = ops::load(x);
    for (int64_t e = 1; e < n; ++e) most = maximum(most, ops::load(x + e * kLanes));
    const F16 shift = minimum(most, F16{});
    F16 total = {};
    for (int64_t e = 0; e < n; ++e) {
        const F16 value = ops::load(x + e * kLanes);
        const I16 positive = value > 0.0f;
        const F16 small = ops::exp(ops::select(positive, -value, value));  // e^−|x|
        const F16 numerator = ops::select(positive, ops::broadcast(1.0f), ops::exp(value - shift));
        const F16 score = numerator / (1.0f + small);
        ops::store(scores + e * kLanes, score);
        total += score;
    }
    return {total, shift};
}

// logsumexp of x (n, 16).
MOEBIUS_INLINE F16 log_sum_exp(const float* x, int64_t n) {
    F16 most = ops::load(x);
    for (int64_t e = 1; e < n; ++e) most = maximum(most, ops::load(x + e * kLanes));
    F16 total = {};
    for (int64_t e = 0; e < n; ++e) total += ops::exp(ops::load(x + e * kLanes) - most);
    return most + log(total);
}

}  // namespace moebius::ops::cpu
