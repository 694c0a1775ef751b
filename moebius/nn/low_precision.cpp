#include "moebius/nn/low_precision.h"

#include <algorithm>

#include "moebius/base/error.h"
#include "moebius/ops/delayed_scaling/delayed_scaling.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/quantize/quantize.h"

namespace moebius::nn {
namespace {

using precision::Recipe;
using precision::Role;
using precision::ScaleSource;
using precision::Use;

constexpr Role kRoles[] = {Role::Input, Role::Weight, Role::GradOutput};
constexpr const char* kRoleNames[] = {"input", "weight", "grad_output"};
constexpr int64_t kRoleCount = 3;

QuantizedSpec spec_of(Role role, const Recipe& recipe, Directions directions, const MatrixShape& matrix) {
    const precision::TensorRule& rule = recipe.tensor(role);
    return {.element = rule.element,
            .scale = recipe.scale,
            .power_of_two = rule.power_of_two,
            .row = directions.row,
            .column = directions.column,
            .matrix = matrix};
}

void fill(const Quantized& made, const ops::QuantizeSource& source, Role role, const Recipe& recipe,
          const TensorState& state, const Exec& exec) {
    if (recipe.source == ScaleSource::Delayed && !state.scale) {
        throw Error("fp8_config.fp8_recipe = " + recipe.name +
                    " needs layers that keep its scales: a decoder's, with the recipe in its options");
    }
    Tensor amax;
    if (recipe.source == ScaleSource::Current) {
        amax = Tensor::empty("quantize.amax", {made.spec().matrix.experts}, DType::F32, exec);
        ops::tensor_amax({.source = source, .amax = amax}, exec);
    }
    ops::quantize({.source = source,
                   .row = made.row(),
                   .column = made.column(),
                   .amax_epsilon = recipe.tensor(role).amax_epsilon,
                   .amax = amax,
                   .scale = recipe.source == ScaleSource::Delayed ? state.scale : View(),
                   .observed_amax = state.observed_amax,
                   .counts = state.counts},
                  exec);
}

}  // namespace

Autocast::Autocast(Run& run, bool enabled, std::shared_ptr<const Recipe> recipe)
    : run_(run), before_(std::move(run.recipe)) {
    run_.recipe = enabled ? std::move(recipe) : nullptr;
}
Autocast::~Autocast() {
    run_.recipe = std::move(before_);
}

TensorState TensorState::expert(int64_t e) const {
    const auto part = [&](const View& view) { return view ? view.rows(e, 1) : View(); };
    return {part(scale), part(observed_amax), part(counts)};
}

Quantized quantize_rows(const Rows& rows, const View& split_sizes, Role role, const Recipe& recipe,
                        Directions directions, const Exec& exec, const TensorState& state) {
    const ops::QuantizeSource source{.values = rows.values,
                                     .split_sizes = split_sizes,
                                     .row_index = rows.row_index,
                                     .topk = rows.topk,
                                     .rstd = rows.rstd,
                                     .norm_weight = rows.norm_weight};
    const Quantized made =
        Quantized::empty("activation", spec_of(role, recipe, directions, matrix_of(source)), exec);
    fill(made, source, role, recipe, state, exec);
    return made;
}

void LowPrecisionProduct::run(const Recipe& recipe, const Exec& exec) const {
    constexpr ops::GemmKind kKinds[] = {ops::GemmKind::Forward, ops::GemmKind::Dgrad, ops::GemmKind::Wgrad};
    ops::grouped_gemm_quantized({.kind = kKinds[static_cast<size_t>(use)],
                                 .a = a,
                                 .b = b,
                                 .out = out,
                                 .split_sizes = split_sizes,
                                 .beta = beta,
                                 .fast_accumulation = recipe.fast(use)},
                                exec);
}

Operand expert_of(const Operand& weight, int64_t expert) {
    Operand part = weight;
    part.data = weight.data.rows(expert, 1);
    part.scale = weight.scale.rows(expert, 1);
    return part;
}

View LowPrecisionLinear::value(const View& view) const {
    return view.rank() == 3 ? view : view.reshaped({1, view.size(0), view.size(1)});
}

MatrixShape LowPrecisionLinear::matrix() const {
    const Shape& shape = weight_->spec.shape;
    const int last = shape.rank() - 1;
    return {
        .rows = shape[last - 1], .columns = shape[last], .experts = last == 2 ? shape[0] : 1, .weight = true};
}

TensorState LowPrecisionLinear::tensor(Role role, const Recipe& recipe, const Run& run) const {
    if (state_ == nullptr || state_->options_.recipe.get() != &recipe) return {};
    const int64_t experts = matrix().experts;
    TensorState state{.scale = state_->rows(state_->scale_, role, offset_, experts)};
    // Validation and the like use the scales that there are and leave no trace.
    if (!run.pass.training || !state_->observed_) return state;
    const int64_t micro = run.batch.index;
    MOEBIUS_CHECK(micro < state_->observed_.shape()[0], "micro-batch ", micro, " of ",
                  state_->observed_.shape()[0]);
    const int64_t at = static_cast<int64_t>(role) * state_->count_ + offset_;
    state.observed_amax = state_->observed_.view().at(micro).rows(at, experts);
    if (state_->counts_) state.counts = state_->counts_.view().at(micro).rows(at, experts);
    return state;
}

Quantized LowPrecisionLinear::input(const Rows& x, const View& split_sizes, const Recipe& recipe,
                                    Directions directions, const Run& run) const {
    return quantize_rows(x, split_sizes, Role::Input, recipe, directions, run.exec,
                         tensor(Role::Input, recipe, run));
}

Quantized LowPrecisionLinear::input_again(const Rows& x, const View& split_sizes, const Recipe& recipe,
                                          const Run& run) const {
    return quantize_rows(x, split_sizes, Role::Input, recipe, {.column = true}, run.exec,
                         {.scale = tensor(Role::Input, recipe, run).scale});
}

Quantized KeptInput::quantize(const Activation& x, const View& split_sizes, const LowPrecisionLinear& linear,
                              const Recipe& recipe, const Run& run) {
    const bool again = x.stays || x.again, save = run.pass.save;
    Quantized codes = linear.input(x, split_sizes, recipe, {.row = true, .column = save && !again}, run);
    if (save && again) x_ = Kept(x);
    if (save && !again) {
        codes_ = codes;
        codes_.drop(Direction::Row);
    }
    return codes;
}

Quantized KeptInput::take(const View& split_sizes, const LowPrecisionLinear& linear, const Recipe& recipe,
                          Run& run) {
    Quantized codes = x_ ? linear.input_again(x_.activation(run), split_sizes, recipe, run) : codes_;
    *this = {};
    return codes;
}

Quantized LowPrecisionLinear::grad_output(const Rows& dy, const View& split_sizes, const Recipe& recipe,
                                          Directions directions, const Run& run) const {
    return quantize_rows(dy, split_sizes, Role::GradOutput, recipe, directions, run.exec,
                         tensor(Role::GradOutput, recipe, run));
}

bool LowPrecisionLinear::keeps_weight(const Recipe& recipe) const {
    return state_ != nullptr && state_->keeps_weights_ && state_->options_.recipe.get() == &recipe;
}

Quantized LowPrecisionLinear::weight(Direction direction, const Recipe& recipe, const Run& run) {
    const ops::QuantizeSource source{
        .values = value(weight_->value), .split_sizes = {}, .row_index = {}, .rstd = {}, .norm_weight = {}};
    const bool kept = keeps_weight(recipe);
    if (kept && kept_version_ == weight_->version) return kept_;
    const bool row = direction == Direction::Row;
    const Quantized made =
        kept ? kept_
             : Quantized::empty("weight", spec_of(Role::Weight, recipe, {row, !row}, matrix()), run.exec);
    fill(made, source, Role::Weight, recipe, tensor(Role::Weight, recipe, run), run.exec);
    if (kept && !run.exec.dry) kept_version_ = weight_->version;
    return made;
}

void LowPrecisionLinear::forward(const Quantized& x, const View& split_sizes, const View& y,
                                 const Recipe& recipe, const Run& run) {
    const Quantized w = weight(Direction::Row, recipe, run);
    LowPrecisionProduct{Use::Forward, x.row(), w.row(), y, split_sizes}.run(recipe, run.exec);
}

void LowPrecisionLinear::dgrad(const Quantized& dy, const View& split_sizes, const View& dx,
                               const Recipe& recipe, const Run& run) {
    const Quantized w = weight(Direction::Column, recipe, run);
    LowPrecisionProduct{Use::Dgrad, dy.row(), w.column(), dx, split_sizes}.run(recipe, run.exec);
}

void LowPrecisionLinear::wgrad(const Quantized& dy, const Quantized& x, const View& split_sizes,
                               const Recipe& recipe, const Run& run) {
    const float beta = weight_->take_fresh();
    LowPrecisionProduct{Use::Wgrad, dy.column(), x.column(), value(weight_->main_grad), split_sizes, beta}
        .run(recipe, run.exec);
}

bool LowPrecisionState::delayed() const {
    return options_.recipe && options_.recipe->source == ScaleSource::Delayed;
}

View LowPrecisionState::rows(const Tensor& flat, Role role, int64_t offset, int64_t count) const {
    return flat ? flat.view().rows(static_cast<int64_t>(role) * count_ + offset, count) : View();
}

void LowPrecisionState::place(std::vector<Member> members, const LowPrecisionOptions& options,
                              const Exec& exec) {
    options_ = options;
    keeps_weights_ = options.keeps_weights(*exec.device);
    members_ = std::move(members);
    count_ = dense_ = 0;
    for (const bool routed : {false, true}) {
        for (const Member& member : members_) {
            if (member.routed != routed) continue;
            member.linear->offset_ = count_;
            count_ += member.linear->matrix().experts;
        }
        if (!routed) dense_ = count_;
    }
    for (const Member& member : members_) {
        LowPrecisionLinear& linear = *member.linear;
        linear.state_ = this;
        linear.kept_version_ = 0;
        if (!keeps_weights_) continue;
        linear.kept_ = Quantized::empty(
            "low_precision.weights",
            spec_of(Role::Weight, *options.recipe, {.row = true, .column = true}, linear.matrix()), exec);
    }
    if (members_.empty()) return;
    const int64_t all = kRoleCount * count_;
    if (delayed()) {
        history_ = Tensor::zeros("low_precision.amax_history", {all, options.recipe->delayed.history_length},
                                 DType::F32, exec);
        scale_ = Tensor::empty("low_precision.scale", {all}, DType::F32, exec);
        const std::vector<float> ones(static_cast<size_t>(all), 1.0f);
        copy_from_host(scale_, ones.data(), exec);
    }
    if (delayed() || options.statistics)
        observed_ = Tensor::zeros("low_precision.amax", {options.micro_batches, all}, DType::F32, exec);
    if (options.statistics)
        counts_ = Tensor::zeros("low_precision.counts", {options.micro_batches, all, 2}, DType::I64, exec);
}

std::vector<StateEntry> LowPrecisionState::buffers() const {
    std::vector<StateEntry> entries;
    if (!delayed()) return entries;
    const int64_t length = options_.recipe->delayed.history_length;
    for (const Member& member : members_) {
        const int64_t experts = member.linear->matrix().experts;
        for (const Role role : kRoles) {
            const std::string name =
                member.linear->parameter().spec.name + "." + kRoleNames[static_cast<size_t>(role)];
            const auto add = [&](const char* what, const Tensor& flat, Shape shape) {
                if (!flat) return;
                const View view = rows(flat, role, member.linear->offset_, experts);
                entries.push_back({{name + what, shape, 0, shape.numel()},
                                   view.reshaped({shape.numel()}),
                                   StateKind::Buffer});
            };
            add(".amax_history", history_, {experts, length});
            add(".scale", scale_, {experts});
        }
    }
    return entries;
}

void LowPrecisionState::round_weights(Run& run) {
    const Pass pass = run.pass;
    run.pass.training = false;
    for (const Member& member : members_) {
        LowPrecisionLinear& linear = *member.linear;
        const Quantized made = linear.weight(Direction::Row, *options_.recipe, run);
        ops::dequantize({.from = made.row(),
                         .direction = Direction::Row,
                         .split_sizes = View(),
                         .out = linear.value(linear.weight_->value)},
                        run.exec);
        ++linear.weight_->version;
    }
    run.pass = pass;
}

void LowPrecisionState::begin_step(const Run& run) {
    // A micro-batch's part that this step does not write would be another step's.
    if (observed_) fill_zero(observed_, run.exec);
    if (counts_) fill_zero(counts_, run.exec);
}

void LowPrecisionState::end_step(const Run& run) {
    if (!delayed() || count_ == 0) return;
    if (run.expert_ranks == nullptr) {
        next_scales(0, count_, run.world, run);
    } else {
        next_scales(0, dense_, run.world, run);
        next_scales(dense_, count_ - dense_, run.expert_ranks, run);
    }
}

// Of `count` tensors a role, whose amaxes are the largest of all `ranks`' micro-batches.
void LowPrecisionState::next_scales(int64_t offset, int64_t count, Communicator* ranks, const Run& run) {
    if (count == 0) return;
    const precision::DelayedOptions& o = options_.recipe->delayed;
    Tensor observed = observed_;
    if (o.reduce_amax && ranks != nullptr && ranks->size() > 1) {
        const Shape& own = observed_.shape();
        observed =
            Tensor::empty("low_precision.all_amax", {ranks->size() * own[0], own[1]}, DType::F32, run.exec);
        if (!run.exec.dry) ranks->all_gather(observed_, observed, run.exec.stream, "DelayedScaling's amax");
    }
    for (const Role role : kRoles) {
        ops::delayed_scaling(
            {.observed = observed.view().columns(static_cast<int64_t>(role) * count_ + offset, count),
             .history = rows(history_, role, offset, count),
             .scale = rows(scale_, role, offset, count),
             .bad = run.scalars.bad,
             .largest = largest_finite(options_.recipe->tensor(role).element),
             .margin = o.margin,
             .most_recent = o.algorithm == precision::AmaxAlgorithm::MostRecent},
            run.exec);
    }
}

int64_t LowPrecisionState::weight_bytes() const {
    int64_t total = 0;
    for (const Member& member : members_) total += member.linear->kept_.bytes();
    return total;
}

LowPrecisionState::Statistics LowPrecisionState::statistics() const {
    if (!options_.statistics || members_.empty()) return {};
    const int64_t parts = options_.micro_batches;
    return {.observed_amax = observed_.view().reshaped({parts, kRoleCount, count_}),
            .counts = counts_.view().reshaped({parts, kRoleCount, count_, 2}),
            .scale = scale_ ? scale_.view().reshaped({kRoleCount, count_}) : View()};
}

}  // namespace moebius::nn
