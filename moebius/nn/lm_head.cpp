#include "moebius/nn/lm_head.h"

#include <algorithm>
#include <optional>

#include "moebius/ops/cross_entropy/cross_entropy.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/ops/rms_norm/rms_norm.h"

namespace moebius::nn {
namespace {

struct HeadContext : Context {
    Tensor x, rstd, dnormed;
    int64_t bytes() const override { return x.view().bytes() + dnormed.view().bytes(); }
};

// The weight's gradient over blocks of tokens: added to main_grad, or, where that would round once a block,
// to an fp32 copy of it.
class BlockSums {
  public:
    BlockSums(Parameter& weight, bool several, Run& run) : weight_(weight) {
        if (several && weight.main_grad.dtype != DType::F32)
            wide_ = Tensor::empty("lm_head.dweight", weight.spec.shape, DType::F32, run.exec);
    }
    void add(const View& dscores, const View& x, Run& run) {
        const float beta = weight_.take_fresh();
        if (wide_ && !begun_ && beta != 0) ops::convert({weight_.main_grad, wide_}, run.exec);
        begun_ = true;
        ops::gemm({.kind = ops::GemmKind::Wgrad,
                   .a = dscores,
                   .b = x,
                   .out = wide_ ? wide_.view() : weight_.main_grad,
                   .beta = beta},
                  run.exec);
    }
    void finish(Run& run) const {
        if (wide_ && begun_) ops::convert({wide_, weight_.main_grad}, run.exec);
    }

  private:
    Parameter& weight_;
    Tensor wide_;
    bool begun_ = false;
};

}  // namespace

LmHead::LmHead(ParameterSet& parameters, const LmHeadOptions& o, Parameter* tied) : options_(o) {
    norm_ =
        parameters.declare({.name = "final_norm", .shape = {o.hidden}, .init = Init::Ones, .decay = false});
    weight_ =
        tied ? tied
             : parameters.declare({.name = "lm_head", .shape = {o.vocab, o.hidden}, .init_std = o.init_std});
}

ContextPtr LmHead::forward(Activation x, const LossOutputs& outputs, Run& run) {
    const Shape shape = x.high.shape();
    const int64_t tokens = shape[0];
    const bool save = run.pass.save && run.batch.targets;
    Tensor rstd = Tensor::empty("norm.rstd", {tokens}, DType::F32, run.exec);
    Tensor normed = Tensor::empty("norm.y", shape, run.dtype, run.exec);
    ops::rms_norm({.x = x.high, .weight = norm_->value, .y = normed, .rstd = rstd, .eps = options_.norm_eps},
                  run.exec);
    const int64_t block = std::min(options_.block_tokens, std::max<int64_t>(1, tokens));
    Tensor logits = Tensor::empty("lm_head.logits", {block, options_.vocab}, DType::F32, run.exec);
    Tensor dnormed = save ? Tensor::empty("lm_head.dx", shape, run.dtype, run.exec) : Tensor();
    std::optional<BlockSums> dweight;
    if (save) dweight.emplace(*weight_, tokens > block, run);
    for (int64_t begin = 0; begin < tokens; begin += block) {
        const int64_t count = std::min(block, tokens - begin);
        const View part = normed.view().rows(begin, count);
        const View scores = outputs.logits ? outputs.logits.rows(begin, count) : logits.view().rows(0, count);
        const View dscores = save ? logits.view().rows(0, count) : View();
        ops::gemm({.a = part, .b = weight_->value, .out = scores}, run.exec);
        if (!run.batch.targets) continue;
        ops::cross_entropy({.logits = scores,
                            .targets = run.batch.targets.rows(begin, count),
                            .token_loss = outputs.token_loss.rows(begin, count),
                            .dlogits = dscores,
                            .grad_scale = save ? run.scalars.one : View(),
                            .bad = run.scalars.bad},
                           run.exec);
        if (!save) continue;
        dweight->add(dscores, part, run);
        ops::gemm({.kind = ops::GemmKind::Dgrad,
                   .a = dscores,
                   .b = weight_->value,
                   .out = dnormed.view().rows(begin, count)},
                  run.exec);
    }
    if (dweight) dweight->finish(run);
    if (run.batch.targets) ops::sum_into({outputs.token_loss, outputs.loss_sum}, run.exec);
    if (!save) return nullptr;
    auto context = std::make_unique<HeadContext>();
    context->x = x.high;
    context->rstd = rstd;
    context->dnormed = dnormed;
    return context;
}

Activation LmHead::backward(ContextPtr opaque, Run& run) {
    const auto context = take<HeadContext>(std::move(opaque));
    ops::rms_norm_backward({.x = context->x,
                            .weight = norm_->value,
                            .rstd = context->rstd,
                            .dy = context->dnormed,
                            .dx = context->dnormed,
                            .dweight = norm_->main_grad,
                            .beta = norm_->take_fresh()},
                           run.exec);
    return {context->dnormed};
}

}  // namespace moebius::nn
