// A chain of ops and the fuser that replaces known windows of it by fused ops, forward and backward.
#pragma once

#include "moebius/nn/module.h"

namespace moebius::nn {

// One pattern of the fuser: a window of kinds, and what replaces it. A file in nn/fusions/ and a row in its
// table.
struct FusionPattern {
    const char* name;
    std::vector<OpKind> window;
    // "" if the ops can be fused, else the first reason why not, with values.
    std::string (*why_not)(std::span<Fusible* const> ops, const Run& run);
    std::unique_ptr<Fusible> (*make)(std::span<Fusible* const> ops);
    // What the fused op leaves to a pass of its own, and why; "" for nothing.
    std::string (*note)(std::span<Fusible* const> ops, const Run& run) = nullptr;
};

std::span<const FusionPattern> fusion_patterns();

struct FusionReportRow {
    std::string window;   // "GroupedLinear(…) → ScaledSwiGLU → GroupedLinear(…)"
    std::string pattern;  // name of the pattern
    bool fused = false;
    std::string reason;  // why not, where it is not
    std::string note;    // of a fused one: what is left to a pass of its own
};

// ffn(x, split_sizes, probs, split_sizes) for GroupedLinear → ScaledSwiGLU → GroupedLinear: extra inputs in
// order.
class Sequential : public Fusible {
  public:
    explicit Sequential(std::vector<std::unique_ptr<Fusible>> ops) : ops_(std::move(ops)) {}

    OpKind kind() const override { return OpKind::Fused; }
    std::string name() const override { return "Sequential"; }
    int extra_inputs() const override;
    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override;
    FusibleBackward backward(ContextPtr context, Activation dy, Run& run) override;

    void low_precision(std::vector<LowPrecisionLinear*>& list) override;

    // Of the plan in force; empty before the first forward.
    const std::vector<FusionReportRow>& fusion_report() const { return report_; }
    Fusible& op(size_t index) { return *ops_[index]; }
    size_t size() const { return ops_.size(); }

  private:
    struct PlanKey {
        const Device* device = nullptr;
        DType dtype = DType::F32;
        FusionMode fusion = FusionMode::Off;
        std::shared_ptr<const precision::Recipe> recipe;
        bool operator==(const PlanKey&) const = default;
    };
    // Scans the chain; throws Error in strict mode where a pattern's window is not fused.
    void plan(const Run& run);

    std::vector<std::unique_ptr<Fusible>> ops_;
    std::vector<std::unique_ptr<Fusible>> fused_;
    std::vector<Fusible*> steps_;
    std::vector<FusionReportRow> report_;
    bool planned_ = false;
    PlanKey key_;
};

// The experts' MLP: GroupedLinear `name`.gate_up → ScaledSwiGLU → GroupedLinear `name`.down.
struct GroupedMlpOptions {
    int64_t experts = 1, hidden = 0, intermediate = 0;
    double init_std = 0.02, down_init_std = 0.02;
    bool decay = true;
};
std::unique_ptr<Sequential> grouped_mlp(ParameterSet& parameters, const std::string& name,
                                        const GroupedMlpOptions& options);

}  // namespace moebius::nn
