#include "moebius/nn/linear.h"

#include "moebius/ops/gemm/gemm.h"

namespace moebius::nn {
namespace {

struct LinearContext : Context {
    Tensor x;
    int64_t bytes() const override { return x.view().bytes(); }
};

}  // namespace

Forward Linear::forward(Activation x, Run& run) {
    const int64_t tokens = x.high.shape()[0];
    Tensor y = Tensor::empty("linear.y", {tokens, weight_->spec.shape[0]}, run.dtype, run.exec);
    ops::gemm({.kind = ops::GemmKind::Forward, .a = x.high, .b = weight_->value, .out = y}, run.exec);
    if (!run.pass.save) return {{y}, nullptr};
    auto context = std::make_unique<LinearContext>();
    context->x = x.high;
    return {{y}, std::move(context)};
}

Activation Linear::backward(ContextPtr opaque, Activation dy, Run& run) {
    const auto context = take<LinearContext>(std::move(opaque));
    ops::gemm({.kind = ops::GemmKind::Wgrad,
               .a = dy.high,
               .b = context->x,
               .out = weight_->main_grad,
               .beta = weight_->take_fresh()},
              run.exec);
    Tensor dx = Tensor::empty("linear.dx", context->x.shape(), run.dtype, run.exec);
    ops::gemm({.kind = ops::GemmKind::Dgrad, .a = dy.high, .b = weight_->value, .out = dx}, run.exec);
    return {dx};
}

}  // namespace moebius::nn
