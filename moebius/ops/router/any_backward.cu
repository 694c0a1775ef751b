// The router's Jacobian, and what the auxiliary losses send back through all of a token's logits.
#include "moebius/ops/device_types.cuh"
#include "moebius/ops/router/any_scores.cuh"
#include "moebius/ops/router/cuda.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

struct RouterBackward {
    bool sigmoid, normalize;
    int topk;
    int64_t tokens, experts;
    const float* logits;
    const uint8_t* valid;
    const int32_t* topk_indices;
    const float *topk_weights, *dweights;
    const float *dprobs, *dz;  // may be null
    float* dlogits;
};

// Adds each slot's value to its expert: slot s is lane s's.
template <int kEach>
__device__ void add_to_chosen(int topk, int expert, float value, float (&dlogits)[kEach]) {
    for (int slot = 0; slot < topk; ++slot) {
        const int e = __shfl_sync(~0u, expert, slot);
        const float v = __shfl_sync(~0u, value, slot);
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            if (lane_index() + 32 * j == e) dlogits[j] += v;
        }
    }
}

// What goes through all experts' softmax: p_e times, from unnormalized softmax weights g_e − Σ (`upstream`),
// from prob_sums dP_e − Σ_e p dP, from the z loss 2 · lse · dz; the last two for tokens that count. On entry
// dlogits holds the g_e, or zeros.
template <int kEach>
__device__ void through_softmax(const RouterBackward& a, const float (&x)[kEach], float upstream,
                                bool counted, float (&dlogits)[kEach]) {
    float score[kEach], dprob[kEach], mean = 0.0f;
    const ScoreSum sums = softmax_scores(x, a.experts, score);
    const bool probs = a.dprobs != nullptr && !a.sigmoid && counted;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        score[j] /= sums.sum;
        dprob[j] = probs && e < a.experts ? a.dprobs[e] : 0.0f;
        mean += score[j] * dprob[j];
    }
    mean = ptx::warp_sum(mean);
    const float z = a.dz != nullptr && counted ? 2.0f * *a.dz * (sums.shift + logf(sums.sum)) : 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        float gradient = dlogits[j] - upstream;
        if (probs) gradient += dprob[j] - mean;
        dlogits[j] = score[j] * (gradient + z);
    }
}

// q_e = σ_e / Σσ: q_e (1 − σ_e)(dP_e − Σ_e q dP), for tokens that count.
template <int kEach>
__device__ void through_sigmoid(const RouterBackward& a, const float (&x)[kEach], float (&dlogits)[kEach]) {
    float score[kEach], dprob[kEach], mean = 0.0f;
    const ScoreSum sums = sigmoid_scores(x, a.experts, score);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        score[j] /= sums.sum;
        dprob[j] = e < a.experts ? a.dprobs[e] : 0.0f;
        mean += score[j] * dprob[j];
    }
    mean = ptx::warp_sum(mean);
#pragma unroll
    for (int j = 0; j < kEach; ++j) dlogits[j] += score[j] * plain_sigmoid(-x[j]) * (dprob[j] - mean);
}

// A warp a token. Through the chosen, with w the weights, g their gradients, Σ = Σ_s w_s g_s: normalized
// softmax w (g − Σ), normalized sigmoid w (g − Σ)(1 − σ), sigmoid w g (1 − σ).
template <int kEach>
__global__ void __launch_bounds__(kRouterThreads) router_backward_any(const RouterBackward a) {
    const int64_t token = int64_t{blockIdx.x} * kRouterWarps + warp_index();
    if (token >= a.tokens) return;
    const float* row = a.logits + token * a.experts;
    float x[kEach], dlogits[kEach] = {};
    load_logits(row, a.experts, x);
    int expert = -1;
    float weight = 0.0f, gradient = 0.0f;
    if (lane_index() < a.topk) {
        const int64_t slot = token * a.topk + lane_index();
        expert = a.topk_indices[slot];
        weight = a.topk_weights[slot];
        gradient = a.dweights[slot];
    }
    const float upstream = ptx::warp_sum(weight * gradient);
    const bool counted = a.valid == nullptr || a.valid[token] != 0;
    const bool softmax_weights = !a.sigmoid && !a.normalize;
    if (softmax_weights) add_to_chosen(a.topk, expert, gradient, dlogits);
    if (softmax_weights || (a.dprobs != nullptr && !a.sigmoid) || a.dz != nullptr)
        through_softmax(a, x, softmax_weights ? upstream : 0.0f, counted, dlogits);
    if (a.sigmoid && a.dprobs != nullptr && counted) through_sigmoid(a, x, dlogits);
    if (!softmax_weights) {
        float through = (gradient - (a.normalize ? upstream : 0.0f)) * weight;
        if (a.sigmoid) through *= plain_sigmoid(-(expert >= 0 && expert < a.experts ? row[expert] : 0.0f));
        add_to_chosen(a.topk, expert, through, dlogits);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int e = lane_index() + 32 * j;
        if (e < a.experts) a.dlogits[token * a.experts + e] = dlogits[j];
    }
}

}  // namespace

void router_backward(const RouterBackwardArgs& args, const Exec& exec) {
    const RouterBackward a{.sigmoid = args.options.score == RouterScore::Sigmoid,
                           .normalize = args.options.normalize,
                           .topk = static_cast<int>(args.options.topk),
                           .tokens = args.logits.size(0),
                           .experts = args.logits.size(1),
                           .logits = args.logits.as<float>(),
                           .valid = device_data<uint8_t>(args.valid),
                           .topk_indices = args.topk_indices.as<int32_t>(),
                           .topk_weights = args.topk_weights.as<float>(),
                           .dweights = args.dweights.as<float>(),
                           .dprobs = device_data<float>(args.dprobs),
                           .dz = device_data<float>(args.dz),
                           .dlogits = args.dlogits.as<float>()};
    with_registers(a.experts, [&](auto each) {
        launch("router_backward", router_backward_any<each()>,
               {grid_for(a.tokens, kRouterWarps), kRouterThreads}, exec, a);
    });
}

}  // namespace moebius::ops::cuda
