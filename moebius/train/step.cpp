#include "moebius/train/step.h"

#include <cmath>

#include "moebius/ops/adamw/adamw.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/global_norm/global_norm.h"

namespace moebius::train {

// Device memory of a step, the same addresses every time.
struct Step::Buffers {
    std::vector<std::unique_ptr<eval::DeviceBatch>> batches;
    eval::DeviceScalars scalars;
    Tensor token_loss, loss_sum, aux_loss, z_loss, layer_aux_loss, counts, sum_of_squares;

    Buffers(const StepOptions& o, const nn::DecoderOptions& d, const Exec& exec) : scalars(exec) {
        const int64_t tokens = o.shape.capacity, experts = d.layer.moe.experts.experts;
        for (int64_t i = 0; i < o.micro_batches; ++i) {
            batches.push_back(std::make_unique<eval::DeviceBatch>(o.shape, exec));
        }
        token_loss = Tensor::empty("step.token_loss", {tokens}, DType::F32, exec);
        loss_sum = Tensor::zeros("step.loss_sum", {1}, DType::F32, exec);
        aux_loss = Tensor::zeros("step.aux_loss", {1}, DType::F32, exec);
        z_loss = Tensor::zeros("step.z_loss", {1}, DType::F32, exec);
        layer_aux_loss = Tensor::zeros("step.layer_aux_loss", {d.layers}, DType::F32, exec);
        counts = Tensor::zeros("step.expert_counts", {d.layers, experts}, DType::F32, exec);
        sum_of_squares = Tensor::zeros("step.sum_of_squares", {1}, DType::F64, exec);
    }

