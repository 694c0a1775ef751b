#include "moebius/train/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "moebius/base/error.h"
#include "moebius/ops/adamw/adamw.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/global_norm/global_norm.h"
#include "moebius/runtime/stream.h"
#include "moebius/runtime/transfer.h"
#include "moebius/train/cpu_scratch.h"

namespace moebius::train {

namespace {

constexpr int64_t kAlign = 256;

// What the host gives a step: the micro-batches one after the other, then scalars.
struct InputLayout {
    eval::BatchLayout batch;
    int64_t micro_batches;
    int64_t step, learning_rate, grad_factor, one, aux_scale, bytes;  // aux_scale: one a micro-batch

    InputLayout(const data::BatchShape& shape, int64_t count) : batch(shape), micro_batches(count) {
        int64_t at = checked_mul(batch.bytes(), count);
        const auto take = [&](int64_t elements, DType dtype) {
            return std::exchange(at, at + bytes_of(dtype, elements));
        };
        step = take(1, DType::I64);
        learning_rate = take(1, DType::F32);
        grad_factor = take(1, DType::F32);
        one = take(1, DType::F32);
        aux_scale = take(count, DType::F32);
        bytes = round_up(at, kAlign);
    }
};

// What a step leaves for the host, elements of 4 bytes; each part is aligned as memory of its own would be.
struct OutputLayout {
    int64_t loss_sum, norm, bad, aux_loss, z_loss, layer_aux_loss, counts, elements = 0;

    OutputLayout(int64_t micro_batches, int64_t layers, int64_t experts) {
        const auto take = [&](int64_t count) {
            return std::exchange(elements, elements + round_up(count, kAlign / bytes_of(DType::F32, 1)));
        };
        loss_sum = take(1);
        norm = take(1);
        bad = take(1);
        aux_loss = take(micro_batches);
        z_loss = take(micro_batches);
        layer_aux_loss = take(layers);
        counts = take(checked_mul(layers, experts));
    }
};

View part(const View& bytes, int64_t at, DType dtype, Shape shape) {
    return View(static_cast<char*>(bytes.data) + at, dtype, shape);
}

template <class T>
void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

}  // namespace

// Device memory of a step, the same addresses every time.
struct Step::Buffers {
    InputLayout in;
    OutputLayout out;
    int64_t layers, experts;
    Tensor inputs, outputs, token_loss, sum_of_squares, clip;

    Buffers(const StepOptions& o, const nn::DecoderOptions& d, const Exec& exec)
        : in(o.shape, o.micro_batches),
          out(o.micro_batches, d.layers, d.layer.moe.experts.experts),
          layers(d.layers),
          experts(d.layer.moe.experts.experts) {
        inputs = Tensor::empty("step.inputs", {in.bytes}, DType::U8, exec);
        outputs = Tensor::zeros("step.outputs", {out.elements}, DType::F32, exec);
        token_loss = Tensor::empty("step.token_loss", {o.shape.capacity}, DType::F32, exec);
        sum_of_squares = Tensor::zeros("step.sum_of_squares", {1}, DType::F64, exec);
        clip = Tensor::zeros("step.clip", {1}, DType::F32, exec);
    }

