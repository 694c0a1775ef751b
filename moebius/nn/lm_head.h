// Final norm, projection to the vocabulary, next-token loss. Logits exist for a block of tokens at a time.
#pragma once

#include "moebius/nn/module.h"

namespace moebius::nn {

struct LmHeadOptions {
    int64_t hidden = 0, vocab = 0;
    float norm_eps = 1e-5f;
    double init_std = 0.02;
    int64_t block_tokens = 2048;  // rows of logits held at a time
};

struct LossOutputs {
    View token_loss;  // (T) f32: 0 where there is no target
    View loss_sum;    // (1) f32, added to
    View logits;      // (T, V) f32, optional: for those who ask for all of them
};

class LmHead {
  public:
    // `tied`: the embedding's table, used as the projection too; else declares `lm_head` (V, H).
    LmHead(ParameterSet& parameters, const LmHeadOptions& options, Parameter* tied);

    // x (T, H). With run.pass.save the gradient is made in the same pass: sums over tokens, not means.
    ContextPtr forward(Activation x, const LossOutputs& outputs, Run& run);
    Activation backward(ContextPtr context, Run& run);

  private:
    LmHeadOptions options_;
    Parameter* norm_;
    Parameter* weight_;
};

}  // namespace moebius::nn
