// y = x Wᵀ without bias.
#pragma once

#include "moebius/nn/low_precision.h"
#include "moebius/nn/module.h"

namespace moebius::nn {

// With run.recipe all three products are of operands quantized by it; backward goes by the recipe of its
// forward.
class Linear : public Module {
  public:
    // The parameter is (out_features, in_features).
    explicit Linear(Parameter* weight) : weight_(weight), low_(weight) {}

    Forward forward(Activation x, Run& run) override;  // (T, in) → (T, out)
    Activation backward(ContextPtr context, Activation dy, Run& run) override;

    LowPrecisionLinear& low_precision() { return low_; }

  private:
    Parameter* weight_;
    LowPrecisionLinear low_;
};

}  // namespace moebius::nn
