#include "moebius/nn/decoder_layer.h"

#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/rms_norm/rms_norm.h"

namespace moebius::nn {
namespace {

struct RecomputedContext : Context {
    Kept x;
    int64_t bytes() const override { return x.bytes(); }
};

struct NormAgain : Remake {
    Tensor x;
    const Parameter* weight = nullptr;
    float eps = 0;
    Tensor make(Run& run) const override {
        Tensor y = Tensor::empty("norm.y", x.shape(), run.dtype, run.exec);
        ops::rms_norm({.x = x, .weight = weight->value, .y = y, .eps = eps}, run.exec);
        return y;
    }
};

struct LayerContext : Context {
    Tensor x, input_rstd, h, post_rstd;
    ContextPtr attention, moe;
    int64_t bytes() const override {
        return x.view().bytes() + h.view().bytes() + attention->bytes() + moe->bytes();
    }
};

std::string layer_name(int64_t index) {
    return "layers." + std::to_string(index);
}

Parameter* declare_norm(ParameterSet& parameters, const std::string& name, int64_t hidden) {
    return parameters.declare({.name = name, .shape = {hidden}, .init = Init::Ones, .decay = false});
}

}  // namespace

Forward Recomputed::forward(Activation x, Run& run) {
    const bool save = run.pass.save;
    std::unique_ptr<RecomputedContext> context;
    if (save) {
        context = std::make_unique<RecomputedContext>();
        context->x = Kept(x);
    }
    run.pass.save = false;
    Forward result = inner_.forward(std::move(x), run);
    run.pass.save = save;
    result.context = std::move(context);
    return result;
}

Activation Recomputed::backward(ContextPtr opaque, Activation dy, Run& run) {
    auto context = take<RecomputedContext>(std::move(opaque));
    const Pass pass = run.pass;
    Observer* const observer = run.observer;
    const bool remake = run.remake;
    run.pass.save = true;
    run.pass.count = false;
    run.observer = nullptr;
    run.remake = false;  // what this forward makes is used at once
    Forward again = inner_.forward({context->x.get(run)}, run);
    context.reset();
    run.pass = pass;
    run.observer = observer;
    run.remake = remake;
    again.y.high.reset();
    return inner_.backward(std::move(again.context), std::move(dy), run);
}

DecoderLayer::DecoderLayer(ParameterSet& parameters, int64_t index, const LayerOptions& o)
    : eps_(o.norm_eps),
      input_norm_(declare_norm(parameters, layer_name(index) + ".input_norm", o.attention.hidden)),
      attention_(parameters, layer_name(index) + ".attention", o.attention),
      post_attention_norm_(
          declare_norm(parameters, layer_name(index) + ".post_attention_norm", o.attention.hidden)),
      moe_(parameters, layer_name(index) + ".moe", index, o.moe),
      attention_recomputed_(attention_),
      moe_recomputed_(moe_),
      attention_module_(o.recompute == Recompute::Attention ? static_cast<Module*>(&attention_recomputed_)
                                                            : &attention_),
      moe_module_(o.recompute == Recompute::Moe ? static_cast<Module*>(&moe_recomputed_) : &moe_) {}

Forward DecoderLayer::forward(Activation x, Run& run) {
    const Shape shape = x.high.shape();
    const auto make = [&](const char* name) { return Tensor::empty(name, shape, run.dtype, run.exec); };
    const auto keep = [&](const char* name) { return Tensor::empty(name, shape, run.dtype, run.keeping()); };
    // The output of a norm; `of` is kept for the norm's backward.
    const auto norm_of = [&](Tensor y, const Tensor& of, const Parameter* weight) -> Activation {
        if (!run.remake || !run.pass.save) return {std::move(y)};
        auto again = std::make_shared<NormAgain>();
        again->x = of;
        again->weight = weight;
        again->eps = eps_;
        return {.high = std::move(y), .again = std::move(again)};
    };
    Tensor input_rstd = Tensor::empty("norm.rstd", {shape[0]}, DType::F32, run.exec);
    // Under a recipe the projection quantizes its input first of all, and makes the norm of it on the way.
    const bool quantized = run.recipe != nullptr && attention_module_ == &attention_;
    Tensor normed = quantized ? Tensor() : make("norm.y");
    ops::rms_norm({.x = x.high,
                   .weight = input_norm_->value,
                   .y = quantized ? View() : normed.view(),
                   .rstd = input_rstd,
                   .eps = eps_},
                  run.exec);
    Activation attended_to = quantized ? Activation{.high = x.high,
                                                    .stays = run.remake && run.pass.save,
                                                    .rstd = input_rstd,
                                                    .norm_weight = input_norm_}
                                       : norm_of(std::move(normed), x.high, input_norm_);
    Forward attended = attention_module_->forward(std::move(attended_to), run);

    Tensor h = keep("layer.h");
    Tensor post_rstd = Tensor::empty("norm.rstd", {shape[0]}, DType::F32, run.exec);
    normed = make("norm.y");
    ops::rms_norm({.x = x.high,
                   .residual = attended.y.high,
                   .weight = post_attention_norm_->value,
                   .sum = h,
                   .y = normed,
                   .rstd = post_rstd,
                   .eps = eps_},
                  run.exec);
    attended.y.high.reset();
    Forward mixed = moe_module_->forward(norm_of(std::move(normed), h, post_attention_norm_), run);
    Tensor y = keep("layer.y");
    ops::add({h, mixed.y.high, y}, run.exec);
    if (!run.pass.save) return {{y}, nullptr};
    auto context = std::make_unique<LayerContext>();
    context->x = x.high;
    context->input_rstd = input_rstd;
    context->h = h;
    context->post_rstd = post_rstd;
    context->attention = std::move(attended.context);
    context->moe = std::move(mixed.context);
    return {{y}, std::move(context)};
}

Activation DecoderLayer::backward(ContextPtr opaque, Activation dy, Run& run) {
    auto context = take<LayerContext>(std::move(opaque));
    const auto norm_backward = [&](const Tensor& x, Parameter* weight, const Tensor& rstd,
                                   const Tensor& dnormed, const Tensor& dresidual) {
        ops::rms_norm_backward({.x = x,
                                .weight = weight->value,
                                .rstd = rstd,
                                .dy = dnormed,
                                .dresidual = dresidual,
                                .dx = dnormed,
                                .dweight = weight->main_grad,
                                .beta = weight->take_fresh()},
                               run.exec);
    };
    Activation dh = moe_module_->backward(std::move(context->moe), dy, run);
    norm_backward(context->h, post_attention_norm_, context->post_rstd, dh.high, dy.high);
    dy.high.reset();
    Activation dx = attention_module_->backward(std::move(context->attention), dh, run);
    norm_backward(context->x, input_norm_, context->input_rstd, dx.high, dh.high);
    return dx;
}

}  // namespace moebius::nn