    View input(int64_t at, DType dtype) const { return part(inputs, at, dtype, {1}); }
    View output(int64_t at, Shape shape, DType dtype = DType::F32) const {
        return part(outputs, bytes_of(DType::F32, at), dtype, shape);
    }
    View loss_sum() const { return output(out.loss_sum, {1}); }
    View counts() const { return output(out.counts, {layers, experts}); }
    nn::BatchView batch(int64_t micro) const {
        return in.batch.view(part(inputs, micro * in.batch.bytes(), DType::U8, {1}).data);
    }
    nn::StepScalars scalars() const {
        return {.learning_rate = input(in.learning_rate, DType::F32),
                .step = input(in.step, DType::I64),
                .bad = output(out.bad, {1}, DType::I32),
                .clip = clip,
                .norm = output(out.norm, {1}),
                .grad_factor = input(in.grad_factor, DType::F32),
                .aux_scale = aux_scale(0),
                .one = input(in.one, DType::F32)};
    }
    View aux_scale(int64_t micro) const {
        return input(in.aux_scale + micro * bytes_of(DType::F32, 1), DType::F32);
    }
    nn::DecoderOutputs decoder_outputs(int64_t micro, bool aux) const {
        nn::DecoderOutputs result;
        result.loss = {.token_loss = token_loss, .loss_sum = loss_sum()};
        if (aux) {
            result.aux_loss = output(out.aux_loss + micro, {1});
            result.z_loss = output(out.z_loss + micro, {1});
            result.layer_aux_loss = output(out.layer_aux_loss, {layers});
        }
        return result;
    }
};

// The host's side of one step in flight.
struct Step::Slot {
    std::pmr::vector<std::byte> inputs, outputs;
    Event ready;  // behind the copy of the results
    int64_t labels = 0;
    std::vector<int64_t> micro_labels;
    StatisticsCopy statistics;

    Slot(const Buffers& buffers, const nn::LowPrecisionState& low_precision, std::pmr::memory_resource* host,
         const Device& device)
        : inputs(static_cast<size_t>(buffers.in.bytes), host),
          outputs(static_cast<size_t>(buffers.outputs.view().bytes()), host),
          ready(device),
          statistics(low_precision, host) {}

    void pack(const InputLayout& in, const data::StepBatch& batch, int64_t update, double rate, bool global) {
        labels = batch.labels;
        micro_labels.clear();
        const float all = static_cast<float>(std::max<int64_t>(1, labels));
        for (size_t i = 0; i < batch.micro.size(); ++i) {
            const auto micro = static_cast<int64_t>(i);
            in.batch.pack(batch.micro[i], inputs.data() + micro * in.batch.bytes());
            micro_labels.push_back(batch.micro[i].labels);
            put(inputs.data() + in.aux_scale + micro * bytes_of(DType::F32, 1),
                global ? all : static_cast<float>(batch.micro[i].labels));
        }
        put(inputs.data() + in.step, update);
        put(inputs.data() + in.learning_rate, static_cast<float>(rate));
        put(inputs.data() + in.grad_factor, 1.0f / all);
        put(inputs.data() + in.one, 1.0f);
    }

