#include "moebius/nn/scaled_glu.h"

namespace moebius::nn {
namespace {

struct ScaledGluContext : Context {
    Tensor x, scales;
    int64_t bytes() const override { return x.view().bytes(); }
};

// From what is kept for its own backward.
struct GluAgain : Remake {
    ops::GluOptions options;
    Tensor x, scales;
    Tensor make(Run& run) const override {
        Tensor y = Tensor::empty("scaled_glu.y", {x.shape()[0], x.shape()[1] / 2}, run.dtype, run.exec);
        ops::scaled_glu({.options = options, .x = x, .scales = scales, .y = y}, run.exec);
        return y;
    }
};

}  // namespace

std::string ScaledGlu::name() const {
    return options_.kind == ops::GluKind::SwiGlu ? "ScaledSwiGLU" : "ScaledClampedQuickGeGLU";
}

Forward ScaledGlu::forward(Activation x, std::span<const Tensor> extra, Run& run) {
    const auto again = std::make_shared<GluAgain>();
    again->options = options_;
    again->x = x.high;
    again->scales = extra[0];
    const Tensor y = again->make(run);
    if (!run.pass.save) return {{y}, nullptr};
    auto context = std::make_unique<ScaledGluContext>();
    context->x = x.high;
    context->scales = extra[0];
    if (run.remake) return {{.high = y, .again = again}, std::move(context)};
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
