// One training step: all its micro-batches, the global norm, the update.
#pragma once

#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "moebius/eval/evaluator.h"
#include "moebius/runtime/graph.h"
#include "moebius/train/low_precision.h"

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
    bool cuda_graph = false;  // from the second update on, the step is one CUDA graph that is replayed
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
    std::vector<TensorStatistics> low_precision;  // empty without statistics
};

// What a step takes, from a dry run of it.
struct StepPlan {
    Cost cost;
    int64_t bytes = 0;          // at most in use during the step, beside parameters and state and scratch
    int64_t scratch_bytes = 0;  // at most what operations take inside, on the CPU: cpu_scratch_bytes()
    int64_t saved_bytes = 0;    // kept from forward to backward, one micro-batch
    int64_t lent_bytes = 0;     // of these, in memory of gradients that are written later: not in `bytes`
    PoolReport memory;          // by name
    VariantLog variants;        // that its operations choose
};

// Why a model's step cannot be captured in a CUDA graph; "" if it can.
std::string why_no_cuda_graph(const nn::DecoderOptions& options);

// The device is given one step after the other without waiting for results: a step's inputs go to fixed
// device memory by one copy, its results come back by another, both from and to pinned memory. On the CPU the
// same copies are made, and a step is done when enqueue returns.
class Step {
  public:
    // Steps that may be queued and not finished.
    static constexpr int64_t kInFlight = 2;

    // `run`: exec, dtype; the rest is the step's. The model is placed. `host` gives the memory that copies go
    // from and to, pinned where the device is a GPU; null on the CPU only.
    Step(models::Model& model, const StepOptions& options, const nn::Run& run,
         std::pmr::memory_resource* host = nullptr);
    ~Step();  // waits for what is in flight
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // Queues update number `update`, from 1; the batch may be used again at once.
    void enqueue(const data::StepBatch& batch, int64_t update, double learning_rate);
    // The results of the oldest step in flight; waits for it alone.
    StepResult finish();
    int64_t in_flight() const { return queued_ - finished_; }
    // enqueue and finish.
    StepResult run(const data::StepBatch& batch, int64_t update, double learning_rate);
    StepPlan plan();
    const nn::Run& base_run() const { return run_; }
    // The variants that the first step took, and why not those above them; empty before it.
    const VariantLog& variants() const { return variants_; }
    int64_t graph_nodes() const { return graph_.nodes(); }  // 0 without a graph

  private:
    struct Buffers;
    struct Slot;
    void work(Buffers& buffers, nn::Run& run);
    void micro_batches(Buffers& buffers, nn::Run& run);
    void update(Buffers& buffers, nn::Run& run);
    void run_or_replay(int64_t update);
    bool global_aux() const;

    models::Model& model_;
    StepOptions options_;
    nn::Run run_;
    std::shared_ptr<Buffers> buffers_;
    std::vector<std::shared_ptr<Slot>> slots_;  // kInFlight of them, taken in turns
    Graph graph_;
    VariantLog variants_;
    int64_t queued_ = 0, finished_ = 0;
    int64_t saved_bytes_ = 0, lent_bytes_ = 0;
};

}  // namespace moebius::train
