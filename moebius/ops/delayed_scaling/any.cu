#include <cfloat>

#include "moebius/ops/delayed_scaling/cuda.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Parameters {
    const float* observed;
    int64_t parts, stride, length;
    float *history, *scale;
    const int* bad;
    float largest;
    int margin;
    bool most_recent;
};

// A NaN is the result, so that the scale stays.
__device__ float larger(float most, float amax) {
    return isnan(most) || most > amax ? most : amax;
}

// One block a scale. Chunk by chunk the history moves down by one: a thread's reads of a chunk come before
// anyone's writes of it, and the chunk after starts with the element behind the last one read.
__global__ void __launch_bounds__(kThreads) delayed_scaling_any(const Parameters p) {
    if (p.bad != nullptr && *p.bad != 0) return;
    __shared__ float parts[kThreads];
    const int64_t n = blockIdx.x;
    float* const history = p.history + n * p.length;
    float now = 0;
    for (int64_t part = 0; part < p.parts; ++part) now = larger(now, p.observed[part * p.stride + n]);
    float most = now;
    for (int64_t begin = 0; begin < p.length; begin += kThreads) {
        const int64_t to = begin + threadIdx.x, from = to + 1;
        float moved = now;  // what the last place gets
        if (from < p.length) moved = history[from];
        // What is read once and never written back is the oldest, at [1].
        if (to < p.length && !p.most_recent) most = larger(most, moved);
        __syncthreads();  // the chunk's reads
        if (to < p.length) history[to] = to == 0 ? 0.0f : moved;
        __syncthreads();  // its writes, before the next chunk's reads
    }
    parts[threadIdx.x] = most;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();  // parts of the round before
        if (threadIdx.x < half) parts[threadIdx.x] = larger(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    if (threadIdx.x != 0) return;
    const float amax = parts[0];  // by this thread itself
    if (!(amax > 0.0f && isfinite(amax))) return;
    const float quotient = ldexpf(__fdiv_rn(p.largest, amax), -p.margin);
    p.scale[n] = isinf(quotient) ? FLT_MAX : quotient;
}

}  // namespace

void delayed_scaling(const DelayedScalingArgs& args, const Exec& exec) {
    const Parameters p{.observed = args.observed.as<float>(),
                       .parts = args.observed.size(0),
                       .stride = args.observed.stride[0],
                       .length = args.history.size(1),
                       .history = args.history.as<float>(),
                       .scale = args.scale.as<float>(),
                       .bad = args.bad ? args.bad.as<int32_t>() : nullptr,
                       .largest = args.largest,
                       .margin = args.margin,
                       .most_recent = args.most_recent};
    launch("delayed_scaling", delayed_scaling_any,
           {.grid = dim3(static_cast<unsigned>(args.history.size(0))), .block = dim3(kThreads)}, exec, p);
}

}  // namespace moebius::ops::cuda
