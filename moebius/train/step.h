// One training step: all its micro-batches, the global norm, the update.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moebius/eval/evaluator.h"

namespace moebius::train {

enum class AuxScope { MicroBatch, GlobalBatch };

struct AdamWOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-5f, weight_decay = 0.1f;
};

struct StepOptions {
    int64_t micro_batches = 1;
    data::BatchShape shape;
    AdamWOptions adamw;
    bool decay_all = false;  // weight decay on every parameter, whatever its group
    float clip_grad_norm = 1.0f;
    AuxScope aux_scope = AuxScope::MicroBatch;
    nn::FusionMode fusion = nn::FusionMode::Auto;
    uint64_t seed = 42;
};

struct StepResult {
    double loss = 0;      // mean over the step's labels, in nats
    double aux_loss = 0;  // with its coefficient, weighted by labels over micro-batches
    double z_loss = 0;
    double grad_norm = 0;
    int64_t labels = 0;
    bool bad = false;                   // loss, norm or an index was not as it must be: nothing was updated
    std::vector<float> expert_counts;   // (layers, experts): copies of valid tokens
    std::vector<float> layer_aux_loss;  // (layers): balance values, empty without the loss
};

// What a step takes, from a dry run of it.
struct StepPlan {
    Cost cost;
    int64_t bytes = 0;        // at most in use during the step, beside parameters and state
    int64_t saved_bytes = 0;  // kept from forward to backward, one micro-batch
    PoolReport memory;        // by name
};

class Step {
  public:
    // `run`: exec, dtype; the rest is the step's. The model is placed.
    Step(models::Model& model, const StepOptions& options, const nn::Run& run);

    // Update number `update`, from 1.
    StepResult run(const data::StepBatch& batch, int64_t update, double learning_rate);
    StepPlan plan();
    const nn::Run& base_run() const { return run_; }

  private:
    struct Buffers;
    void micro_batches(const data::StepBatch* batch, Buffers& buffers, nn::Run& run, StepResult& result);
    void update(Buffers& buffers, nn::Run& run);

    models::Model& model_;
    StepOptions options_;
    nn::Run run_;
    std::shared_ptr<Buffers> buffers_;
    int64_t saved_bytes_ = 0;
};

}  // namespace moebius::train
