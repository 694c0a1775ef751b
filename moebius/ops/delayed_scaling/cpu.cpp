#include "moebius/ops/delayed_scaling/cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moebius::ops::cpu {
namespace {

// A NaN is the result, so that the scale stays.
float larger(float most, float amax) {
    return std::isnan(most) || most > amax ? most : amax;
}

float next_scale(float scale, float amax, const DelayedScalingArgs& args) {
    if (!(amax > 0.0f && std::isfinite(amax))) return scale;
    const float quotient = std::ldexp(args.largest / amax, -args.margin);
    return std::isinf(quotient) ? std::numeric_limits<float>::max() : quotient;
}

}  // namespace

void delayed_scaling(const DelayedScalingArgs& args, const Exec&) {
    if (args.bad && *args.bad.as<int32_t>() != 0) return;
    const int64_t length = args.history.size(1);
    for (int64_t n = 0; n < args.history.size(0); ++n) {
        float now = 0;
        for (int64_t part = 0; part < args.observed.size(0); ++part)
            now = larger(now, args.observed.as<float>()[part * args.observed.stride[0] + n]);
        float* const history = args.history.as<float>() + n * length;
        history[0] = now;
        float amax = now;
        for (int64_t i = 1; i < length && !args.most_recent; ++i) amax = larger(amax, history[i]);
        std::rotate(history, history + 1, history + length);
        history[0] = 0;
        float& scale = args.scale.as<float>()[n];
        scale = next_scale(scale, amax, args);
    }
}

}  // namespace moebius::ops::cpu
