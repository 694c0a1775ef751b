// A training step of L0_sanity that runs when it is asked to, so that two sides can be measured in turns.
#include <fmt/format.h>

#include <fstream>
#include <iostream>

#include "bench/bench.h"
#include "moebius/base/error.h"
#include "moebius/base/philox.h"
#include "moebius/comm/registry.h"
#include "moebius/train/resolve.h"

namespace moebius::bench {
namespace {

namespace fs = std::filesystem;

// Rows of equal length with nothing padded, every next token a label.
struct Tokens {
    std::vector<int32_t> tokens, targets, positions, borders;
    std::vector<uint8_t> valid;
    data::StepBatch step;

    Tokens(int64_t rows, int64_t length, const std::string& file) {
        const auto count = static_cast<size_t>(rows * length);
        tokens = file.empty() ? random(count) : read(file, count);
        targets.resize(count);
        positions.resize(count);
        valid.assign(count, 1);
        for (size_t i = 0; i < count; ++i) {
            const auto column = static_cast<int64_t>(i) % length;
            positions[i] = static_cast<int32_t>(column);
            targets[i] = column + 1 == length ? data::kIgnore : tokens[i + 1];
        }
        for (int64_t row = 0; row <= rows; ++row) borders.push_back(static_cast<int32_t>(row * length));
        data::MicroBatch micro;
        micro.tokens = tokens;
        micro.targets = targets;
        micro.positions = positions;
        micro.valid = valid;
        micro.cu_seqlens = micro.cu_seqlens_capacity = borders;
        micro.max_seqlen = static_cast<int32_t>(length);
        micro.labels = rows * (length - 1);
        micro.real_tokens = rows * length;
        step.labels = micro.labels;
        step.tokens = step.real_tokens = rows * length;
        step.micro = {std::move(micro)};
    }

  private:
    static std::vector<int32_t> random(size_t count) {
        const Philox philox(42, "bench.tokens");
        std::vector<int32_t> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = "ACGT"[philox.below(i, 4)];
        return values;
    }
    static std::vector<int32_t> read(const std::string& file, size_t count) {
        std::vector<int32_t> values(count);
        std::ifstream in(file, std::ios::binary);
        in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(4 * count));
        if (!in) throw Error(fmt::format("{}: not {} int32 tokens", file, count));
        return values;
    }
};

config::TrainConfig load_config(Options& options) {
    const fs::path configs = fs::path(MOEBIUS_SOURCE_DIR) / "configs";
    return config::load({.config_name = "L0_sanity",
                         .search_dirs = {configs},
                         .overrides = {"expert_ffn_mode=" + options.text("mode", "grouped_linear"),
                                       "dtype=" + options.text("dtype", "fp32"),
                                       "num_threads=" + options.text("threads", "2")},
                         .choices = train::registry_choices()})
        .config;
}

// Answers lines of standard input until "quit" or its end.
void serve(train::Step& step, const Tokens& batch, double learning_rate, ReferenceProduct& product) {
    int64_t update = 0;
    for (std::string line; std::getline(std::cin, line) && line != "quit";) {
        if (line == "sgemm") {
            print({{"seconds", product.median_seconds(5)}});
        } else if (line == "step") {
            const double start = seconds_now();
            const train::StepResult result = step.run(batch.step, ++update, learning_rate);
            const double seconds = seconds_now() - start;
            if (result.bad) throw Error(fmt::format("step {}: loss {} is not finite", update, result.loss));
            print({{"seconds", seconds}, {"loss", result.loss}});
        } else {
            throw Error(fmt::format("'{}': lines are step, sgemm, quit", line));
        }
    }
}

}  // namespace

int run_step(Options options) {
    const config::TrainConfig c = load_config(options);
    const int64_t rows = options.number("rows", 8), length = options.number("length", 1024);
    const std::string file = options.text("tokens", "");
    options.done(0);
    if (rows < 1 || length < 2) throw Error("--rows is at least 1, --length at least 2");
    Machine machine(static_cast<int>(c.num_threads > 0 ? c.num_threads : train::available_cpus()));
    const auto world = make_communicator("self");
    models::Model model(
        config::ModelConfig::load(c.config_name_or_path, {fs::path(MOEBIUS_SOURCE_DIR) / "configs"},
                                  c.config_kwargs),
        train::model_options(c));
    nn::Run run{.exec = machine.exec, .dtype = train::dtype_from(c.dtype), .world = world.get()};
    model.place(train::place_options(c), run.exec);
    model.parameters().fill(static_cast<uint64_t>(c.seed), run.exec);
    const data::BatchShape shape{
        .rows = rows, .capacity = rows * length, .max_seqlen = length, .max_pieces = rows};
    train::Step step(model, train::step_options(c, shape), run);
    const Tokens batch(rows, length, file);
    ReferenceProduct product(machine.exec);
    const train::StepPlan plan = step.plan();
    print({{"machine", machine_json(machine)},
           {"mode", c.expert_ffn_mode},
           {"dtype", c.dtype},
           {"flops", plan.cost.flops},
           {"model_flops", model.flops_per_token(length) * static_cast<double>(rows * length)},
           {"step_bytes", plan.bytes},
           {"sgemm_flops", ReferenceProduct::kFlops},
           {"parameters", model.parameters().numel()}});
    serve(step, batch, c.adamw_kwargs.lr, product);
    return 0;
}

}  // namespace moebius::bench
