#include "moebius/nn/fusions/grouped_mlp.h"

#include <fmt/format.h>

#include "moebius/nn/grouped_linear.h"
#include "moebius/nn/scaled_glu.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/grouped_mlp/grouped_mlp.h"
#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"
#include "moebius/runtime/loan_pool.h"
#include "moebius/runtime/transfer.h"

namespace moebius::nn {
namespace {

using precision::Recipe;
using precision::Role;
using precision::Use;

struct FusedContext : Context {
    Kept x;
    Tensor c, scales, split_sizes;
    std::shared_ptr<const Recipe> recipe;  // with it low_x in the place of x
    KeptInput low_x;
    Tensor activation_amax;  // (E), where the activation's scales were found
    int64_t bytes() const override { return x.bytes() + low_x.bytes() + c.view().bytes(); }
};

// Experts' rows (M, columns) that the op quantizes itself, by the rule of the tensor whose place they take.
// Each direction goes on its own.
struct Made {
    Quantized row, column;
    ops::QuantizeTarget target;

    // `row_exec` and `column_exec`: whose pools the directions come from; null: not that one.
    Made(const char* name, Role role, const LowPrecisionLinear& linear, const Recipe& recipe,
         const MatrixShape& matrix, const Exec* row_exec, const Exec* column_exec, const Run& run) {
        const precision::TensorRule& rule = recipe.tensor(role);
        QuantizedSpec spec{.element = rule.element,
                           .scale = recipe.scale,
                           .power_of_two = rule.power_of_two,
                           .matrix = matrix};
        if (row_exec != nullptr) row = Quantized::empty(name, spec, *row_exec);
        spec.row = false;
        spec.column = true;
        if (column_exec != nullptr) column = Quantized::empty(name, spec, *column_exec);
        const TensorState state = linear.tensor(role, recipe, run);
        target = {.row = row.row(),
                  .column = column.column(),
                  .rule = {.amax_epsilon = rule.amax_epsilon,
                           .scale = state.scale,
                           .observed_amax = state.observed_amax,
                           .counts = state.counts}};
    }
};

class FusedGroupedMlp : public Fusible {
  public:
    FusedGroupedMlp(GroupedLinear& gate_up, ScaledGlu& glu, GroupedLinear& down)
        : gate_up_(gate_up), glu_(glu), down_(down) {}

    OpKind kind() const override { return OpKind::Fused; }
    std::string name() const override { return "FusedGroupedMLP"; }
    int extra_inputs() const override { return 3; }  // split_sizes, scales, split_sizes

    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override {
        if (run.recipe) return forward_quantized(x, extra, run);
        MOEBIUS_CHECK(!x.source, "rows nobody gathered, without a recipe");
        const int64_t rows = x.high.shape()[0];
        Tensor y = Tensor::empty("grouped_mlp.y", {rows, down_.options().out_features}, run.dtype, run.exec);
        Tensor c;
        if (run.pass.save) {
            c = Tensor::empty("grouped_mlp.c", {rows, gate_up_.options().out_features}, run.dtype,
                              run.keeping());
        }
        ops::grouped_mlp({.options = glu_.options(),
                          .x = x.high,
                          .gate_up = gate_up_.weight()->value,
                          .down = down_.weight()->value,
                          .scales = extra[1],
                          .split_sizes = extra[0],
                          .c = c,
                          .y = y},
                         run.exec);
        if (!run.pass.save) return {{y}, nullptr};
        auto context = std::make_unique<FusedContext>();
        context->x = Kept(x);
        context->c = c;
        context->scales = extra[1];
        context->split_sizes = extra[0];
        return {{y}, std::move(context)};
    }

    FusibleBackward backward(ContextPtr opaque, Activation dy, Run& run) override {
        const auto context = take<FusedContext>(std::move(opaque));
        if (context->recipe) return backward_quantized(*context, dy, run);
        const Tensor x = context->x.get(run);
        Tensor dx = Tensor::empty("grouped_mlp.dx", x.shape(), run.dtype, run.exec);
        Tensor dscales = Tensor::empty("grouped_mlp.dscales", {dx.shape()[0]}, DType::F32, run.exec);
        ops::grouped_mlp_backward({.options = glu_.options(),
                                   .x = x,
                                   .c = context->c,
                                   .gate_up = gate_up_.weight()->value,
                                   .down = down_.weight()->value,
                                   .scales = context->scales,
                                   .split_sizes = context->split_sizes,
                                   .dy = dy.high,
                                   .dx = dx,
                                   .dgate_up = gate_up_.weight()->main_grad,
                                   .ddown = down_.weight()->main_grad,
                                   .dscales = dscales,
                                   .beta_gate_up = gate_up_.weight()->take_fresh(),
                                   .beta_down = down_.weight()->take_fresh(),
                                   .overwrite_c = true},
                                  run.exec);
        return {{dx}, {Tensor(), dscales, Tensor()}};
    }

