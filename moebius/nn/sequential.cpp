#include "moebius/nn/sequential.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/nn/grouped_linear.h"
#include "moebius/nn/scaled_glu.h"

namespace moebius::nn {
namespace {

struct SequentialContext : Context {
    std::vector<ContextPtr> contexts;
    std::vector<Fusible*> steps;  // the plan that forward ran
    int64_t bytes() const override {
        int64_t total = 0;
        for (const auto& context : contexts) total += context->bytes();
        return total;
    }
};

std::string window_name(std::span<Fusible* const> ops) {
    std::string text;
    for (const Fusible* op : ops) text += (text.empty() ? "" : " → ") + op->name();
    return text;
}

bool matches(const FusionPattern& pattern, std::span<Fusible* const> ops) {
    if (ops.size() < pattern.window.size()) return false;
    for (size_t i = 0; i < pattern.window.size(); ++i) {
        if (ops[i]->kind() != pattern.window[i]) return false;
    }
    return true;
}

}  // namespace

int Sequential::extra_inputs() const {
    int count = 0;
    for (const auto& op : ops_) count += op->extra_inputs();
    return count;
}

void Sequential::plan(const Run& run) {
    const PlanKey key{run.exec.device, run.dtype, run.fusion, run.recipe};
    if (planned_ && key == key_) return;
    std::vector<Fusible*> chain;
    for (const auto& op : ops_) chain.push_back(op.get());
    // A context of an earlier plan may still wait for its backward: fused ops stay until the chain goes.
    steps_.clear();
    report_.clear();
    for (size_t at = 0; at < chain.size();) {
        size_t taken = 1;
        Fusible* step = chain[at];
        for (const FusionPattern& pattern : fusion_patterns()) {
            const std::span<Fusible* const> rest(chain.data() + at, chain.size() - at);
            if (!matches(pattern, rest)) continue;
            const auto window = rest.first(pattern.window.size());
            const std::string reason =
                run.fusion == FusionMode::Off ? "fusion = off" : pattern.why_not(window, run);
            report_.push_back({window_name(window), pattern.name, reason.empty(), reason, {}});
            if (!reason.empty()) continue;
            if (pattern.note) report_.back().note = pattern.note(window, run);
            fused_.push_back(pattern.make(window));
            step = fused_.back().get();
            taken = window.size();
            break;
        }
        steps_.push_back(step);
        at += taken;
    }
    if (run.fusion == FusionMode::Strict) {
        for (const FusionReportRow& row : report_) {
            if (!row.fused) {
                throw Error(fmt::format("fusion = strict, but {} is not fused by {}: {}", row.window,
                                        row.pattern, row.reason));
            }
        }
    }
    planned_ = true;
    key_ = key;
}

Forward Sequential::forward(Activation x, std::span<const Tensor> extra, Run& run) {
    plan(run);
    MOEBIUS_CHECK(static_cast<int>(extra.size()) == extra_inputs(), extra.size(), " extra inputs");
    auto context = std::make_unique<SequentialContext>();
    context->steps = steps_;
    for (Fusible* step : steps_) {
        const auto count = static_cast<size_t>(step->extra_inputs());
        Forward result = step->forward(std::move(x), extra.first(count), run);
        extra = extra.subspan(count);
        x = std::move(result.y);
        context->contexts.push_back(std::move(result.context));
    }
    if (!run.pass.save) return {x, nullptr};
    return {x, std::move(context)};
}

FusibleBackward Sequential::backward(ContextPtr opaque, Activation dy, Run& run) {
    auto context = take<SequentialContext>(std::move(opaque));
    FusibleBackward result;
    for (size_t i = context->steps.size(); i-- > 0;) {
        FusibleBackward part =
            context->steps[i]->backward(std::move(context->contexts[i]), std::move(dy), run);
        dy = std::move(part.dx);
        result.dextra.insert(result.dextra.begin(), part.dextra.begin(), part.dextra.end());
    }
    result.dx = std::move(dy);
    return result;
}

void Sequential::low_precision(std::vector<LowPrecisionLinear*>& list) {
    for (const auto& op : ops_) op->low_precision(list);
}

std::unique_ptr<Sequential> grouped_mlp(ParameterSet& parameters, const std::string& name,
                                        const GroupedMlpOptions& o) {
    std::vector<std::unique_ptr<Fusible>> ops;
    ops.push_back(std::make_unique<GroupedLinear>(parameters, name + ".gate_up",
                                                  GroupedLinearOptions{.num_groups = o.experts,
                                                                       .in_features = o.hidden,
                                                                       .out_features = 2 * o.intermediate,
                                                                       .init_std = o.init_std,
                                                                       .decay = o.decay}));
    ops.push_back(std::make_unique<ScaledGlu>());
    ops.push_back(std::make_unique<GroupedLinear>(parameters, name + ".down",
                                                  GroupedLinearOptions{.num_groups = o.experts,
                                                                       .in_features = o.intermediate,
                                                                       .out_features = o.hidden,
                                                                       .init_std = o.down_init_std,
                                                                       .decay = o.decay}));
    return std::make_unique<Sequential>(std::move(ops));
}

}  // namespace moebius::nn
