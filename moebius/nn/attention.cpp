#include "moebius/nn/attention.h"

#include <cmath>

#include "moebius/ops/attention/attention.h"
#include "moebius/ops/rope/rope.h"

namespace moebius::nn {
namespace {

struct AttentionContext : Context {
    ContextPtr qkv, out;
    Tensor rotated;  // (T, (heads + 2 kv_heads) · head_dim): q and k after rotation, v
    Tensor y, lse;
    Tensor y_rest;  // of bf16: what rounding took from y
    int64_t bytes() const override {
        return (qkv ? qkv->bytes() : 0) + rotated.view().bytes() + y.view().bytes() + lse.view().bytes() +
               (y_rest ? y_rest.view().bytes() : 0);
    }
};

struct Heads {
    View q, k, v;  // (T, heads, head_dim), strided over tokens
};

Heads split(const View& qkv, const AttentionOptions& o) {
    const int64_t q = o.heads * o.head_dim, kv = o.kv_heads * o.head_dim;
    return {qkv.columns(0, q).split_last(o.head_dim), qkv.columns(q, kv).split_last(o.head_dim),
            qkv.columns(q + kv, kv).split_last(o.head_dim)};
}

void rotate(const View& qkv, const AttentionOptions& o, bool inverse, Run& run) {
    // q and k lie side by side: their heads are rotated in one go.
    const View heads = qkv.columns(0, (o.heads + o.kv_heads) * o.head_dim).split_last(o.head_dim);
    ops::rope({.x = heads,
               .positions = run.batch.positions,
               .out = heads,
               .theta = o.rope_theta,
               .inverse = inverse},
              run.exec);
}

ops::AttentionShape shape_of(const AttentionOptions& o, const Run& run) {
    return {.cu_seqlens = run.batch.cu_seqlens,
            .max_seqlen = run.batch.max_seqlen,
            .window = o.window,
            .scale = 1.0f / std::sqrt(static_cast<float>(o.head_dim)),
            .none_empty = run.batch.none_empty};
}

}  // namespace

Attention::Attention(ParameterSet& parameters, const std::string& name, const AttentionOptions& o)
    : options_(o),
      qkv_(parameters.declare({.name = name + ".qkv",
                               .shape = {(o.heads + 2 * o.kv_heads) * o.head_dim, o.hidden},
                               .init_std = o.init_std})),
      out_(parameters.declare(
          {.name = name + ".out", .shape = {o.hidden, o.heads * o.head_dim}, .init_std = o.out_init_std})) {}

void Attention::low_precision(std::vector<LowPrecisionLinear*>& list) {
    list.push_back(&qkv_.low_precision());
    list.push_back(&out_.low_precision());
}

Forward Attention::forward(Activation x, Run& run) {
    const int64_t tokens = x.high.shape()[0];
    Forward projected = qkv_.forward(std::move(x), run);
    const Tensor& qkv = projected.y.high;
    rotate(qkv, options_, false, run);
    const Heads heads = split(qkv, options_);
    // Tokens past the last sequence are not written by attention; the output projection reads them.
    Tensor y =
        Tensor::zeros("attention.y", {tokens, options_.heads * options_.head_dim}, run.dtype, run.keeping());
    Tensor lse = Tensor::empty("attention.lse", {options_.heads, tokens}, DType::F32, run.keeping());
    const bool rounded = run.pass.save && run.dtype == DType::BF16 && ops::attention_keeps_rest(run.exec);
    const Tensor y_rest =
        rounded ? Tensor::empty("attention.y_rest", y.shape(), run.dtype, run.keeping()) : Tensor();
    ops::attention({.shape = shape_of(options_, run),
                    .q = heads.q,
                    .k = heads.k,
                    .v = heads.v,
                    .out = y.view().split_last(options_.head_dim),
                    .lse = lse,
                    .out_rest = rounded ? y_rest.view().split_last(options_.head_dim) : View()},
                   run.exec);
    Forward out = out_.forward({.high = y, .stays = true}, run);
    if (!run.pass.save) return {out.y, nullptr};
    auto context = std::make_unique<AttentionContext>();
    context->qkv = std::move(projected.context);
    context->out = std::move(out.context);
    context->rotated = qkv;
    context->y = y;
    context->lse = lse;
    context->y_rest = y_rest;
    return {out.y, std::move(context)};
}

Activation Attention::backward(ContextPtr opaque, Activation dy, Run& run) {
    auto context = take<AttentionContext>(std::move(opaque));
    const Activation dattention = out_.backward(std::move(context->out), std::move(dy), run);
    Tensor dqkv = Tensor::zeros("attention.dqkv", context->rotated.shape(), run.dtype, run.exec);
    const Heads heads = split(context->rotated, options_), gradients = split(dqkv, options_);
    ops::attention_backward(
        {.shape = shape_of(options_, run),
         .q = heads.q,
         .k = heads.k,
         .v = heads.v,
         .out = context->y.view().split_last(options_.head_dim),
         .lse = context->lse,
         .dout = dattention.high.view().split_last(options_.head_dim),
         .dq = gradients.q,
         .dk = gradients.k,
         .dv = gradients.v,
         .out_rest = context->y_rest ? context->y_rest.view().split_last(options_.head_dim) : View()},
        run.exec);
    rotate(dqkv, options_, true, run);
    return qkv_.backward(std::move(context->qkv), {dqkv}, run);
}

}  // namespace moebius::nn
