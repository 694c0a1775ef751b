// Embedding → layers → head: the loop over units exists once, for every family.
#pragma once

#include "moebius/nn/decoder_layer.h"
#include "moebius/nn/lm_head.h"
#include "moebius/ops/aux_loss/aux_loss.h"
#include "moebius/runtime/loan_pool.h"

namespace moebius::nn {

// What is gathered, recomputed and reported together: a layer, the embedding, the head. Sharding hangs in
// here.
class UnitHooks {
  public:
    virtual ~UnitHooks() = default;
    virtual void before_forward(int64_t unit, Run& run) = 0;
    virtual void after_forward(int64_t unit, Run& run) = 0;
    virtual void before_backward(int64_t unit, Run& run) = 0;
    virtual void after_backward(int64_t unit, Run& run) = 0;
};

struct AuxLossOptions {
    ops::AuxLossDefinition definition = ops::AuxLossDefinition::Switch;
    float coeff = 0, z_coeff = 0;
    bool any() const { return coeff != 0 || z_coeff != 0; }
};

struct DecoderOptions {
    int64_t vocab = 0, layers = 0;
    LayerOptions layer;
    double embedding_init_std = 0.02, head_init_std = 0.02;
    bool tied_embeddings = false;
    int64_t padding_idx = -1;  // this embedding row starts at zero and gets no gradient
    bool decay_embedding = false;
    AuxLossOptions aux;
    LowPrecisionOptions low_precision;  // of the layers; embedding, router, norms and head are never in it
};

// Scalars on the device that a forward leaves. loss_sum is added to; the others are written.
struct DecoderOutputs {
    LossOutputs loss;
    View aux_loss, z_loss;  // (1) f32; with their coefficients; optional
    View layer_aux_loss;    // (L) f32, optional
};

struct DecoderContext {
    std::unique_ptr<LoanPool> loans;  // with run.pass.lend_gradients
    std::vector<ContextPtr> layers;
    ContextPtr head;
    int64_t bytes() const;
    int64_t lent_bytes() const { return loans ? loans->peak_bytes() : 0; }  // used of gradients' memory
};

class Decoder {
  public:
    Decoder(ParameterSet& parameters, const DecoderOptions& options);

    // Memory for the statistics and for buffers that are saved but not trained.
    void place(const Exec& exec);
    // Statistics of the router start again.
    void reset_statistics(Run& run);
    // Of a training step, before its first forward.
    void begin_step(const Run& run) { low_precision_.begin_step(run); }

    // One micro-batch. With run.pass.count and aux options the auxiliary losses are computed after the last
    // layer, from statistics reduced over run.world.
    DecoderContext forward(const DecoderOutputs& outputs, Run& run);
    void backward(DecoderContext context, Run& run);
    // The auxiliary losses and their gradients, from the statistics as they are: forward calls it when it
    // counts.
    void auxiliary_losses(const DecoderOutputs& outputs, Run& run);
    // Buffers' updates at the end of a step, from `counts` (L, E) f32 of the whole step; none after a bad
    // one.
    void end_step(const View& counts, Run& run);

    std::vector<StateEntry> buffers() const;
    RouterStatistics& statistics() { return statistics_; }
    const LowPrecisionState& low_precision() const { return low_precision_; }
    LowPrecisionState& low_precision() { return low_precision_; }
    // Of the weights that are quantized, placed or not.
    int64_t low_precision_numel();
    // Numbers of DelayedScaling's histories; 0 under another recipe.
    int64_t amax_history_numel();
    const DecoderOptions& options() const { return options_; }
    DecoderLayer& layer(int64_t index) { return *layers_[static_cast<size_t>(index)]; }
    void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }
    // One row a layer's window; empty before the first forward and in loop mode.
    std::vector<FusionReportRow> fusion_report() const;

  private:
    DecoderOptions options_;
    Parameter* embedding_;
    std::vector<std::unique_ptr<DecoderLayer>> layers_;
    std::vector<std::unique_ptr<Recomputed>> recomputed_;  // full recomputation, one a layer
    std::vector<std::vector<const Parameter*>> layer_parameters_;
    LmHead head_;
    RouterStatistics statistics_;
    LowPrecisionState low_precision_;
    UnitHooks* hooks_ = nullptr;

    Module& unit(size_t index);
    void lend_gradients(size_t layer, LoanPool& loans) const;
    std::shared_ptr<const precision::Recipe> recipe_of(size_t layer, const Run& run) const;
    std::vector<LowPrecisionState::Member> low_precision_members();
};

}  // namespace moebius::nn