  private:
    int64_t intermediate() const { return down_.options().in_features; }
    int64_t experts() const { return down_.options().num_groups; }
    // A weight's gradient, if nothing was written there in this step.
    static void lend_gradient(const GroupedLinear& linear, LoanPool& pool) {
        const Parameter& weight = *linear.weight();
        if (weight.fresh && weight.main_grad)
            pool.lend(0, weight.main_grad.data, static_cast<size_t>(weight.main_grad.bytes()));
    }
    static Run in(LoanPool& pool, const Run& run) {
        Run inside = run;
        inside.exec.pool = &pool;
        return inside;
    }

    Forward forward_quantized(const Activation& x, std::span<const Tensor> extra, Run& run) {
        const Recipe& recipe = *run.recipe;
        const Exec& exec = run.exec;
        const int64_t rows = x.rows();
        Tensor y = Tensor::empty("grouped_mlp.y", {rows, down_.options().out_features}, run.dtype, exec);
        auto context = std::make_unique<FusedContext>();
        context->c = Tensor::empty("grouped_mlp.c", {rows, 2 * intermediate()}, run.dtype, run.keeping());
        LowPrecisionLinear &low_gate_up = gate_up_.low_precision(), &low_down = down_.low_precision();
        const Quantized low_x = context->low_x.quantize(x, extra[0], low_gate_up, recipe, run);
        // Codes of weights that nobody keeps, and the products' scratch, may lie where the weights' gradients
        // come in backward.
        LoanPool room(exec);
        if (run.pass.lend_gradients) {
            lend_gradient(gate_up_, room);
            lend_gradient(down_, room);
        }
        const Run with_room = in(room, run);
        const Quantized gate_up = low_gate_up.weight(Direction::Row, recipe, with_room),
                        down = low_down.weight(Direction::Row, recipe, with_room);
        Made activation("activation", Role::Input, low_down, recipe, {rows, intermediate(), experts()}, &exec,
                        nullptr, run);
        ops::QuantizeRule& rule = activation.target.rule;
        // Backward makes the activation's other codes, with the same scales.
        Tensor amax;
        if (run.pass.save && recipe.source == precision::ScaleSource::Current) {
            amax = Tensor::empty("activation.amax", {experts()}, DType::F32, run.keeping());
            if (!rule.observed_amax) rule.observed_amax = amax;
        }
        ops::grouped_mlp_quantized({.options = glu_.options(),
                                    .x = low_x.row(),
                                    .gate_up = gate_up.row(),
                                    .down = down.row(),
                                    .scales = extra[1],
                                    .split_sizes = extra[0],
                                    .activation = activation.target,
                                    .c = context->c,
                                    .y = y,
                                    .fast_accumulation = recipe.fast(Use::Forward)},
                                   with_room.exec);
        if (!run.pass.save) return {{y}, nullptr};
        context->recipe = run.recipe;
        if (amax && rule.observed_amax.data != amax.view().data) {
            copy(amax.view().data, rule.observed_amax.data, static_cast<size_t>(amax.view().bytes()), exec);
        }
        context->activation_amax = amax;
        context->scales = extra[1];
        context->split_sizes = extra[0];
        return {{y}, std::move(context)};
    }

