#include "moebius/ops/aux_loss/cuda.h"
#include "moebius/ops/device_types.cuh"
#include "moebius/ptx/reduce.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct AuxLoss {
    bool together;  // Hugging Face's: all layers' tokens as one set
    double copies;  // what f is divided by beside the tokens
    double coeff, z_coeff;
    int64_t layers, experts;
    const float *counts, *prob_sums, *z_sums, *tokens;
    const float* scale;  // may be null
    float *aux_loss, *z_loss;
    float *layer_aux_loss, *dprobs, *dz;  // may be null

    __device__ double sum_over_layers(const float* values, int64_t expert) const {
        double total = 0;
        for (int64_t layer = 0; layer < layers; ++layer)
            total += static_cast<double>(values[layer * experts + expert]);
        return total;
    }
    // d (E · Σ_e f_e P_e) / d prob_sums[e] is this times counts[e]. Zero without tokens.
    __device__ double per_prob(double set_tokens) const {
        return set_tokens > 0 ? static_cast<double>(experts) / (copies * set_tokens * set_tokens) : 0.0;
    }
};

// One block, in double: the layers' sums by a warp each, gradients by all threads.
__global__ void __launch_bounds__(kThreads) aux_loss_any(const AuxLoss a) {
    __shared__ double balances[kWarps], z_means[kWarps];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    double all_tokens = 0;
    for (int64_t layer = 0; layer < a.layers; ++layer) all_tokens += static_cast<double>(a.tokens[layer]);
    double whole = 0;
    if (a.together) {
        for (int64_t e = threadIdx.x; e < a.experts; e += kThreads)
            whole += a.sum_over_layers(a.counts, e) * a.sum_over_layers(a.prob_sums, e);
        whole = ptx::block_sum<kThreads>(whole) * a.per_prob(all_tokens);
    }
    const double scale = a.scale != nullptr ? static_cast<double>(*a.scale) : 0.0;
    double balance = 0, z_mean = 0;
    for (int64_t layer = warp; layer < a.layers; layer += kWarps) {
        const auto tokens = static_cast<double>(a.tokens[layer]);
        double own = 0;
        for (int64_t e = lane; e < a.experts; e += 32) {
            const int64_t at = layer * a.experts + e;
            own += static_cast<double>(a.counts[at]) * static_cast<double>(a.prob_sums[at]);
        }
        own = ptx::warp_sum(own) * a.per_prob(tokens);
        if (!(tokens > 0)) own = 0;
        balance += own;
        const double per_token = tokens > 0 ? 1.0 / tokens : 0.0;
        if (tokens > 0) z_mean += static_cast<double>(a.z_sums[layer]) * per_token;
        if (lane != 0) continue;
        if (a.layer_aux_loss != nullptr) a.layer_aux_loss[layer] = static_cast<float>(own);
        if (a.dz != nullptr) a.dz[layer] = static_cast<float>(scale * a.z_coeff * per_token);
    }
    if (lane == 0) {
        balances[warp] = balance;
        z_means[warp] = z_mean;
    }
    __syncthreads();  // the warps' sums are there
    if (threadIdx.x == 0) {
        double total = a.together ? whole : 0, z_total = 0;
        for (int w = 0; w < kWarps; ++w) {
            if (!a.together) total += balances[w];
            z_total += z_means[w];
        }
        *a.aux_loss = static_cast<float>(a.coeff * total);
        *a.z_loss = static_cast<float>(a.z_coeff * z_total);
    }
    if (a.dprobs == nullptr) return;
    for (int64_t i = threadIdx.x; i < a.layers * a.experts; i += kThreads) {
        const double set_tokens = a.together ? all_tokens : static_cast<double>(a.tokens[i / a.experts]);
        const double count =
            a.together ? a.sum_over_layers(a.counts, i % a.experts) : static_cast<double>(a.counts[i]);
        a.dprobs[i] = static_cast<float>(scale * a.coeff * a.per_prob(set_tokens) * count);
    }
}

}  // namespace

void aux_loss(const AuxLossArgs& args, const Exec& exec) {
    const bool together = args.definition == AuxLossDefinition::HuggingFace;
    launch("aux_loss", aux_loss_any, {1, kThreads}, exec,
           AuxLoss{.together = together,
                   .copies = together ? 1.0 : static_cast<double>(args.topk),
                   .coeff = args.coeff,
                   .z_coeff = args.z_coeff,
                   .layers = args.counts.size(0),
                   .experts = args.counts.size(1),
                   .counts = args.counts.as<float>(),
                   .prob_sums = args.prob_sums.as<float>(),
                   .z_sums = args.z_sums.as<float>(),
                   .tokens = args.tokens.as<float>(),
                   .scale = device_data<float>(args.scale),
                   .aux_loss = args.aux_loss.as<float>(),
                   .z_loss = args.z_loss.as<float>(),
                   .layer_aux_loss = device_data<float>(args.layer_aux_loss),
                   .dprobs = device_data<float>(args.dprobs),
                   .dz = device_data<float>(args.dz)});
}

}  // namespace moebius::ops::cuda
