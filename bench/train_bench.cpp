// Training steps of any configuration on random tokens, queued one behind the other as `moebius train` does.
#include <fmt/format.h>

#include <algorithm>

#include "bench/bench.h"
#include "moebius/base/bf16.h"
#include "moebius/base/error.h"
#include "moebius/base/philox.h"
#include "moebius/base/version.h"
#include "moebius/comm/registry.h"
#include "moebius/runtime/transfer.h"
#include "moebius/train/machine.h"
#include "moebius/train/resolve.h"
#include "moebius/train/run_folder.h"

namespace moebius::bench {
namespace {

namespace fs = std::filesystem;

// Micro-batches of rows of equal length with nothing padded, tokens evenly from the vocabulary.
class RandomBatch {
  public:
    RandomBatch(int64_t micro_batches, int64_t rows, int64_t length, int64_t vocab) {
        for (int64_t m = 0; m < micro_batches; ++m) add(m, rows, length, vocab);
        // Spans point into the arrays once all of them stand.
        for (Arrays& a : arrays_) {
            data::MicroBatch micro;
            micro.tokens = a.tokens;
            micro.targets = a.targets;
            micro.positions = a.positions;
            micro.valid = a.valid;
            micro.cu_seqlens = micro.cu_seqlens_capacity = a.borders;
            micro.max_seqlen = static_cast<int32_t>(length);
            micro.labels = rows * (length - 1);
            micro.real_tokens = rows * length;
            step.labels += micro.labels;
            step.tokens += rows * length;
            step.micro.push_back(std::move(micro));
        }
        step.real_tokens = step.tokens;
    }

    data::StepBatch step;

