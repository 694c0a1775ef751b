// DelayedScaling's state: an amax history and the scale that the next quantization uses, of each expert.
#pragma once

#include <span>

#include "moebius/precision/recipe.h"

namespace moebius::precision {

// One tensor's. history[0] is the amax of the pass that ended, the others those of passes before, the oldest
// at [1]: it is the one that falls out. Afterwards history[0] is 0, for the next pass' amax. Returns the next
// scale: (largest / amax) / 2^margin, amax = history[0] or the largest of the history; with an amax that is
// zero or not finite, `scale` as it was. `largest` is the element type's.
float update_delayed_scale(std::span<float> history, float scale, float largest,
                           const DelayedOptions& options);

// Of experts: history (length, E) and scale (E), f32 on the host. quantize's observed_amax goes to history's
// row 0.
void update_delayed_scales(const View& history, const View& scale, float largest,
                           const DelayedOptions& options);

}  // namespace moebius::precision
