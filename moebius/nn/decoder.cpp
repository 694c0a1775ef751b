#include "moebius/nn/decoder.h"

#include <map>

#include "moebius/ops/embedding/embedding.h"

namespace moebius::nn {
namespace {

Parameter* declare_embedding(ParameterSet& parameters, const DecoderOptions& o) {
    return parameters.declare({.name = "embedding",
                               .shape = {o.vocab, o.layer.attention.hidden},
                               .init_std = o.embedding_init_std,
                               .zero_row = o.padding_idx,
                               .decay = o.decay_embedding});
}

std::vector<std::unique_ptr<DecoderLayer>> declare_layers(ParameterSet& parameters, const DecoderOptions& o) {
    std::vector<std::unique_ptr<DecoderLayer>> layers;
    for (int64_t i = 0; i < o.layers; ++i)
        layers.push_back(std::make_unique<DecoderLayer>(parameters, i, o.layer));
    return layers;
}

// Each layer's parameters: all that were declared since the embedding, as many a layer.
std::vector<std::vector<const Parameter*>> parameters_of(const ParameterSet& parameters,
                                                         const Parameter* embedding, size_t layers) {
    std::vector<const Parameter*> all;
    for (const auto& p : parameters.all()) {
        if (p.get() == embedding) {
            all.clear();
        } else {
            all.push_back(p.get());
        }
    }
    std::vector<std::vector<const Parameter*>> lists(layers);
    for (size_t i = 0; i < all.size(); ++i) lists[i / (all.size() / layers)].push_back(all[i]);
    return lists;
}

// While it lives, run.keep is `pool`.
class KeepIn {
  public:
    KeepIn(Run& run, Pool* pool) : run_(run) { run_.keep = pool; }
    ~KeepIn() { run_.keep = nullptr; }
    KeepIn(const KeepIn&) = delete;
    KeepIn& operator=(const KeepIn&) = delete;

