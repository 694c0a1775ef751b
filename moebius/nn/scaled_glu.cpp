#include "moebius/nn/scaled_glu.h"

namespace moebius::nn {
namespace {

struct ScaledGluContext : Context {
    Tensor x, scales;
    int64_t bytes() const override { return x.view().bytes(); }
};

}  // namespace

std::string ScaledGlu::name() const {
    return options_.kind == ops::GluKind::SwiGlu ? "ScaledSwiGLU" : "ScaledClampedQuickGeGLU";
}

Forward ScaledGlu::forward(Activation x, std::span<const Tensor> extra, Run& run) {
    const Shape& shape = x.high.shape();
    Tensor y = Tensor::empty("scaled_glu.y", {shape[0], shape[1] / 2}, run.dtype, run.exec);
    ops::scaled_glu({.options = options_, .x = x.high, .scales = extra[0], .y = y}, run.exec);
    if (!run.pass.save) return {{y}, nullptr};
    auto context = std::make_unique<ScaledGluContext>();
    context->x = x.high;
    context->scales = extra[0];
    return {{y}, std::move(context)};
}

FusibleBackward ScaledGlu::backward(ContextPtr opaque, Activation dy, Run& run) {
    const auto context = take<ScaledGluContext>(std::move(opaque));
    Tensor dx = Tensor::empty("scaled_glu.dx", context->x.shape(), run.dtype, run.exec);
    Tensor dscales = Tensor::empty("scaled_glu.dscales", {context->x.shape()[0]}, DType::F32, run.exec);
    ops::scaled_glu_backward({.options = options_,
                              .x = context->x,
                              .scales = context->scales,
                              .dy = dy.high,
                              .dx = dx,
                              .dscales = dscales},
                             run.exec);
    return {{dx}, {dscales}};
}

}  // namespace moebius::nn
