// Causal grouped-query self-attention: one projection to q, k and v, rotation, attention, output projection.
#pragma once

#include "moebius/nn/linear.h"

namespace moebius::nn {

struct AttentionOptions {
    int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
    int64_t window = 0;  // sliding window, own key included; 0: none
    float rope_theta = 1e4f;
    double init_std = 0.02, out_init_std = 0.02;
};

class Attention : public Module {
  public:
    // Declares `name`.qkv ((heads + 2 kv_heads) · head_dim, hidden): rows of q, then k, then v; and
    // `name`.out (hidden, heads · head_dim).
    Attention(ParameterSet& parameters, const std::string& name, const AttentionOptions& options);

    Forward forward(Activation x, Run& run) override;  // (T, hidden) → (T, hidden)
    Activation backward(ContextPtr context, Activation dy, Run& run) override;

    void low_precision(std::vector<LowPrecisionLinear*>& list);

  private:
    AttentionOptions options_;
    Linear qkv_, out_;
};

}  // namespace moebius::nn
