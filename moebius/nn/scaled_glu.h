// ScaledSwiGLU and its siblings as a link of a Sequential chain. Extra input: scales (M) f32, the routing
// weights.
#pragma once

#include "moebius/nn/module.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::nn {

// Rows past those of the neighbouring GroupedLinears are computed on whatever is there and reach nobody.
class ScaledGlu : public Fusible {
  public:
    explicit ScaledGlu(const ops::GluOptions& options = {}) : options_(options) {}

    OpKind kind() const override { return OpKind::ScaledGlu; }
    std::string name() const override;
    int extra_inputs() const override { return 1; }
    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override;  // (M, 2I) → (M, I)
    FusibleBackward backward(ContextPtr context, Activation dy, Run& run) override;
    const ops::GluOptions& options() const { return options_; }

  private:
    ops::GluOptions options_;
};

}  // namespace moebius::nn
