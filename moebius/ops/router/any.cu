#include "moebius/ops/device_types.cuh"
#include "moebius/ops/router/any_scores.cuh"
#include "moebius/ops/router/cuda.h"
#include "moebius/ptx/dynamic_shared.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

// Below every key that a number or NaN gives: an expert that cannot be chosen (any more).
constexpr int kTaken = INT32_MIN;
constexpr int kTokensEach = 8;  // a warp's; their statistics stay in its registers
constexpr int64_t kBlockTokens = kTokensEach * kRouterWarps;

struct Router {
    RouterOptions options;
    int64_t tokens, experts;
    const float *logits, *bias;
    const uint8_t* valid;
    int32_t* topk_indices;
    float* topk_weights;
    bool wants_probs, wants_z;
    double* parts;  // (blocks, 2 E + 2): counts, sums of probabilities, of logsumexp², of tokens; or null

    __device__ bool sigmoid() const { return options.score == RouterScore::Sigmoid; }
    __device__ bool limits_groups() const { return options.topk_groups < options.num_groups; }
};

// Integers in the order of the floats: −0 equals 0, and NaN is above all, so that it is chosen and the step
// turns out not finite instead of going on without that expert.
__device__ int order_key(float value) {
    if (value != value) return INT32_MAX;
    const int bits = __float_as_int(value + 0.0f);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// The place with the largest key, the lowest of equals; its key becomes kTaken. Place j of a lane is number
// lane + 32 j.
template <int kEach>
__device__ int take_largest(int (&key)[kEach]) {
    int best = key[0], place = lane_index();
#pragma unroll
    for (int j = 1; j < kEach; ++j) {
        if (key[j] > best) {
            best = key[j];
            place = lane_index() + 32 * j;
        }
    }
    const int most = __reduce_max_sync(~0u, best);
    const int taken = __reduce_min_sync(~0u, best == most ? place : INT32_MAX);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        if (lane_index() + 32 * j == taken) key[j] = kTaken;
    }
    return taken;
}

// Takes the experts of groups that are not among the best out of the choice. `shared` (E): the warp's.
template <int kEach>
__device__ void limit_groups(const Router& a, const float (&selection)[kEach], int (&key)[kEach],
                             float* shared) {
    const int groups = static_cast<int>(a.options.num_groups), size = static_cast<int>(a.experts) / groups;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        if (e < a.experts) shared[e] = selection[j] != selection[j] ? INFINITY : selection[j];
    }
    __syncwarp();
    int group_key[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int g = lane_index() + 32 * j;
        group_key[j] = kTaken;
        if (g >= groups) continue;
        float first = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; ++e) {
            const float value = shared[e];
            second = fmaxf(second, fminf(first, value));
            first = fmaxf(first, value);
        }
        group_key[j] = order_key(size > 1 ? first + second : first);
    }
    __syncwarp();
    auto* chosen = reinterpret_cast<int*>(shared);
    for (int g = lane_index(); g < groups; g += 32) chosen[g] = 0;
    __syncwarp();
    for (int i = 0; i < a.options.topk_groups; ++i) {
        const int g = take_largest(group_key);
        if (lane_index() == 0 && g < groups) chosen[g] = 1;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        if (e < a.experts && chosen[e / size] == 0) key[j] = kTaken;
    }
    __syncwarp();  // all have read `chosen`
}

// The expert of this lane's slot; lanes past the last slot get 0.
template <int kEach>
__device__ int choose(const Router& a, const float (&x)[kEach], const float (&score)[kEach],
                      const ScoreSum& full, float* shared) {
    const bool scored = a.bias != nullptr || a.limits_groups();
    const float factor = !scored ? 0.0f : a.sigmoid() ? expf(full.shift) : 1.0f / full.sum;
    int key[kEach];
    float selection[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        // Both scores grow with the logit: without a bias it is compared itself, where scores might round to
        // a tie.
        float value = x[j];
        if (scored) {
            selection[j] = score[j] * factor + (a.bias != nullptr && e < a.experts ? a.bias[e] : 0.0f);
            if (a.bias != nullptr) value = selection[j];
        }
        key[j] = e < a.experts ? order_key(value) : kTaken;
    }
    if (a.limits_groups()) limit_groups(a, selection, key, shared);
    int mine = 0;
    for (int slot = 0; slot < a.options.topk; ++slot) {
        const int expert = take_largest(key);
        if (lane_index() == slot) mine = expert;
    }
    return mine;
}

// The weight of this lane's slot, `x` its expert's logit.
__device__ float weigh(const Router& a, float x, const ScoreSum& full) {
    const bool used = lane_index() < a.options.topk;
    if (!a.options.normalize) return a.sigmoid() ? plain_sigmoid(x) : expf(x - full.shift) / full.sum;
    const float one[1] = {used ? x : -INFINITY};
    float score[1];
    const ScoreSum chosen =
        a.sigmoid() ? sigmoid_scores(one, a.options.topk, score) : softmax_scores(one, a.options.topk, score);
    return score[0] / chosen.sum;
}

