// Linear layers in low precision: tensors quantized as run.recipe says, the three products of them, and what
// is kept between calls.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "moebius/nn/module.h"
#include "moebius/precision/recipe.h"
#include "moebius/tensor/parameter.h"
#include "moebius/tensor/quantized.h"

namespace moebius::nn {

// Inside its scope run.recipe is `recipe`, or none; nested as you like. Modules that can follow it: Linear,
// GroupedLinear, and the experts' loop.
class Autocast {
  public:
    Autocast(Run& run, bool enabled, std::shared_ptr<const precision::Recipe> recipe);
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

  private:
    Run& run_;
    std::shared_ptr<const precision::Recipe> before_;
};

// Of a whole model.
struct LowPrecisionOptions {
    // Of the layers that `layers` names; null: run.recipe is what the caller set it to, in all layers.
    std::shared_ptr<const precision::Recipe> recipe;
    std::vector<bool> layers;  // empty: all
    // Quantized weights: once after they changed, both ways, or, false, for each use, which takes their
    // memory one after the other and reads each weight twice a micro-batch. Empty: once where a step has
    // several micro-batches, on the CPU, and with `persistent`.
    std::optional<bool> keep_weights;
    // Kept weights are held as codes and f32 masters alone, not in the dtype of the others, and are quantized
    // from the masters.
    bool persistent = false;
    bool statistics = false;    // of every quantized tensor, for LowPrecisionState::statistics
    int64_t micro_batches = 1;  // of a step, at most

    bool keeps_weights(const Device& device) const {
        return keep_weights.value_or(persistent || micro_batches > 1 || device.kind() == DeviceKind::Cpu);
    }
    bool uses(size_t layer) const { return recipe && (layers.empty() || layers[layer]); }
};

// What quantizing a tensor of E experts reads and leaves beside codes and scales; each may be empty.
struct TensorState {
    View scale;          // (E) f32, in: DelayedScaling's
    View observed_amax;  // (E) f32, out
    View counts;         // (E, 2) i64, out: as ops::QuantizeArgs has them

    TensorState expert(int64_t e) const;
};

struct Directions {
    bool row = false, column = false;
};

// (M, K) to quantize: the rows of `values`, or those that `row_index` (M) i32 names: row m is row
// row_index[m] / topk of `values`; with `rstd` and `norm_weight` what a norm makes of them, as
// ops::QuantizeSource has it.
struct Rows {
    View values, row_index;
    int64_t topk = 1;
    View rstd, norm_weight;

    Rows(const View& view) : values(view) {}
    Rows(const Tensor& tensor) : values(tensor) {}
    Rows(const Activation& x) : values(x.high), topk(x.topk) {
        if (x.source) row_index = x.source;
        if (x.rstd) {
            rstd = x.rstd;
            norm_weight = x.norm_weight->value;
        }
    }
};

// Experts' rows (M, K) as the recipe's products read a tensor of this role: row-wise, column-wise or both.
// Without split_sizes they are one expert's. Throws Error for DelayedScaling without a scale.
Quantized quantize_rows(const Rows& rows, const View& split_sizes, precision::Role role,
                        const precision::Recipe& recipe, Directions directions, const Exec& exec,
                        const TensorState& state = {});

// One of a linear layer's products, out = beta · out + it. Operands and out: ops::GroupedGemmQuantizedArgs.
struct LowPrecisionProduct {
    precision::Use use = precision::Use::Forward;
    Operand a, b;
    View out, split_sizes;
    float beta = 0;

    void run(const precision::Recipe& recipe, const Exec& exec) const;
};
// An expert's part of a weight's operand, as one of E = 1.
Operand expert_of(const Operand& weight, int64_t expert);

class LowPrecisionState;

// A linear layer's part of it all, y = x Wᵀ for each expert's rows: the weight is (E, N, K), or (N, K) as the
// only expert's. Without a LowPrecisionState (or with another's recipe) nothing is kept: the weight is
// quantized for each use, and DelayedScaling throws Error.
class LowPrecisionLinear {
  public:
    explicit LowPrecisionLinear(Parameter* weight) : weight_(weight) {}

    Quantized input(const Rows& x, const View& split_sizes, const precision::Recipe& recipe,
                    Directions directions, const Run& run) const;
    Quantized grad_output(const Rows& dy, const View& split_sizes, const precision::Recipe& recipe,
                          Directions directions, const Run& run) const;
    // The column-wise codes of an input whose row-wise ones `input` made: leaves no trace in the statistics.
    Quantized input_again(const Rows& x, const View& split_sizes, const precision::Recipe& recipe,
                          const Run& run) const;
    // Whether the weight's codes stay when a product has read them.
    bool keeps_weight(const precision::Recipe& recipe) const;
    // Kept weights have both directions, others the one that is asked for.
    Quantized weight(Direction direction, const precision::Recipe& recipe, const Run& run);