    template <class T = float>
    T output(int64_t at) const {
        T value;
        std::memcpy(&value, outputs.data() + bytes_of(DType::F32, at), sizeof value);
        return value;
    }
    std::vector<float> outputs_at(int64_t at, int64_t count) const {
        std::vector<float> values(static_cast<size_t>(count));
        std::memcpy(values.data(), outputs.data() + bytes_of(DType::F32, at), values.size() * sizeof(float));
        return values;
    }
};

std::string why_no_cuda_graph(const nn::DecoderOptions& options) {
    // Its random numbers come from the step's number, which the host hands to the kernel.
    if (options.layer.moe.input_jitter > 0) {
        return fmt::format("config_kwargs.router_jitter_noise = {}", options.layer.moe.input_jitter);
    }
    return {};
}

Step::Step(models::Model& model, const StepOptions& options, const nn::Run& run,
           std::pmr::memory_resource* host)
    : model_(model), options_(options), run_(run) {
    MOEBIUS_CHECK(host != nullptr || run.exec.device->kind() == DeviceKind::Cpu, "no pinned memory");
    buffers_ = std::make_shared<Buffers>(options_, model_.options(), run_.exec);
    if (host == nullptr) host = std::pmr::new_delete_resource();
    for (int64_t i = 0; i < kInFlight; ++i) {
        slots_.push_back(
            std::make_shared<Slot>(*buffers_, model_.decoder().low_precision(), host, *run_.exec.device));
    }
    run_.fusion = options_.fusion;
    run_.seed = options_.seed;
    run_.scalars = buffers_->scalars();
}

Step::~Step() {
    // The copies of steps that nobody finished: after an error, which is told elsewhere.
    try {
        while (in_flight() > 0) slots_[static_cast<size_t>(finished_++ % kInFlight)]->ready.synchronize();
    } catch (const DeviceError&) {
    }
}

bool Step::global_aux() const {
    return model_.options().aux.any() && options_.aux_scope == AuxScope::GlobalBatch;
}

void Step::micro_batches(Buffers& buffers, nn::Run& run) {
    nn::Decoder& decoder = model_.decoder();
    const bool aux = model_.options().aux.any(), global = global_aux();
    const Exec& exec = run.exec;
    const auto take_batch = [&](int64_t i) {
        run.batch = buffers.batch(i);
        run.batch.first_token = checked_mul(i, options_.shape.capacity);
        run.batch.index = i;
    };
    const auto add_counts = [&] {
        ops::add({buffers.counts(), decoder.statistics().counts, buffers.counts()}, exec);
    };
    decoder.reset_statistics(run);
    if (global) {
        // Routing of the whole batch is counted before the first backward.
        run.pass = {.training = true, .save = false, .count = true};
        for (int64_t i = 0; i < options_.micro_batches; ++i) {
            take_batch(i);
            run.batch.targets = View();
            decoder.forward({}, run);
        }
        run.router = &decoder.statistics();
        run.scalars.aux_scale = buffers.aux_scale(0);
        decoder.auxiliary_losses(buffers.decoder_outputs(0, aux), run);
        add_counts();
    }
    for (int64_t i = 0; i < options_.micro_batches; ++i) {
        take_batch(i);
        // With several micro-batches the later ones have no such memory: the peak would be theirs.
        run.pass = {
            .training = true, .save = true, .count = !global, .lend_gradients = options_.micro_batches == 1};
        if (!global) {
            decoder.reset_statistics(run);
            run.scalars.aux_scale = buffers.aux_scale(i);
        }
        nn::DecoderContext context = decoder.forward(buffers.decoder_outputs(i, aux), run);
        saved_bytes_ = context.bytes();
        lent_bytes_ = context.lent_bytes();
        if (!global) add_counts();
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
                      .loss = buffers.loss_sum(),
                      .max_norm = options_.clip_grad_norm,
                      .norm = s.norm,
                      .clip = s.clip,
                      .bad = s.bad},
                     exec);
    const bool rounded = parameters.values().dtype != DType::F32;
    for (const Segment& segment : parameters.segments()) {
        const auto range = [&](const View& flat) {
            return flat ? flat.rows(segment.begin, segment.count) : View();
        };
        ops::adamw({.master = range(parameters.masters()),
                    .weights = rounded && !segment.wide ? range(parameters.values()) : View(),
                    .remainder = range(parameters.remainders()),
                    .grad = range(parameters.gradients()),
                    .m = range(parameters.first_moments()),
                    .v = range(parameters.second_moments()),
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
    model_.decoder().end_step(buffers.counts(), run);
}

// All of a step that the device does: nothing here depends on what the host knows of this one.
void Step::work(Buffers& buffers, nn::Run& run) {
    fill_zero(buffers.loss_sum(), run.exec);
    fill_zero(buffers.counts(), run.exec);
    model_.parameters().begin_step();
    // What a graph replays begins with these weights, whatever was made of them before it was captured.
    model_.parameters().touch();
    model_.decoder().begin_step(run);
    micro_batches(buffers, run);
    update(buffers, run);
}

void Step::run_or_replay(int64_t update_number) {
    const auto run_work = [&] {
        nn::Run run = run_;
        run.step = update_number;
        if (queued_ == 0) run.exec.log = &variants_;
        work(*buffers_, run);
    };
    // The first step runs eagerly: libraries make their plans, the arena learns what a step takes.
    if (!options_.cuda_graph || queued_ == 0) {
        run_work();
        return;
    }
    if (!graph_) graph_.capture(run_.exec, run_work);
    graph_.replay(run_.exec.stream);
}

void Step::enqueue(const data::StepBatch& batch, int64_t update_number, double learning_rate) {
    MOEBIUS_CHECK(static_cast<int64_t>(batch.micro.size()) == options_.micro_batches, batch.micro.size());
    MOEBIUS_CHECK(in_flight() < kInFlight, in_flight(), " steps are in flight");
    // Its last step is finished, so that nothing reads or writes the slot any more.
    Slot& slot = *slots_[static_cast<size_t>(queued_ % kInFlight)];
    slot.pack(buffers_->in, batch, update_number, learning_rate, global_aux());
    const Exec& exec = run_.exec;
    copy_to_device(buffers_->inputs.view().data, slot.inputs.data(), slot.inputs.size(), exec);
    run_or_replay(update_number);
    model_.parameters().touch();
    copy_to_host(slot.outputs.data(), buffers_->outputs.view().data, slot.outputs.size(), exec);
    slot.statistics.take(model_.decoder().low_precision(), exec);
    slot.ready.record(exec.stream);
    ++queued_;
}

StepResult Step::finish() {
    MOEBIUS_CHECK(in_flight() > 0, "no step is in flight");
    Slot& slot = *slots_[static_cast<size_t>(finished_ % kInFlight)];
    slot.ready.synchronize();
    ++finished_;
    const OutputLayout& out = buffers_->out;
    StepResult result;
    result.labels = slot.labels;
    if (slot.labels > 0) {
        result.loss = static_cast<double>(slot.output(out.loss_sum)) / static_cast<double>(slot.labels);
    }
    const bool aux = model_.options().aux.any();
    for (int64_t i = 0; aux && i < (global_aux() ? 1 : options_.micro_batches); ++i) {
        const auto own = static_cast<double>(slot.micro_labels[static_cast<size_t>(i)]);
        const double share = global_aux()      ? 1.0
                             : slot.labels > 0 ? own / static_cast<double>(slot.labels)
                                               : 0.0;
        result.aux_loss += share * static_cast<double>(slot.output(out.aux_loss + i));
        result.z_loss += share * static_cast<double>(slot.output(out.z_loss + i));
    }
    result.grad_norm = static_cast<double>(slot.output(out.norm));
    result.bad =
        slot.output<int32_t>(out.bad) != 0 || !std::isfinite(result.loss + result.aux_loss + result.z_loss);
    result.expert_counts = slot.outputs_at(out.counts, buffers_->counts().numel());
    if (const auto& recipe = model_.options().low_precision.recipe) {
        result.low_precision = slot.statistics.read(
            model_.decoder().low_precision(), *recipe, result.expert_counts, buffers_->experts,
            checked_mul(options_.micro_batches, options_.shape.capacity));
    }
    if (aux) result.layer_aux_loss = slot.outputs_at(out.layer_aux_loss, buffers_->layers);
    return result;
}

StepResult Step::run(const data::StepBatch& batch, int64_t update_number, double learning_rate) {
    MOEBIUS_CHECK(in_flight() == 0, in_flight(), " steps are in flight");
    enqueue(batch, update_number, learning_rate);
    return finish();
}

StepPlan Step::plan() {
    CountingPool pool(run_.exec.device->kind() == DeviceKind::Cpu ? kAlignment : kCudaAlignment);
    StepPlan plan;
    nn::Run run = run_;
    run.exec.dry = true;
    run.exec.pool = &pool;
    run.exec.cost = &plan.cost;
    run.exec.log = &plan.variants;
    {
        Buffers buffers(options_, model_.options(), run.exec);
        run.scalars = buffers.scalars();
        work(buffers, run);
        model_.parameters().begin_step();
    }
    plan.memory = pool.report();
    plan.bytes = plan.memory.peak_bytes;
    plan.saved_bytes = saved_bytes_;
    plan.lent_bytes = lent_bytes_;
    if (run_.exec.device->kind() == DeviceKind::Cpu)
        plan.scratch_bytes = cpu_scratch_bytes(model_.options(), options_.shape, run_.exec.threads->size());
    return plan;
}

}  // namespace moebius::train