// Shared memory: counts (E), then for every warp (E) floats.
template <int kEach>
__global__ void __launch_bounds__(kRouterThreads) router_any(const Router a) {
    auto* counts = ptx::dynamic_shared<int>();
    float* shared = reinterpret_cast<float*>(counts + a.experts) + warp_index() * a.experts;
    __shared__ double z_sums[kRouterWarps];
    __shared__ int counted_tokens[kRouterWarps];
    for (int64_t e = threadIdx.x; e < a.experts; e += kRouterThreads) counts[e] = 0;
    __syncthreads();  // counts are zeros

    float prob_sums[kEach] = {};
    double z_sum = 0;
    int tokens = 0;
    const int64_t first = blockIdx.x * kBlockTokens + warp_index() * kTokensEach;
    const int64_t end = first + kTokensEach < a.tokens ? first + kTokensEach : a.tokens;
    const int topk = static_cast<int>(a.options.topk);
    for (int64_t token = first; token < end; ++token) {
        const float* row = a.logits + token * a.experts;
        float x[kEach], score[kEach];
        load_logits(row, a.experts, x);
        const ScoreSum full =
            a.sigmoid() ? sigmoid_scores(x, a.experts, score) : softmax_scores(x, a.experts, score);
        const int expert = choose(a, x, score, full, shared);
        const float weight = weigh(a, row[expert], full);
        const bool counted = a.valid == nullptr || a.valid[token] != 0;
        if (lane_index() < topk) {
            a.topk_indices[token * topk + lane_index()] = expert;
            a.topk_weights[token * topk + lane_index()] = weight;
            if (counted) atomicAdd(&counts[expert], 1);
        }
        if (!counted) continue;
        ++tokens;
#pragma unroll
        for (int j = 0; j < kEach; ++j) prob_sums[j] += score[j] / full.sum;
        if (a.wants_z) {
            // The scores are done with: in their place those of the softmax.
            const float shift = a.sigmoid() ? softmax_scores(x, a.experts, score).shift : full.shift;
            const double lse = log_sum_exp(score, shift);
            z_sum += lse * lse;
        }
    }
    if (a.parts == nullptr) return;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        if (e < a.experts) shared[e] = prob_sums[j];
    }
    if (lane_index() == 0) {
        z_sums[warp_index()] = z_sum;
        counted_tokens[warp_index()] = tokens;
    }
    __syncthreads();  // all warps' statistics are there
    double* part = a.parts + blockIdx.x * (2 * a.experts + 2);
    const float* probs = reinterpret_cast<const float*>(counts + a.experts);
    for (int64_t e = threadIdx.x; e < a.experts; e += kRouterThreads) {
        part[e] = counts[e];
        double total = 0;
        for (int w = 0; w < kRouterWarps; ++w) total += static_cast<double>(probs[w * a.experts + e]);
        part[a.experts + e] = total;
    }
    if (threadIdx.x != 0) return;
    double z_total = 0;
    int all = 0;
    for (int w = 0; w < kRouterWarps; ++w) {
        z_total += z_sums[w];
        all += counted_tokens[w];
    }
    part[2 * a.experts] = z_total;
    part[2 * a.experts + 1] = all;
}

constexpr int kColumns = 32, kSlices = 16;

struct Statistics {
    const double* parts;  // (blocks, 2 E + 2)
    int64_t blocks, experts;
    float *counts, *prob_sums, *z_sum, *tokens;  // may be null

    __device__ float* target(int64_t column) const {
        if (column < experts) return counts != nullptr ? counts + column : nullptr;
        if (column < 2 * experts) return prob_sums != nullptr ? prob_sums + (column - experts) : nullptr;
        return column == 2 * experts ? z_sum : column == 2 * experts + 1 ? tokens : nullptr;
    }
};

// A statistic += Σ_blocks parts, in double: a thread sums every kSlices-th block's, then slices in order.
__global__ void __launch_bounds__(kColumns* kSlices) add_statistics_any(const Statistics a) {
    __shared__ double slices[kSlices][kColumns];
    const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x, width = 2 * a.experts + 2;
    double total = 0;
    if (column < width) {
#pragma unroll 4
        for (int64_t block = threadIdx.y; block < a.blocks; block += kSlices)
            total += a.parts[block * width + column];
    }
    slices[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y != 0) return;
    for (int slice = 1; slice < kSlices; ++slice) total += slices[slice][threadIdx.x];
    float* out = a.target(column);
    if (out != nullptr) *out = static_cast<float>(static_cast<double>(*out) + total);
}

}  // namespace

void router(const RouterArgs& args, const Exec& exec) {
    const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
    const int64_t blocks = ceil_div(tokens, kBlockTokens), width = 2 * experts + 2;
    const bool statistics = args.counts || args.prob_sums || args.z_sum || args.tokens;
    const Scratch parts("router", statistics ? static_cast<size_t>(blocks * width) * sizeof(double) : 0,
                        exec);
    const Router a{.options = args.options,
                   .tokens = tokens,
                   .experts = experts,
                   .logits = args.logits.as<float>(),
                   .bias = device_data<float>(args.bias),
                   .valid = device_data<uint8_t>(args.valid),
                   .topk_indices = args.topk_indices.as<int32_t>(),
                   .topk_weights = args.topk_weights.as<float>(),
                   .wants_probs = static_cast<bool>(args.prob_sums),
                   .wants_z = static_cast<bool>(args.z_sum),
                   .parts = statistics ? parts.as<double>() : nullptr};
    with_registers(experts, [&](auto each) {
        launch("router", router_any<each()>,
               {grid_for(blocks, 1), kRouterThreads,
                static_cast<size_t>((1 + kRouterWarps) * experts) * sizeof(float)},
               exec, a);
    });
    if (!statistics) return;
    launch("router statistics", add_statistics_any, {grid_for(width, kColumns), dim3(kColumns, kSlices)},
           exec,
           Statistics{parts.as<double>(), blocks, experts, device_data<float>(args.counts),
                      device_data<float>(args.prob_sums), device_data<float>(args.z_sum),
                      device_data<float>(args.tokens)});
}

}  // namespace moebius::ops::cuda