  private:
    Run& run_;
};

}  // namespace

int64_t DecoderContext::bytes() const {
    int64_t total = head ? head->bytes() : 0;
    for (const auto& layer : layers) total += layer ? layer->bytes() : 0;
    return total;
}

Decoder::Decoder(ParameterSet& parameters, const DecoderOptions& o)
    : options_(o),
      embedding_(declare_embedding(parameters, o)),
      layers_(declare_layers(parameters, o)),
      layer_parameters_(parameters_of(parameters, embedding_, layers_.size())),
      head_(parameters,
            {.hidden = o.layer.attention.hidden,
             .vocab = o.vocab,
             .norm_eps = o.layer.norm_eps,
             .init_std = o.head_init_std},
            o.tied_embeddings ? embedding_ : nullptr) {
    if (o.layer.recompute == Recompute::Full) {
        for (const auto& layer : layers_) recomputed_.push_back(std::make_unique<Recomputed>(*layer));
    }
    if (!o.low_precision.persistent) return;
    for (const auto& member : low_precision_members())
        parameters.find(member.linear->parameter().spec.name)->wide = true;
}

Module& Decoder::unit(size_t index) {
    if (!recomputed_.empty()) return *recomputed_[index];
    return *layers_[index];
}

void Decoder::place(const Exec& exec) {
    const int64_t layers = options_.layers, experts = options_.layer.moe.experts.experts;
    const auto make = [&](const char* name, Shape shape) {
        return Tensor::zeros(name, shape, DType::F32, exec);
    };
    statistics_.counts = make("router.counts", {layers, experts});
    statistics_.prob_sums = make("router.prob_sums", {layers, experts});
    statistics_.z_sums = make("router.z_sums", {layers});
    statistics_.tokens = make("router.tokens", {layers});
    if (options_.aux.any()) {
        statistics_.dprobs = make("router.dprobs", {layers, experts});
        statistics_.dz = make("router.dz", {layers});
    }
    for (const auto& layer : layers_) layer->moe().place_buffers(exec);
    low_precision_.place(low_precision_members(), options_.low_precision, exec);
}

std::vector<LowPrecisionState::Member> Decoder::low_precision_members() {
    std::vector<LowPrecisionState::Member> members;
    for (size_t i = 0; i < layers_.size(); ++i) {
        if (!options_.low_precision.uses(i)) continue;
        std::vector<LowPrecisionLinear*> dense, routed;
        layers_[i]->attention().low_precision(dense);
        layers_[i]->moe().low_precision(routed);
        for (LowPrecisionLinear* linear : dense) members.push_back({linear, static_cast<int64_t>(i), false});
        for (LowPrecisionLinear* linear : routed) members.push_back({linear, static_cast<int64_t>(i), true});
    }
    return members;
}

int64_t Decoder::low_precision_numel() {
    int64_t total = 0;
    for (const auto& member : low_precision_members()) total += member.linear->parameter().spec.shape.numel();
    return total;
}

int64_t Decoder::amax_history_numel() {
    const auto& recipe = options_.low_precision.recipe;
    if (!recipe || recipe->source != precision::ScaleSource::Delayed) return 0;
    constexpr int64_t kRoles = 3;
    int64_t scales = 0;
    for (const auto& member : low_precision_members()) scales += member.linear->matrix().experts;
    return checked_mul(kRoles * scales, recipe->delayed.history_length);
}

std::shared_ptr<const precision::Recipe> Decoder::recipe_of(size_t layer, const Run& run) const {
    const LowPrecisionOptions& options = options_.low_precision;
    if (!options.recipe) return run.recipe;
    return options.uses(layer) ? options.recipe : nullptr;
}

void Decoder::reset_statistics(Run& run) {
    for (const Tensor* t :
         {&statistics_.counts, &statistics_.prob_sums, &statistics_.z_sums, &statistics_.tokens}) {
        fill_zero(*t, run.exec);
    }
}

DecoderContext Decoder::forward(const DecoderOutputs& outputs, Run& run) {
    run.router = &statistics_;
    run.remake = options_.layer.remake.value_or(run.exec.device->kind() == DeviceKind::Cuda);
    DecoderContext context;
    if (run.pass.save && run.pass.lend_gradients) context.loans = std::make_unique<LoanPool>(run.exec);
    const KeepIn scope(run, context.loans.get());
    Tensor embedded = Tensor::empty(
        "embedding.y", {run.batch.tokens.numel(), options_.layer.attention.hidden}, run.dtype, run.exec);
    if (hooks_) hooks_->before_forward(0, run);
    ops::embedding({run.batch.tokens, embedding_->value, embedded, run.scalars.bad}, run.exec);
    if (hooks_) hooks_->after_forward(0, run);
    Activation x{std::move(embedded)};
    for (size_t i = 0; i < layers_.size(); ++i) {
        const auto number = static_cast<int64_t>(i) + 1;
        if (hooks_) hooks_->before_forward(number, run);
        const auto recipe = recipe_of(i, run);
        const Autocast scope(run, recipe != nullptr, recipe);
        Forward result = unit(i).forward(std::move(x), run);
        if (hooks_) hooks_->after_forward(number, run);
        x = std::move(result.y);
        context.layers.push_back(std::move(result.context));
        // What later layers keep is gone before this one's backward.
        if (context.loans) lend_gradients(i, *context.loans);
    }
    if (run.pass.count) auxiliary_losses(outputs, run);
    const int64_t last = options_.layers + 1;
    if (hooks_) hooks_->before_forward(last, run);
    context.head = head_.forward(std::move(x), outputs.loss, run);
    if (hooks_) hooks_->after_forward(last, run);
    return context;
}

// Gradients of the layer that nothing was written to in this step, neighbours as one range.
void Decoder::lend_gradients(size_t layer, LoanPool& loans) const {
    std::map<char*, size_t> ranges;
    for (const Parameter* p : layer_parameters_[layer]) {
        if (p->fresh && p->main_grad)
            ranges[static_cast<char*>(p->main_grad.data)] = static_cast<size_t>(p->main_grad.bytes());
    }
    for (auto at = ranges.begin(); at != ranges.end();) {
        auto [begin, bytes] = *at++;
        for (; at != ranges.end() && at->first == begin + bytes; ++at) bytes += at->second;
        loans.lend(static_cast<int64_t>(layer), begin, bytes);
    }
}

void Decoder::auxiliary_losses(const DecoderOutputs& outputs, Run& run) {
    if (run.world != nullptr && run.world->size() > 1) {
        for (const Tensor* t :
             {&statistics_.counts, &statistics_.prob_sums, &statistics_.z_sums, &statistics_.tokens}) {
            run.world->all_reduce(*t, run.exec.stream, "router statistics");
        }
    }
    if (!options_.aux.any() || !outputs.aux_loss) return;
    ops::aux_loss({.definition = options_.aux.definition,
                   .coeff = options_.aux.coeff,
                   .z_coeff = options_.aux.z_coeff,
                   .topk = options_.layer.moe.router.topk,
                   .counts = statistics_.counts,
                   .prob_sums = statistics_.prob_sums,
                   .z_sums = statistics_.z_sums,
                   .tokens = statistics_.tokens,
                   .scale = run.scalars.aux_scale,
                   .aux_loss = outputs.aux_loss,
                   .z_loss = outputs.z_loss,
                   .layer_aux_loss = outputs.layer_aux_loss,
                   .dprobs = statistics_.dprobs,
                   .dz = statistics_.dz},
                  run.exec);
}

void Decoder::backward(DecoderContext context, Run& run) {
    run.router = &statistics_;
    // What a layer's backward holds for a while may lie in gradients of the layers before it, too.
    const KeepIn scope(run, context.loans.get());
    const int64_t last = options_.layers + 1;
    if (hooks_) hooks_->before_backward(last, run);
    Activation dx = head_.backward(std::move(context.head), run);
    if (hooks_) hooks_->after_backward(last, run);
    for (size_t i = layers_.size(); i-- > 0;) {
        const auto number = static_cast<int64_t>(i) + 1;
        if (hooks_) hooks_->before_backward(number, run);
        if (context.loans) context.loans->take_back(static_cast<int64_t>(i));
        // What is recomputed goes by the same recipe.
        const auto recipe = recipe_of(i, run);
        const Autocast scope(run, recipe != nullptr, recipe);
        dx = unit(i).backward(std::move(context.layers[i]), std::move(dx), run);
        if (hooks_) hooks_->after_backward(number, run);
    }
    if (hooks_) hooks_->before_backward(0, run);
    ops::embedding_backward({.ids = run.batch.tokens,
                             .dout = dx.high,
                             .dtable = embedding_->main_grad,
                             .padding_idx = options_.padding_idx,
                             .beta = embedding_->take_fresh()},
                            run.exec);
    if (hooks_) hooks_->after_backward(0, run);
}

void Decoder::end_step(const View& counts, Run& run) {
    for (size_t i = 0; i < layers_.size(); ++i) {
        layers_[i]->moe().end_step(counts.at(static_cast<int64_t>(i)), run);
    }
    low_precision_.end_step(run);
}

std::vector<StateEntry> Decoder::buffers() const {
    std::vector<StateEntry> entries;
    for (const auto& layer : layers_) {
        for (StateEntry& entry : layer->moe().buffers()) entries.push_back(std::move(entry));
    }
    for (StateEntry& entry : low_precision_.buffers()) entries.push_back(std::move(entry));
    return entries;
}

std::vector<FusionReportRow> Decoder::fusion_report() const {
    std::vector<FusionReportRow> rows;
    for (const auto& layer : layers_) {
        const auto* report = layer->moe().fusion_report();
        if (report) rows.insert(rows.end(), report->begin(), report->end());
    }
    return rows;
}

}  // namespace moebius::nn
