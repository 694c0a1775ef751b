#include "moebius/nn/moe_block.h"

#include "moebius/nn/loop_experts.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/ops/selection_bias/selection_bias.h"

namespace moebius::nn {

struct MoeBlock::Saved : Context {
    Kept x;
    Tensor logits, topk_indices, topk_weights;
    HandlePtr handle;
    bool gathers = false;
    ContextPtr experts;
    int64_t bytes() const override { return x.bytes() + logits.view().bytes() + experts->bytes(); }
};

MoeBlock::MoeBlock(ParameterSet& parameters, const std::string& name, int64_t layer,
                   const MoeOptions& options)
    : name_(name), layer_(layer), options_(options) {
    const GroupedMlpOptions& e = options.experts;
    router_ = parameters.declare(
        {.name = name + ".router", .shape = {e.experts, e.hidden}, .init_std = options.router_init_std});
    dispatcher_ = local_dispatcher(e.experts);
    if (options.mode == ExpertMode::Loop) {
        experts_ = loop_grouped_mlp(parameters, name, e);
    } else {
        experts_ = grouped_mlp(parameters, name, e);
    }
}

void MoeBlock::place_buffers(const Exec& exec) {
    if (options_.selection_bias) {
        bias_ = Tensor::zeros("router_bias", {options_.experts.experts}, DType::F32, exec);
    }
}

std::vector<StateEntry> MoeBlock::buffers() const {
    if (!bias_) return {};
    const int64_t experts = options_.experts.experts;
    return {{{name_ + ".router_bias", {experts}, 0, experts}, bias_, StateKind::Buffer}};
}

void MoeBlock::end_step(const View& counts, const Run& run) {
    if (!bias_ || options_.bias_update_rate == 0) return;
    ops::selection_bias({.counts = counts,
                         .bias = bias_,
                         .bad = run.scalars.bad,
                         .rate = static_cast<float>(options_.bias_update_rate)},
                        run.exec);
}

const std::vector<FusionReportRow>* MoeBlock::fusion_report() const {
    const auto* chain = dynamic_cast<const Sequential*>(experts_.get());
    return chain ? &chain->fusion_report() : nullptr;
}

void MoeBlock::jitter(const View& x, const View& out, Run& run) const {
    const std::string purpose = name_ + ".jitter/" + std::to_string(run.step);
    ops::jitter({.x = x,
                 .out = out,
                 .epsilon = options_.input_jitter,
                 .seed = run.seed,
                 .purpose = purpose.c_str(),
                 .first_index = checked_mul(run.batch.first_token, x.size(1))},
                run.exec);
}

// Experts under a recipe quantize their rows first of all, and read them where the tokens lie.
bool MoeBlock::gathers(const Run& run) const {
    return run.recipe != nullptr && options_.mode != ExpertMode::Loop;
}

Forward MoeBlock::forward(Activation x, Run& run) {
    const int64_t tokens = x.high.shape()[0], experts = options_.experts.experts, topk = options_.router.topk;
    if (run.pass.training && options_.input_jitter > 0) {
        // The experts see the jittered input too.
        Tensor jittered = Tensor::empty("moe.jittered", x.high.shape(), run.dtype, run.exec);
        jitter(x.high, jittered, run);
        x = {jittered};
    }
    // fp32 logits: rounded to bf16, the k-th and the next expert would tie too often.
    Tensor logits = Tensor::empty("router.logits", {tokens, experts}, DType::F32, run.exec);
    ops::gemm({.a = x.high, .b = router_->value, .out = logits}, run.exec);
    Tensor indices = Tensor::empty("router.topk_indices", {tokens, topk}, DType::I32, run.exec);
    Tensor weights = Tensor::empty("router.topk_weights", {tokens, topk}, DType::F32, run.exec);
    ops::RouterArgs args{.options = options_.router,
                         .logits = logits,
                         .bias = bias_ ? bias_.view() : View(),
                         .valid = run.batch.valid,
                         .topk_indices = indices,
                         .topk_weights = weights};
    if (run.router != nullptr && run.pass.count) {
        args.counts = run.router->counts.view().at(layer_);
        args.prob_sums = run.router->prob_sums.view().at(layer_);
        args.z_sum = run.router->z_sums.view().rows(layer_, 1);
        args.tokens = run.router->tokens.view().rows(layer_, 1);
    }
    ops::router(args, run.exec);
    if (run.observer != nullptr) {
        run.observer->record("router_logits." + std::to_string(layer_), logits, run.exec);
        run.observer->record("topk_indices." + std::to_string(layer_), indices, run.exec);
    }

    Dispatched dispatched = dispatcher_->dispatch(x, indices, weights, gathers(run), run);
    const Tensor extra[] = {dispatched.split_sizes, dispatched.expert_probs, dispatched.split_sizes};
    // Only a fuser's chain obeys run.fusion; grouped_linear asks for the unfused chain.
    const FusionMode wanted = run.fusion;
    if (options_.mode != ExpertMode::FusedGroupedMlp) run.fusion = FusionMode::Off;
    Forward result = experts_->forward(std::move(dispatched.expert_input), extra, run);
    run.fusion = wanted;
    Activation y = dispatcher_->combine(result.y, dispatched.handle, run);
    if (!run.pass.save) return {y, nullptr};
    auto saved = std::make_unique<Saved>();
    saved->x = Kept(x);
    saved->logits = logits;
    saved->topk_indices = indices;
    saved->topk_weights = weights;
    saved->handle = dispatched.handle;
    saved->gathers = gathers(run);
    saved->experts = std::move(result.context);
    return {y, std::move(saved)};
}

Activation MoeBlock::backward(ContextPtr opaque, Activation dy, Run& run) {
    auto saved = take<Saved>(std::move(opaque));
    Activation dexpert_output = dispatcher_->combine_backward(dy, saved->handle, saved->gathers, run);
    FusibleBackward experts = experts_->backward(std::move(saved->experts), std::move(dexpert_output), run);
    DispatchGradients gradients =
        dispatcher_->dispatch_backward(experts.dx, experts.dextra[1], saved->handle, run);
    Tensor dlogits = Tensor::empty("router.dlogits", saved->logits.shape(), DType::F32, run.exec);
    ops::RouterBackwardArgs args{.options = options_.router,
                                 .logits = saved->logits,
                                 .valid = run.batch.valid,
                                 .topk_indices = saved->topk_indices,
                                 .topk_weights = saved->topk_weights,
                                 .dweights = gradients.drouting_weights,
                                 .dlogits = dlogits};
    if (run.router != nullptr && run.router->dprobs) {
        args.dprobs = run.router->dprobs.view().at(layer_);
        args.dz = run.router->dz.view().rows(layer_, 1);
    }
    ops::router_backward(args, run.exec);
    experts = {};
    ops::gemm({.kind = ops::GemmKind::Wgrad,
               .a = dlogits,
               .b = saved->x.get(run),
               .out = router_->main_grad,
               .beta = router_->take_fresh()},
              run.exec);
    const Tensor& dx = gradients.dhidden.high;
    ops::gemm({.kind = ops::GemmKind::Dgrad, .a = dlogits, .b = router_->value, .out = dx, .beta = 1},
              run.exec);
    if (run.pass.training && options_.input_jitter > 0) jitter(dx, dx, run);
    return {dx};
}

}  // namespace moebius::nn
