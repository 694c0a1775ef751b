// One linear layer an expert, over consecutive rows: Transformer Engine's GroupedLinear(num_groups, in, out,
// bias).
#pragma once

#include "moebius/nn/low_precision.h"
#include "moebius/nn/module.h"

namespace moebius::nn {

struct GroupedLinearOptions {
    int64_t num_groups = 1, in_features = 0, out_features = 0;
    bool bias = false;
    bool scale_bias = false;  // each row's bias is multiplied by its scale: one more extra input, (M) f32
    bool delay_wgrad_compute = false;  // backward queues weight gradients, backward_dw runs them
    double init_std = 0.02;
    bool decay = true;
};

// Extra inputs: split_sizes (num_groups) i32 or i64; with scale_bias, the scales after it. With run.recipe,
// all three products are of operands quantized by it, and what forward keeps is the input column-wise;
// backward goes by the recipe of its forward. Throws Error for a layer with a bias then.
class GroupedLinear : public Fusible {
  public:
    // Declares `name` (num_groups, out, in), and `name`.bias (num_groups, out).
    GroupedLinear(ParameterSet& parameters, const std::string& name, const GroupedLinearOptions& options);

    OpKind kind() const override { return OpKind::GroupedLinear; }
    std::string name() const override { return "GroupedLinear(" + name_ + ")"; }
    int extra_inputs() const override { return options_.scale_bias ? 2 : 1; }
    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override;  // (M, in) → (M, out)
    FusibleBackward backward(ContextPtr context, Activation dy, Run& run) override;

    // Runs the weight gradients that backward queued, oldest first.
    void backward_dw(Run& run);

    void low_precision(std::vector<LowPrecisionLinear*>& list) override { list.push_back(&low_); }
    LowPrecisionLinear& low_precision() { return low_; }

    Parameter* weight() const { return weight_; }                          // (num_groups, out, in)
    Parameter* bias() const { return bias_; }                              // null without bias
    View weight(int64_t group) const { return weight_->value.at(group); }  // weight0 … of Transformer Engine
    const GroupedLinearOptions& options() const { return options_; }

  private:
    struct Pending {
        Tensor dy, split_sizes, scales;
        Kept x;
        std::shared_ptr<const precision::Recipe> recipe;  // with it low_dy and low_x in the place of dy and x
        Quantized low_dy;
        KeptInput low_x;
    };
    void weight_gradients(Pending& pending, Tensor* dscales, Run& run);

    std::string name_;
    GroupedLinearOptions options_;
    Parameter* weight_;
    Parameter* bias_ = nullptr;
    LowPrecisionLinear low_{nullptr};
    std::vector<Pending> pending_;
};

}  // namespace moebius::nn
