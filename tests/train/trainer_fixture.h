// Whole runs on a small FASTA, for the tests of train/.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "moebius/base/philox.h"
#include "moebius/train/trainer.h"
#include "tests/test_machine.h"

namespace moebius::train {

namespace fs = std::filesystem;

class QuietSink : public Sink {
  public:
    void note(const std::string& line) override { notes.push_back(line); }
    void progress(const Progress& p) override { steps.push_back(p); }
    void validation(const ValidationReport& v) override { validations.push_back(v); }
    void saved(const std::string& path, int64_t step) override {
        EXPECT_TRUE(fs::exists(fs::path(path) / "trainer.json")) << path << " is told before it is whole";
        saves.push_back(step);
    }
    std::vector<std::string> notes;
    std::vector<Progress> steps;
    std::vector<ValidationReport> validations;
    std::vector<int64_t> saves;
};

inline std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

class Trainer : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::temp_directory_path() / ("moebius_trainer_" + std::to_string(getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        const Philox random(3, "genome");
        std::ofstream out(folder_ / "genome.fa");
        for (int record = 0; record < 3; ++record) {
            out << ">chr" << record << "\n";
            for (int i = 0; i < 900; ++i) {
                out << "ACGT"[random.below(static_cast<uint64_t>(record * 1000 + i), 4)];
                if (i % 70 == 69) out << "\n";
            }
            out << "\n";
        }
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::vector<std::string> overrides(const std::string& run, std::vector<std::string> more = {}) const {
        std::vector<std::string> all = {"config_name_or_path=l0_sanity",
                                        "checkpoint.ckpt_dir=null",
                                        "dataset.path=" + (folder_ / "genome.fa").string(),
                                        "config_kwargs.hidden_size=32",
                                        "config_kwargs.intermediate_size=48",
                                        "config_kwargs.num_attention_heads=2",
                                        "config_kwargs.num_key_value_heads=1",
                                        "dataset.max_seq_length=64",
                                        "dataset.stride=10",
                                        "dataset.micro_batch_size=2",
                                        "dataset.num_workers=0",
                                        "dataset.buffer_size=16",
                                        "num_train_steps=6",
                                        "grad_acc_steps=2",
                                        "num_threads=2",
                                        "device=" + test_device(),
                                        "lr_scheduler_kwargs.num_warmup_steps=2",
                                        "lr_scheduler_kwargs.num_decay_steps=10",
                                        "logger.frequency=2",
                                        "checkpoint.save_every_n_steps=3",
                                        "logger.run_dir=" + (folder_ / run).string()};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    TrainResult run(const std::vector<std::string>& overrides, const std::atomic<bool>* stop = nullptr,
                    std::optional<int64_t> results_behind = {}) {
        const fs::path configs = fs::path(MOEBIUS_SOURCE_DIR) / "configs";
        sink_ = QuietSink();
        TrainOptions options{.loaded = config::load({.search_dirs = {configs}, .overrides = overrides}),
                             .config_dirs = {configs},
                             .command_line = {"test"},
                             .stop = stop,
                             .sink = &sink_,
                             .results_behind = results_behind};
        return train(options);
    }
    // Every byte of a checkpoint's tensors.
    std::string tensors(const std::string& run, int step) const {
        const fs::path dir = folder_ / run / "checkpoints" / ("step_00000" + std::to_string(step));
        std::vector<fs::path> files;
        for (const auto& entry : fs::recursive_directory_iterator(dir)) {
            if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
        }
        std::sort(files.begin(), files.end());
        std::string all;
        for (const fs::path& file : files) all += file.filename().string() + read(file);
        return all;
    }
    std::vector<nlohmann::json> metrics(const std::string& run) const {
        std::ifstream in(folder_ / run / "metrics.jsonl");
        std::vector<nlohmann::json> lines;
        for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
        return lines;
    }

    fs::path folder_;
    QuietSink sink_;
};

inline std::vector<std::string> with(std::vector<std::string> keys, const std::vector<std::string>& more) {
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
}

}  // namespace moebius::train
