#include "moebius/train/schedule.h"

#include <cmath>
#include <numbers>

namespace moebius::train {

double Schedule::rate(int64_t update) const {
    const int64_t step = update - 1;
    const int64_t warmup = warmup_steps, decay = decay_steps;
    if (warmup > 0 && step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
    if (step - warmup > decay) return peak * min_ratio;
    const double progress = decay > 0 ? static_cast<double>(step - warmup) / static_cast<double>(decay) : 1.0;
    return peak * (min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace moebius::train