    void forward(const Quantized& x, const View& split_sizes, const View& y, const precision::Recipe& recipe,
                 const Run& run);  // x row-wise → y (M, N)
    void dgrad(const Quantized& dy, const View& split_sizes, const View& dx, const precision::Recipe& recipe,
               const Run& run);  // dy row-wise → dx (M, K)
    // Both column-wise, into the weight's main_grad.
    void wgrad(const Quantized& dy, const Quantized& x, const View& split_sizes,
               const precision::Recipe& recipe, const Run& run);

    // For those who quantize in a kernel of their own: what it reads and leaves.
    TensorState tensor(precision::Role role, const precision::Recipe& recipe, const Run& run) const;
    const Parameter& parameter() const { return *weight_; }
    MatrixShape matrix() const;  // of the weight

  private:
    friend class LowPrecisionState;
    View value(const View& view) const;  // as (E, N, K)

    Parameter* weight_;
    const LowPrecisionState* state_ = nullptr;
    int64_t offset_ = 0;  // of its experts among all layers'
    Quantized kept_;
    uint64_t kept_version_ = 0;  // of the weight that kept_ was made from; 0: of none
};

// A linear layer's input under a recipe until the weight's gradient: its column-wise codes or, where what
// they are made of stays or can be made again, that.
class KeptInput {
  public:
    // The row-wise codes; keeps what backward needs if the pass is saved.
    Quantized quantize(const Activation& x, const View& split_sizes, const LowPrecisionLinear& linear,
                       const precision::Recipe& recipe, const Run& run);
    // The column-wise codes, which nobody holds afterwards.
    Quantized take(const View& split_sizes, const LowPrecisionLinear& linear, const precision::Recipe& recipe,
                   Run& run);
    int64_t bytes() const { return x_.bytes() + codes_.bytes(); }

  private:
    Kept x_;
    Quantized codes_;
};

// What a model's linear layers keep: quantized weights, and flat memory for all amaxes, histories and scales,
// so that a step's end is one call a role. Everything is placed once, so that a step's CUDA graph finds it.
class LowPrecisionState {
  public:
    struct Member {
        LowPrecisionLinear* linear = nullptr;
        int64_t layer = 0;
        bool routed = false;  // its rows are those that experts got, not all tokens
    };
    LowPrecisionState() = default;
    LowPrecisionState(const LowPrecisionState&) = delete;
    LowPrecisionState& operator=(const LowPrecisionState&) = delete;

    // Memory; scales start at 1, histories at 0. The members' layers are those that use the options' recipe.
    void place(std::vector<Member> members, const LowPrecisionOptions& options, const Exec& exec);
    // DelayedScaling's histories and scales, to be saved.
    std::vector<StateEntry> buffers() const;
    // What the products read in place of what it was made from: masters as they are without the bits that
    // quantizing drops. Before the first step.
    void round_weights(Run& run);
    // Amaxes are seen from here on.
    void begin_step(const Run& run);
    // DelayedScaling's next scales, from this step's amaxes: over all ranks of run.world, an expert's over
    // those that hold it; after a bad step those that were.
    void end_step(const Run& run);

    const std::vector<Member>& members() const { return members_; }
    int64_t weight_bytes() const;  // of kept weights

    // Of a step: with options.statistics, after it and before the next. n scales a role, S micro-batches.
    struct Statistics {
        View observed_amax;  // (S, 3, n) f32
        View counts;         // (S, 3, n, 2) i64: numbers that became zero, numbers beyond the largest code
        View scale;          // (3, n) f32, DelayedScaling only: the next step's
    };
    Statistics statistics() const;
    int64_t offset(const Member& member) const { return member.linear->offset_; }

  private:
    friend class LowPrecisionLinear;
    bool delayed() const;
    View rows(const Tensor& flat, precision::Role role, int64_t offset, int64_t count) const;
    void next_scales(int64_t offset, int64_t count, Communicator* ranks, const Run& run);

    LowPrecisionOptions options_;
    bool keeps_weights_ = false;
    std::vector<Member> members_;
    int64_t count_ = 0;         // of scales a role: dense layers', then experts'
    int64_t dense_ = 0;         // of these, dense layers'
    Tensor history_;            // (3n, length) f32
    Tensor scale_;              // (3n) f32
    Tensor observed_, counts_;  // (S, 3n) f32; (S, 3n, 2) i64
};

}  // namespace moebius::nn