    // What is read for a while lies, where it fits, in memory that is written later: of this layer's own
    // gradients until each is (the down weight's comes first, the gate-up weight's last), else of those of
    // the layers before, where C lay too, which dies with the making of dC. So dC's column-wise codes alone
    // need memory beside what forward kept.
    FusibleBackward backward_quantized(FusedContext& context, const Activation& dy, Run& run) {
        const Recipe& recipe = *context.recipe;
        const int64_t rows = dy.rows();
        const Tensor& split_sizes = context.split_sizes;
        LowPrecisionLinear &low_gate_up = gate_up_.low_precision(), &low_down = down_.low_precision();
        Run layers_before = run;
        layers_before.exec = run.keeping();
        LoanPool until_dgate_up(layers_before.exec);
        lend_gradient(gate_up_, until_dgate_up);
        const Run first_room = in(until_dgate_up, run);
        LoanPool until_ddown(first_room.exec);
        lend_gradient(down_, until_ddown);

        Tensor dscales = Tensor::empty("grouped_mlp.dscales", {rows}, DType::F32, run.exec);
        Made dc("dc", Role::GradOutput, low_gate_up, recipe, {rows, 2 * intermediate(), experts()},
                &first_room.exec, &layers_before.exec, run);
        Made activation("activation", Role::Input, low_down, recipe, {rows, intermediate(), experts()},
                        nullptr, &first_room.exec, run);
        ops::QuantizeRule& rule = activation.target.rule;
        rule.amax = context.activation_amax;
        rule.observed_amax = rule.counts = {};
        Quantized low_dy =
            low_down.grad_output(dy, split_sizes, recipe, {.row = true, .column = true}, first_room);
        Quantized down = low_down.weight(Direction::Column, recipe, first_room);
        ops::grouped_mlp_quantized_backward({.options = glu_.options(),
                                             .down = down.column(),
                                             .dy = low_dy.row(),
                                             .c = context.c,
                                             .scales = context.scales,
                                             .split_sizes = split_sizes,
                                             .dc = dc.target,
                                             .activation = activation.target,
                                             .dscales = dscales,
                                             .fast_dgrad = recipe.fast(Use::Dgrad),
                                             .overwrite_c = true},
                                            in(until_ddown, run).exec);
        down = {};
        context.c.reset();
        low_dy.drop(Direction::Row);
        until_ddown.take_back(0);
        low_down.wgrad(low_dy, activation.column, split_sizes, recipe, first_room);
        low_dy = activation.column = {};
        Tensor dx = Tensor::empty("grouped_mlp.dx", {rows, gate_up_.options().in_features}, run.dtype,
                                  layers_before.exec);
        low_gate_up.dgrad(dc.row, split_sizes, dx, recipe, first_room);
        dc.row = {};
        until_dgate_up.take_back(0);
        low_gate_up.wgrad(dc.column, context.low_x.take(split_sizes, low_gate_up, recipe, layers_before),
                          split_sizes, recipe, layers_before);
        return {{dx}, {Tensor(), dscales, Tensor()}};
    }

    GroupedLinear& gate_up_;
    ScaledGlu& glu_;
    GroupedLinear& down_;
};

std::string why_not(std::span<Fusible* const> window, const Run& run) {
    auto& gate_up = static_cast<GroupedLinear&>(*window[0]);
    auto& down = static_cast<GroupedLinear&>(*window[2]);
    const bool delayed = run.recipe && run.recipe->source == precision::ScaleSource::Delayed;
    if (delayed && !gate_up.low_precision().tensor(Role::Input, *run.recipe, run).scale)
        return fmt::format("{}: these layers keep no scales", run.recipe->name);
    for (const GroupedLinear* linear : {&gate_up, &down}) {
        if (linear->options().bias) return fmt::format("{} has a bias", linear->name());
        if (linear->options().delay_wgrad_compute)
            return fmt::format("{} delays its weight gradient", linear->name());
    }
    if (gate_up.options().num_groups != down.options().num_groups) {
        return fmt::format("{} and {} groups", gate_up.options().num_groups, down.options().num_groups);
    }
    if (gate_up.options().out_features != 2 * down.options().in_features) {
        return fmt::format("gate and up give {} columns, not 2 · {}", gate_up.options().out_features,
                           down.options().in_features);
    }
    return {};
}

bool on_untried_kernels(const Run& run) {
    if (run.recipe->scale != ScaleKind::MX32) return false;
    const std::vector<ops::VariantInfo> variants = ops::grouped_gemm_quantized_variants();
    const auto* expected = ops::expected_variant(variants, run.exec.device->kind(), run.exec.device->cc());
    return expected && expected->untried;
}

// A scale that comes from the amax of the whole tensor is known after the last tile.
std::string note(std::span<Fusible* const>, const Run& run) {
    if (!run.recipe) return {};
    if (on_untried_kernels(run)) {
        return fmt::format(
            "{}: the products' kernels were compiled for this card but not yet run on such a one",
            run.recipe->name);
    }
    if (run.recipe->source != precision::ScaleSource::Current) return {};
    return fmt::format(
        "{}: the scales of the activation and of the gradient of the pre-activation are known after the last "
        "tile, so one more pass over the pre-activation quantizes both ways",
        run.recipe->name);
}

std::unique_ptr<Fusible> make(std::span<Fusible* const> window) {
    return std::make_unique<FusedGroupedMlp>(static_cast<GroupedLinear&>(*window[0]),
                                             static_cast<ScaledGlu&>(*window[1]),
                                             static_cast<GroupedLinear&>(*window[2]));
}

}  // namespace

FusionPattern grouped_mlp_fusion() {
    return {"FusedGroupedMLP",
            {OpKind::GroupedLinear, OpKind::ScaledGlu, OpKind::GroupedLinear},
            why_not,
            make,
            note};
}

}  // namespace moebius::nn