  private:
    struct Arrays {
        std::vector<int32_t> tokens, targets, positions, borders;
        std::vector<uint8_t> valid;
    };
    void add(int64_t index, int64_t rows, int64_t length, int64_t vocab) {
        const Philox random(static_cast<uint64_t>(index), "bench.tokens");
        Arrays& a = arrays_.emplace_back();
        for (int64_t i = 0; i < rows * length; ++i) {
            a.tokens.push_back(
                static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
            a.positions.push_back(static_cast<int32_t>(i % length));
        }
        for (size_t i = 0; i < a.tokens.size(); ++i) {
            const bool last = i + 1 == a.tokens.size() || a.positions[i + 1] == 0;
            a.targets.push_back(last ? data::kIgnore : a.tokens[i + 1]);
        }
        a.valid.assign(a.tokens.size(), 1);
        for (int64_t row = 0; row <= rows; ++row) a.borders.push_back(static_cast<int32_t>(row * length));
    }

    std::vector<Arrays> arrays_;
};

config::TrainConfig load_config(const std::string& name, const fs::path& configs,
                                std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "num_train_steps=1");
    return config::load({.config_name = name,
                         .search_dirs = {configs},
                         .overrides = std::move(overrides),
                         .choices = train::registry_choices(),
                         .allow_missing = true})
        .config;
}

// As ParameterSet::fill, but of each tensor only the first numbers are drawn, and repeated: on a host a
// number costs enough for billions of them to take longer than the steps. An odd period, so that rows differ.
constexpr int64_t kDrawn = (int64_t{1} << 22) + 9;

void fill_repeating(ParameterSet& parameters, uint64_t seed, const Exec& exec) {
    constexpr int64_t kPiece = 1 << 16;
    std::vector<float> drawn;
    std::vector<BF16> rounded;
    for (const auto& p : parameters.all()) {
        const View& value = p->value;
        const int64_t count = std::min(value.numel(), kDrawn), size = bits(value.dtype) / 8;
        const Philox random(seed, p->spec.name);
        drawn.assign(static_cast<size_t>(count), p->spec.init == Init::Ones ? 1.0f : 0.0f);
        if (p->spec.init == Init::Normal) {
            exec.parallel((count + kPiece - 1) / kPiece, [&](int64_t piece, int) {
                for (int64_t i = piece * kPiece; i < std::min(count, (piece + 1) * kPiece); ++i) {
                    drawn[static_cast<size_t>(i)] =
                        static_cast<float>(p->spec.init_std * random.normal(static_cast<uint64_t>(i)));
                }
            });
        }
        const void* from = drawn.data();
        if (value.dtype == DType::BF16) {
            rounded.resize(drawn.size());
            std::transform(drawn.begin(), drawn.end(), rounded.begin(), to_bf16);
            from = rounded.data();
        }
        auto* data = static_cast<char*>(value.data);
        copy_to_device(data, from, static_cast<size_t>(count * size), exec);
        for (int64_t done = count; done < value.numel();) {
            const int64_t more = std::min(done, value.numel() - done);
            copy(data + done * size, data, static_cast<size_t>(more * size), exec);
            done += more;
        }
    }
    if (parameters.masters() && parameters.masters().data != parameters.values().data)
        parameters.masters_from_values(exec);
    parameters.touch();
    synchronize(exec);
}

Json spread(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return {{"median", seconds[seconds.size() / 2]}, {"least", seconds.front()}, {"most", seconds.back()}};
}

Json memory_json(const PoolReport& report) {
    Json owners = Json::object(), at_peak = Json::object();
    for (const PoolReport::Row& row : report.rows) {
        owners[row.name] = row.peak_bytes;
        if (row.at_peak_bytes > 0) at_peak[row.name] = row.at_peak_bytes;
    }
    return {{"peak_bytes", report.peak_bytes},
            {"system_bytes", report.system_bytes},
            {"system_allocations", report.system_allocations},
            {"at_peak_bytes_by_owner", at_peak},  // sums to peak_bytes
            {"peak_bytes_by_owner", owners}};     // each owner's own peak
}

struct Measured {
    std::vector<double> step, enqueue;  // seconds
    double first_loss = 0, last_loss = 0;
};

// The time of a step is that between two results. One step is always queued behind the one that runs, at the
// end one that is not counted.
Measured measure(train::Step& step, const data::StepBatch& batch, double rate, int64_t warm, int64_t steps) {
    Measured m;
    double before = 0;
    for (int64_t number = 1; number <= warm + steps + 1; ++number) {
        const double start = seconds_now();
        step.enqueue(batch, number, rate);
        if (number > warm) m.enqueue.push_back(seconds_now() - start);
        if (number == 1) continue;
        const train::StepResult result = step.finish();
        const double now = seconds_now();
        if (result.bad) throw Error(fmt::format("step {}: loss {} is not finite", number - 1, result.loss));
        if (number == 2) m.first_loss = result.loss;
        if (number - 1 > warm) m.step.push_back(now - before);
        m.last_loss = result.loss;
        before = now;
    }
    step.finish();
    return m;
}

}  // namespace

int run_train(Options options) {
    const std::string name = options.text("config", "bench_8x7b_layers");
    // A program built elsewhere finds no configurations where its sources lay.
    const fs::path configs = options.text("configs", MOEBIUS_SOURCE_DIR "/configs");
    const int64_t rows = options.number("rows", 2), length = options.number("length", 8192);
    const int64_t warm = options.number("warm", 5), steps = options.number("steps", 20);
    options.done(options.rest().size());
    if (rows < 1 || length < 2 || steps < 1 || warm < 2) {
        throw Error("--rows and --steps are at least 1, --length and --warm at least 2");
    }
    const config::TrainConfig c = load_config(name, configs, options.rest());
    train::Machine machine(c.device,
                           static_cast<int>(c.num_threads > 0 ? c.num_threads : train::available_cpus()));
    train::check_device(c, machine.device());
    const auto world = make_communicator("self");
    models::Model model(config::ModelConfig::load(c.config_name_or_path, {configs}, c.config_kwargs),
                        train::model_options(c));
    nn::Run run{.exec = machine.exec(&c.kernels), .dtype = train::dtype_from(c.dtype), .world = world.get()};
    const double begin = seconds_now();
    model.place(train::place_options(c), run.exec);
    const bool repeating = machine.on_gpu() && !c.optimizer_store_param_remainders;
    if (repeating) {
        fill_repeating(model.parameters(), static_cast<uint64_t>(c.seed), run.exec);
    } else {
        model.parameters().fill(static_cast<uint64_t>(c.seed), run.exec);
    }
    const double filled = seconds_now() - begin;
    const data::BatchShape shape{
        .rows = rows, .capacity = rows * length, .max_seqlen = length, .max_pieces = rows};
    train::StepOptions step_options = train::step_options(c, shape);
    step_options.cuda_graph = train::use_cuda_graph(c, model.options(), machine.device());
    train::Step step(model, step_options, run, &machine.host_memory());
    const train::StepPlan plan = step.plan();
    const RandomBatch batch(c.grad_acc_steps, rows, length, model.options().vocab);
    const Measured m = measure(step, batch.step, c.adamw_kwargs.lr, warm, steps);
    const auto tokens = static_cast<double>(batch.step.tokens);
    const CudaDevices devices = visible_cuda_devices();
    print({{"device", machine.line()},
           {"commit", build_info().commit},
           {"dirty", build_info().dirty},
           {"toolkit", "CUDA " + train::cuda_version_text(devices.runtime_version)},
           {"config", name},
           {"overrides", options.rest()},
           {"dtype", c.dtype},
           {"micro_batches", c.grad_acc_steps},
           {"rows", rows},
           {"length", length},
           {"parameters", model.parameters().numel()},
           {"flops", plan.cost.flops},
           {"model_flops", model.flops_per_token(length) * tokens},
           {"step_seconds", spread(m.step)},
           {"enqueue_seconds", spread(m.enqueue)},
           {"samples", m.step},
           {"enqueue_samples", m.enqueue},
           {"graph_nodes", step.graph_nodes()},
           {"weights", repeating ? "the first 4 M numbers of each tensor, repeated" : "as in training"},
           {"fill_seconds", filled},
           {"first_loss", m.first_loss},
           {"last_loss", m.last_loss},
           {"saved_bytes", plan.saved_bytes},
           {"lent_bytes", plan.lent_bytes},  // of these, in gradients' memory
           {"memory", memory_json(machine.memory())},
           {"kernels", Json::parse(train::kernels_json(step.variants()))}});
    return 0;
}

}  // namespace moebius::bench
