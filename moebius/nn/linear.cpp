#include "moebius/nn/linear.h"

#include "moebius/ops/gemm/gemm.h"

namespace moebius::nn {
namespace {

struct LinearContext : Context {
    Kept x;
    std::shared_ptr<const precision::Recipe> recipe;  // with it low_x in the place of x
    KeptInput low_x;
    int64_t bytes() const override { return x.bytes() + low_x.bytes(); }
};

// All rows are one expert's.
const View& row_count(const Run& run) {
    MOEBIUS_CHECK(run.batch.token_count,
                  "the batch has no token_count, which products in low precision read");
    return run.batch.token_count;
}

}  // namespace

Forward Linear::forward(Activation x, Run& run) {
    const int64_t tokens = x.high.shape()[0];
    Tensor y = Tensor::empty("linear.y", {tokens, weight_->spec.shape[0]}, run.dtype, run.exec);
    auto context = std::make_unique<LinearContext>();
    if (run.recipe) {
        context->recipe = run.recipe;
        const Quantized low_x = context->low_x.quantize(x, row_count(run), low_, *run.recipe, run);
        low_.forward(low_x, row_count(run), y, *run.recipe, run);
    } else {
        MOEBIUS_CHECK(!x.rstd, "the norm's output was not made");
        ops::gemm({.kind = ops::GemmKind::Forward, .a = x.high, .b = weight_->value, .out = y}, run.exec);
        context->x = Kept(x);
    }
    if (!run.pass.save) return {{y}, nullptr};
    return {{y}, std::move(context)};
}

Activation Linear::backward(ContextPtr opaque, Activation dy, Run& run) {
    const auto context = take<LinearContext>(std::move(opaque));
    const Shape shape{dy.high.shape()[0], weight_->spec.shape[1]};
    if (const auto& recipe = context->recipe) {
        const View& rows = row_count(run);
        Quantized low_x = context->low_x.take(rows, low_, *recipe, run);
        Quantized low_dy = low_.grad_output(dy.high, rows, *recipe, {.row = true, .column = true}, run);
        low_.wgrad(low_dy, low_x, rows, *recipe, run);
        low_dy.drop(Direction::Column);
        low_x = {};
        Tensor dx = Tensor::empty("linear.dx", shape, run.dtype, run.exec);
        low_.dgrad(low_dy, rows, dx, *recipe, run);
        return {dx};
    }
    ops::gemm({.kind = ops::GemmKind::Wgrad,
               .a = dy.high,
               .b = context->x.get(run),
               .out = weight_->main_grad,
               .beta = weight_->take_fresh()},
              run.exec);
    context->x.reset();
    Tensor dx = Tensor::empty("linear.dx", shape, run.dtype, run.exec);
    ops::gemm({.kind = ops::GemmKind::Dgrad, .a = dy.high, .b = weight_->value, .out = dx}, run.exec);
    return {dx};
}

}  // namespace moebius::nn
