// A program that trains: its own data, its own configuration, its own idea of what to show.
#include <moebius/config/load.h>
#include <moebius/train/trainer.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

using namespace moebius;

namespace {

struct Quiet : train::Sink {
    int steps = 0, saves = 0;
    void note(const std::string&) override {}
    void progress(const train::Progress& p) override {
        ++steps;
        std::printf("train_two_steps: step %d, loss %.3f\n", static_cast<int>(p.step), p.loss);
    }
    void validation(const train::ValidationReport&) override {}
    void saved(const std::string&, int64_t) override { ++saves; }
};

// Records of a repeated motif, so that there is something to learn.
std::string write_fasta(const std::filesystem::path& path) {
    std::ofstream out(path);
    for (int record = 0; record < 4; ++record) {
        out << ">record" << record << "\n";
        for (int line = 0; line < 20; ++line) out << "ACGTTGCAACGGTACCGTTAACGTTGCAACGGTACCGTTA\n";
    }
    return path.string();
}

}  // namespace

int main() try {
    const std::filesystem::path folder = std::filesystem::current_path() / "train_two_steps_files";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);

    config::LoadOptions options;
    options.config_name = "L0_sanity";
    options.search_dirs = {MOEBIUS_CONFIGS};
    options.overrides = {"dataset.path=" + write_fasta(folder / "small.fa"),
                         "dataset.max_seq_length=64",
                         "dataset.stride=8",
                         "dataset.micro_batch_size=2",
                         "num_train_steps=2",
                         "logger.frequency=1",
                         "lr_scheduler_kwargs.num_warmup_steps=0",
                         "validation.enabled=false",
                         "validation.fraction=null",
                         "num_threads=2",
                         "logger.run_dir=" + (folder / "run").string()};
    Quiet sink;
    const train::TrainResult result = train::train({.loaded = config::load(options),
                                                    .config_dirs = options.search_dirs,
                                                    .command_line = {},
                                                    .sink = &sink});
    const bool good = result.complete && result.last_step == 2 && sink.steps == 2 && sink.saves >= 1 &&
                      result.final_loss > 0 && result.final_loss < 7 &&
                      std::filesystem::exists(result.checkpoint);
    if (!good) std::fprintf(stderr, "train_two_steps: not what two steps should give\n");
    std::filesystem::remove_all(folder);
    return good ? 0 : 1;
} catch (const std::exception& error) {
    std::fprintf(stderr, "train_two_steps: %s\n", error.what());
    return 1;
}