    nn::DecoderOutputs outputs(bool aux) const {
        nn::DecoderOutputs out;
        out.loss = {.token_loss = token_loss, .loss_sum = loss_sum};
        if (aux) {
            out.aux_loss = aux_loss;
            out.z_loss = z_loss;
            out.layer_aux_loss = layer_aux_loss;
        }
        return out;
    }
};

namespace {

void set(const View& scalar, float value, const Exec& exec) {
    copy_from_host(scalar, &value, exec);
}

}  // namespace

Step::Step(models::Model& model, const StepOptions& options, const nn::Run& run)
    : model_(model), options_(options), run_(run) {
    buffers_ = std::make_shared<Buffers>(options_, model_.options(), run_.exec);
    run_.fusion = options_.fusion;
    run_.seed = options_.seed;
    run_.scalars = buffers_->scalars.view;
}

void Step::micro_batches(const data::StepBatch* batch, Buffers& buffers, nn::Run& run, StepResult& result) {
    nn::Decoder& decoder = model_.decoder();
    const bool aux = model_.options().aux.any();
    const bool global = aux && options_.aux_scope == AuxScope::GlobalBatch;
    const nn::DecoderOutputs outputs = buffers.outputs(aux);
    const Exec& exec = run.exec;
    const auto labels_of = [&](int64_t i) { return batch ? batch->micro[static_cast<size_t>(i)].labels : 1; };
    const auto take_aux = [&](double share) {
        if (!aux || exec.dry) return;
        result.aux_loss += share * static_cast<double>(*buffers.aux_loss.view().as<float>());
        result.z_loss += share * static_cast<double>(*buffers.z_loss.view().as<float>());
    };
    decoder.reset_statistics(run);
    if (global) {
        // Routing of the whole batch is counted before the first backward.
        run.pass = {.training = true, .save = false, .count = true};
        for (int64_t i = 0; i < options_.micro_batches; ++i) {
            run.batch = buffers.batches[static_cast<size_t>(i)]->view();
            run.batch.targets = View();
            decoder.forward({}, run);
        }
        run.router = &decoder.statistics();
        set(run.scalars.aux_scale, static_cast<float>(std::max<int64_t>(1, result.labels)), exec);
        decoder.auxiliary_losses(outputs, run);
        ops::add({buffers.counts, decoder.statistics().counts, buffers.counts}, exec);
        take_aux(1.0);
    }
    for (int64_t i = 0; i < options_.micro_batches; ++i) {
        run.batch = buffers.batches[static_cast<size_t>(i)]->view();
        run.pass = {.training = true, .save = true, .count = !global};
        if (!global) {
            decoder.reset_statistics(run);
            set(run.scalars.aux_scale, static_cast<float>(labels_of(i)), exec);
        }
        nn::DecoderContext context = decoder.forward(outputs, run);
        saved_bytes_ = context.bytes();
        if (!global) {
            ops::add({buffers.counts, decoder.statistics().counts, buffers.counts}, exec);
            take_aux(result.labels > 0
                         ? static_cast<double>(labels_of(i)) / static_cast<double>(result.labels)
                         : 0);
        }
        decoder.backward(std::move(context), run);
    }
}

void Step::update(Buffers& buffers, nn::Run& run) {
    ParameterSet& parameters = model_.parameters();
    const nn::StepScalars& s = run.scalars;
    const Exec& exec = run.exec;
    parameters.finish_gradients(exec);
    fill_zero(buffers.sum_of_squares, exec);
    ops::sum_of_squares({parameters.gradients(), buffers.sum_of_squares}, exec);
    ops::clip_factor({.sum_of_squares = buffers.sum_of_squares,
                      .grad_factor = s.grad_factor,
                      .loss = buffers.loss_sum,
                      .max_norm = options_.clip_grad_norm,
                      .norm = s.norm,
                      .clip = s.clip,
                      .bad = s.bad},
                     exec);
    const bool rounded = parameters.values().dtype != DType::F32;
    for (const Segment& segment : parameters.segments()) {
        const auto part = [&](const View& flat) { return flat.rows(segment.begin, segment.count); };
        ops::adamw({.master = part(parameters.masters()),
                    .weights = rounded ? part(parameters.values()) : View(),
                    .grad = part(parameters.gradients()),
                    .m = part(parameters.first_moments()),
                    .v = part(parameters.second_moments()),
                    .learning_rate = s.learning_rate,
                    .clip = s.clip,
                    .step = s.step,
                    .bad = s.bad,
                    .beta1 = options_.adamw.beta1,
                    .beta2 = options_.adamw.beta2,
                    .eps = options_.adamw.eps,
                    .weight_decay = segment.decay || options_.decay_all ? options_.adamw.weight_decay : 0.0f},
                   exec);
    }
    for (const auto& p : parameters.all()) ++p->version;
    const bool good = exec.dry || *s.bad.as<int32_t>() == 0;
    if (good) model_.decoder().end_step(buffers.counts, run);
}

StepResult Step::run(const data::StepBatch& batch, int64_t update_number, double learning_rate) {
    Buffers& buffers = *buffers_;
    nn::Run run = run_;
    run.step = update_number;
    const Exec& exec = run.exec;
    StepResult result;
    result.labels = batch.labels;
    MOEBIUS_CHECK(static_cast<int64_t>(batch.micro.size()) == options_.micro_batches, batch.micro.size());
    for (size_t i = 0; i < batch.micro.size(); ++i) {
        const int64_t first = checked_mul(static_cast<int64_t>(i), options_.shape.capacity);
        buffers.batches[i]->copy_from(batch.micro[i], first, exec);
    }
    set(run.scalars.learning_rate, static_cast<float>(learning_rate), exec);
    set(run.scalars.grad_factor, 1.0f / static_cast<float>(std::max<int64_t>(1, batch.labels)), exec);
    copy_from_host(run.scalars.step, &update_number, exec);
    fill_zero(buffers.loss_sum, exec);
    fill_zero(buffers.counts, exec);
    model_.parameters().begin_step();
    micro_batches(&batch, buffers, run, result);
    update(buffers, run);

    if (batch.labels > 0) {
        result.loss =
            static_cast<double>(*buffers.loss_sum.view().as<float>()) / static_cast<double>(batch.labels);
    }
    result.grad_norm = static_cast<double>(*run.scalars.norm.as<float>());
    result.bad =
        *run.scalars.bad.as<int32_t>() != 0 || !std::isfinite(result.loss + result.aux_loss + result.z_loss);
    const float* counts = buffers.counts.view().as<float>();
    result.expert_counts.assign(counts, counts + buffers.counts.view().numel());
    if (model_.options().aux.any()) {
        const float* layers = buffers.layer_aux_loss.view().as<float>();
        result.layer_aux_loss.assign(layers, layers + model_.options().layers);
    }
    return result;
}

StepPlan Step::plan() {
    CountingPool pool;
    StepPlan plan;
    nn::Run run = run_;
    run.exec.dry = true;
    run.exec.pool = &pool;
    run.exec.cost = &plan.cost;
    {
        Buffers buffers(options_, model_.options(), run.exec);
        run.scalars = buffers.scalars.view;
        StepResult unused;
        model_.parameters().begin_step();
        micro_batches(nullptr, buffers, run, unused);
        update(buffers, run);
        model_.parameters().begin_step();
    }
    plan.memory = pool.report();
    plan.bytes = plan.memory.peak_bytes;
    plan.saved_bytes = saved_bytes_;
    return plan;
}

}  // namespace moebius::train
