// x → h = x + attention(norm(x)) → h + moe(norm(h)), with recomputation of its parts where asked.
#pragma once

#include <optional>

#include "moebius/nn/attention.h"
#include "moebius/nn/moe_block.h"

namespace moebius::nn {

enum class Recompute { None, Moe, Attention, Full };  // what backward computes again instead of keeping

struct LayerOptions {
    AttentionOptions attention;
    MoeOptions moe;
    float norm_eps = 1e-5f;
    Recompute recompute = Recompute::None;
    // Backward makes the norms' outputs, the rows gathered for the experts and an unfused activation again:
    // about 1% of a step's time on a GPU. Empty: on a GPU, not on the CPU.
    std::optional<bool> remake;
};

// The wrapper that recomputes: forward keeps x alone, backward runs forward again (without counting) and then
// backward.
class Recomputed : public Module {
  public:
    explicit Recomputed(Module& inner) : inner_(inner) {}
    Forward forward(Activation x, Run& run) override;
    Activation backward(ContextPtr context, Activation dy, Run& run) override;

  private:
    Module& inner_;
};

class DecoderLayer : public Module {
  public:
    DecoderLayer(ParameterSet& parameters, int64_t index, const LayerOptions& options);

    Forward forward(Activation x, Run& run) override;
    Activation backward(ContextPtr context, Activation dy, Run& run) override;
    Attention& attention() { return attention_; }
    MoeBlock& moe() { return moe_; }
    const MoeBlock& moe() const { return moe_; }

  private:
    float eps_;
    Parameter* input_norm_;
    Attention attention_;
    Parameter* post_attention_norm_;
    MoeBlock moe_;
    Recomputed attention_recomputed_, moe_recomputed_;
    Module* attention_module_;
    Module* moe_module_;
};

}  // namespace moebius::nn
