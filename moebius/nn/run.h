// What a forward or backward is run with: a small value that the caller owns and passes down. Nothing here is
// global.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moebius/comm/communicator.h"
#include "moebius/precision/recipe.h"
#include "moebius/runtime/exec.h"
#include "moebius/tensor/tensor.h"

namespace moebius::nn {

enum class FusionMode { Auto, Strict, Off };

struct Pass {
    bool training = true;  // input jitter, losses' gradients
    bool save = true;      // keep what backward needs
    bool count = true;     // add to the router's statistics
    // What forward keeps may lie in memory of gradients that backward has not written yet in this step. This
    // pass's backward comes before anything else is done with the model.
    bool lend_gradients = false;
};

// One micro-batch on the device. Capacity T tokens in B packed sequences.
struct BatchView {
    View tokens;       // (T) i32
    View targets;      // (T) i32: the next token of the same sequence, or −100; empty: no loss
    View positions;    // (T) i32, from 0 in every sequence
    View cu_seqlens;   // (B+1) i32
    View valid;        // (T) u8: 1 for tokens, 0 for padding; empty: all valid
    View token_count;  // (1) i32: T; read by products in low precision alone
    int64_t max_seqlen = 0;
    bool none_empty = false;  // every sequence has a token
    int64_t first_token = 0;  // of this micro-batch within the step, over all ranks: indexes random numbers
    int64_t index = 0;        // of this micro-batch within the step
};

// Scalars that live beside the data; ops read them there.
struct StepScalars {
    View learning_rate;  // (1) f32
    View step;           // (1) i64: the update's number, from 1
    View bad;            // (1) i32: sticky; set by non-finite losses and norms and by indices out of range
    View clip;           // (1) f32: what stored gradients are multiplied by in the update
    View norm;           // (1) f32: global gradient norm before clipping
    View grad_factor;    // (1) f32: 1 / labels of the global batch
    View aux_scale;  // (1) f32: what gradients of the auxiliary losses are multiplied by (they are means, the
                     // rest sums)
    View one;        // (1) f32: 1
};

// The router statistics of all layers in one buffer, so that one reduction serves them all.
struct RouterStatistics {
    Tensor counts, prob_sums;  // (L, E) f32
    Tensor z_sums, tokens;     // (L) f32
    Tensor dprobs;  // (L, E) f32: gradients of the auxiliary losses, made between forward and backward
    Tensor dz;      // (L) f32
};

// Somebody who wants values from inside the layers: `moebius forward`, tests. Called in forward only.
class Observer {
  public:
    virtual ~Observer() = default;
    virtual void record(const std::string& name, const View& value, const Exec& exec) = 0;
};

struct Run {
    Exec exec;
    DType dtype = DType::F32;                         // of activations
    std::shared_ptr<const precision::Recipe> recipe;  // of low-precision products; null: none
    Pass pass;
    FusionMode fusion = FusionMode::Auto;
    BatchView batch;
    StepScalars scalars;
    RouterStatistics* router = nullptr;
    Observer* observer = nullptr;          // may be null
    Communicator* world = nullptr;         // ranks that share the batch
    Communicator* expert_ranks = nullptr;  // of them, those that hold the same experts; null: all
    uint64_t seed = 0;
    int64_t step = 0;  // for counter-based random numbers
    // Modules hand on how to make an input again, where that costs little, and backward does it.
    bool remake = false;
    Pool* keep = nullptr;  // for what keeping() says; null: exec's

    // For what forward keeps until backward, and for what a layer's backward needs until its end.
    Exec keeping() const {
        Exec kept = exec;
        if (keep != nullptr) kept.pool = keep;
        return kept;
    }
};

}  // namespace moebius::nn
