#include "moebius/nn/grouped_linear.h"

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::nn {
namespace {

struct GroupedLinearContext : Context {
    Kept x;
    Tensor split_sizes, scales;
    std::shared_ptr<const precision::Recipe> recipe;  // with it low_x in the place of x
    KeptInput low_x;
    int64_t bytes() const override { return x.bytes() + low_x.bytes(); }
};

}  // namespace

GroupedLinear::GroupedLinear(ParameterSet& parameters, const std::string& name,
                             const GroupedLinearOptions& options)
    : name_(name), options_(options) {
    const auto& o = options;
    weight_ = parameters.declare({.name = name,
                                  .shape = {o.num_groups, o.out_features, o.in_features},
                                  .owner = Owner::Expert,
                                  .init_std = o.init_std,
                                  .decay = o.decay});
    low_ = LowPrecisionLinear(weight_);
    MOEBIUS_CHECK(!o.scale_bias || o.bias, "scale_bias without bias");
    if (o.bias) {
        bias_ = parameters.declare({.name = name + ".bias",
                                    .shape = {o.num_groups, o.out_features},
                                    .owner = Owner::Expert,
                                    .init = Init::Zeros,
                                    .decay = false});
    }
}

Forward GroupedLinear::forward(Activation x, std::span<const Tensor> extra, Run& run) {
    const Tensor& split_sizes = extra[0];
    const Tensor scales = options_.scale_bias ? extra[1] : Tensor();
    Tensor y = Tensor::empty("grouped_linear.y", {x.rows(), options_.out_features}, run.dtype, run.keeping());
    auto context = std::make_unique<GroupedLinearContext>();
    if (run.recipe) {
        if (bias_) throw Error(name() + " has a bias, which its products in low precision do not add");
        context->recipe = run.recipe;
        const Quantized low_x = context->low_x.quantize(x, split_sizes, low_, *run.recipe, run);
        low_.forward(low_x, split_sizes, y, *run.recipe, run);
    } else {
        MOEBIUS_CHECK(!x.source, "rows nobody gathered, without a recipe");
        context->x = Kept(x);
        ops::grouped_gemm({.kind = ops::GemmKind::Forward,
                           .a = x.high,
                           .b = weight_->value,
                           .out = y,
                           .split_sizes = split_sizes,
                           .bias = bias_ ? bias_->value : View(),
                           .bias_scale = scales},
                          run.exec);
    }
    if (!run.pass.save) return {{y}, nullptr};
    context->split_sizes = split_sizes;
    context->scales = scales;
    return {{y}, std::move(context)};
}

void GroupedLinear::weight_gradients(Pending& p, Tensor* dscales, Run& run) {
    if (p.recipe) {
        low_.wgrad(p.low_dy, p.low_x.take(p.split_sizes, low_, *p.recipe, run), p.split_sizes, *p.recipe,
                   run);
        return;
    }
    ops::grouped_gemm({.kind = ops::GemmKind::Wgrad,
                       .a = p.dy,
                       .b = p.x.get(run),
                       .out = weight_->main_grad,
                       .split_sizes = p.split_sizes,
                       .beta = weight_->take_fresh()},
                      run.exec);
    if (!bias_) return;
    ops::grouped_bias_grad({.dy = p.dy,
                            .split_sizes = p.split_sizes,
                            .bias = dscales ? bias_->value : View(),
                            .bias_scale = p.scales,
                            .dbias = bias_->main_grad,
                            .dbias_scale = dscales ? dscales->view() : View(),
                            .beta = bias_->take_fresh()},
                           run.exec);
}

FusibleBackward GroupedLinear::backward(ContextPtr opaque, Activation dy, Run& run) {
    const auto context = take<GroupedLinearContext>(std::move(opaque));
    FusibleBackward result;
    result.dextra.resize(static_cast<size_t>(extra_inputs()));
    const Shape shape{dy.rows(), options_.in_features};
    Tensor dx = Tensor::empty("grouped_linear.dx", shape, run.dtype, run.exec);
    result.dx = {dx};
    Pending pending{
        .split_sizes = context->split_sizes, .scales = context->scales, .recipe = context->recipe};
    if (const auto& recipe = context->recipe) {
        pending.low_x = std::move(context->low_x);
        pending.low_dy =
            low_.grad_output(dy, context->split_sizes, *recipe, {.row = true, .column = true}, run);
        low_.dgrad(pending.low_dy, context->split_sizes, dx, *recipe, run);
        pending.low_dy.drop(Direction::Row);
    } else {
        pending.dy = dy.high;
        pending.x = std::move(context->x);
        ops::grouped_gemm({.kind = ops::GemmKind::Dgrad,
                           .a = dy.high,
                           .b = weight_->value,
                           .out = dx,
                           .split_sizes = context->split_sizes},
                          run.exec);
    }
    if (options_.scale_bias) {
        MOEBIUS_CHECK(!options_.delay_wgrad_compute, "scale_bias and delay_wgrad_compute exclude each other");
        result.dextra[1] = Tensor::empty("grouped_linear.dscales", {dy.rows()}, DType::F32, run.exec);
        weight_gradients(pending, &result.dextra[1], run);
    } else if (options_.delay_wgrad_compute) {
        pending_.push_back(std::move(pending));
    } else {
        weight_gradients(pending, nullptr, run);
    }
    return result;
}

void GroupedLinear::backward_dw(Run& run) {
    for (Pending& pending : pending_) weight_gradients(pending, nullptr, run);
    pending_.clear();
}

}  // namespace moebius::nn
