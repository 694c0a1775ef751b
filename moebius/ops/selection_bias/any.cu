#include "moebius/ops/selection_bias/cuda.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block: E is small beside anything else of a step.
__global__ void __launch_bounds__(kThreads)
    selection_bias_any(const float* counts, float* bias, const int* bad, int64_t experts, float rate) {
    __shared__ double parts[kThreads];
    if (bad != nullptr && *bad != 0) return;
    double part = 0;
    for (int64_t e = threadIdx.x; e < experts; e += kThreads) part += static_cast<double>(counts[e]);
    parts[threadIdx.x] = part;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();  // parts of the round before
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();  // parts[0]
    const double total = parts[0];
    for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
        const double gap = total - static_cast<double>(experts) * static_cast<double>(counts[e]);
        bias[e] += gap > 0 ? rate : gap < 0 ? -rate : 0.0f;
    }
}

}  // namespace

void selection_bias(const SelectionBiasArgs& args, const Exec& exec) {
    launch("selection_bias", selection_bias_any, {.grid = dim3(1), .block = dim3(kThreads)}, exec,
           args.counts.as<float>(), args.bias.as<float>(), args.bad ? args.bad.as<int32_t>() : nullptr,
           args.counts.numel(), args.rate);
}

}  // namespace moebius::ops::cuda
