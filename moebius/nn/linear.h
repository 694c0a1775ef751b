// y = x Wᵀ without bias.
#pragma once

#include "moebius/nn/module.h"

namespace moebius::nn {

class Linear : public Module {
  public:
    // The parameter is (out_features, in_features).
    explicit Linear(Parameter* weight) : weight_(weight) {}

    Forward forward(Activation x, Run& run) override;  // (T, in) → (T, out)
    Activation backward(ContextPtr context, Activation dy, Run& run) override;

  private:
    Parameter* weight_;
};

}  // namespace moebius::nn
