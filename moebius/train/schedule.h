// The learning rate of each update.
#pragma once

#include <cstdint>

namespace moebius::train {

struct Schedule {
    double peak = 3e-3;
    int64_t warmup_steps = 0, decay_steps = 1;
    double min_ratio = 0;

    // Of the n-th update, n from 1, at step = n − 1: step ≤ W: step / W (W = 0: no warm-up); step > W + D:
    // min_ratio; else min + (1 − min) · ½ (1 + cos(π (step − W) / D)); times the peak.
    double rate(int64_t update) const;
};

}  // namespace moebius::train
