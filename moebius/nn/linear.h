// y = x Wᵀ without bias.
#pragma once

#include "moebius/nn/low_precision.h"
#include "moebius/nn/module.h"

namespace moebius::nn {

// With run.recipe all three products are of operands quantized by it, and what forward keeps is the input
// column-wise; backward goes by the recipe of its forward.
class Linear : public Module {
  public:
    // The parameter is (out_features, in_features). `input_stays`: somebody else keeps the input for backward
    // anyway, so that backward quantizes it again rather than hold a copy.
    explicit Linear(Parameter* weight, bool input_stays = false)
        : weight_(weight), input_stays_(input_stays), low_(weight) {}

    Forward forward(Activation x, Run& run) override;  // (T, in) → (T, out)
    Activation backward(ContextPtr context, Activation dy, Run& run) override;

    LowPrecisionLinear& low_precision() { return low_; }

  private:
    Parameter* weight_;
    bool input_stays_;
    LowPrecisionLinear low_;
};

}  // namespace moebius::nn
