// Three AdamW steps with clipping against Hugging Face and torch: constant rate, every parameter decays.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "moebius/checkpoint/safetensors.h"
#include "moebius/comm/registry.h"
#include "moebius/train/step.h"
#include "tests/test_machine.h"

namespace moebius::train {
namespace {

namespace fs = std::filesystem;

struct Batch {
    std::vector<int32_t> tokens, targets, positions, borders;
    std::vector<uint8_t> valid;
    data::StepBatch step;
};

std::vector<int32_t> integers(const checkpoint::SafetensorsReader& file, const std::string& name) {
    const auto& info = file.at(name);
    std::vector<int32_t> values(static_cast<size_t>(info.shape.numel()));
    file.read(info, 0, info.shape.numel(), View(values.data(), DType::I32, {info.shape.numel()}));
    return values;
}

void fill(Batch& b, const checkpoint::SafetensorsReader& file) {
    const Shape shape = file.at("input_ids").shape;
    const int64_t rows = shape[0], length = shape[1];
    b.tokens = integers(file, "input_ids");
    const std::vector<int32_t> labels = integers(file, "labels");
    data::MicroBatch micro;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < length; ++i) {
            const bool last = i + 1 == length;
            b.targets.push_back(last ? data::kIgnore : labels[static_cast<size_t>(r * length + i + 1)]);
            b.positions.push_back(static_cast<int32_t>(i));
            b.valid.push_back(1);
            if (b.targets.back() != data::kIgnore) ++micro.labels;
        }
        b.borders.push_back(static_cast<int32_t>(r * length));
    }
    b.borders.push_back(static_cast<int32_t>(rows * length));
    micro.tokens = b.tokens;
    micro.targets = b.targets;
    micro.positions = b.positions;
    micro.valid = b.valid;
    micro.cu_seqlens = micro.cu_seqlens_capacity = b.borders;
    micro.max_seqlen = static_cast<int32_t>(length);
    b.step.labels = micro.labels;
    b.step.tokens = b.step.real_tokens = rows * length;
    b.step.micro = {micro};
}

class GoldenSteps : public testing::TestWithParam<std::string> {};

TEST_P(GoldenSteps, ThreeUpdates) {
    const fs::path folder = fs::path(MOEBIUS_SOURCE_DIR) / "tests/golden" / GetParam();
    const checkpoint::SafetensorsReader expected(checkpoint::real_file_system(),
                                                 folder / "expected.safetensors");
    TestMachine machine;
    const auto world = make_communicator("self");
    nn::Run run{.exec = machine.exec, .world = world.get()};
    models::Model model(config::ModelConfig::load(folder.string(), {}), {});
    model.place({}, run.exec);
    model.load(folder, run.exec);

    Batch batch;
    fill(batch, expected);
    const Shape ids = expected.at("input_ids").shape;
    StepOptions options{.shape = {.rows = ids[0], .capacity = ids.numel(), .max_seqlen = ids[1]},
                        .decay_all = true,
                        .cuda_graph = machine.on_gpu()};
    Step step(model, options, run, &machine.host);
    int64_t allocations = 0;
    for (int64_t update = 1; update <= 4; ++update) {
        const StepResult result = step.run(batch.step, update, 1e-2);
        EXPECT_FALSE(result.bad);
        if (update == 2) allocations = machine.pool->report().system_allocations;
        if (update > 2) {
            EXPECT_EQ(machine.pool->report().system_allocations, allocations) << "a steady step allocates";
        }
        float want = 0;
        const std::string name = update == 1 ? "loss" : "loss_after." + std::to_string(update - 1);
        expected.read(expected.at(name), 0, 1, View(&want, DType::F32, {1}));
        EXPECT_NEAR(result.loss + result.aux_loss, static_cast<double>(want),
                    1e-4 * static_cast<double>(want))
            << name;
        if (update < 4) {
            // Compared after the third update, before the fourth.
            if (update != 3) continue;
            const std::vector<checkpoint::NameLayout> layouts = model.layouts();
            for (const checkpoint::ExportPiece& piece : layouts.back().pieces) {
                std::string theirs = "param_after." + piece.external_name;
                ASSERT_NE(expected.find(theirs), nullptr) << theirs;
                std::vector<float> reference(static_cast<size_t>(piece.count));
                expected.read(expected.at(theirs), 0, piece.count,
                              View(reference.data(), DType::F32, {piece.count}));
                const Parameter* p = model.parameters().find(piece.internal_name);
                std::vector<float> ours(static_cast<size_t>(piece.count));
                const View flat = p->value.reshaped({p->value.numel()});
                copy_to_host(ours.data(), flat.rows(piece.internal_begin, piece.count), machine.exec);
                double difference = 0, norm = 0;
                for (int64_t i = 0; i < piece.count; ++i) {
                    const double r = static_cast<double>(reference[static_cast<size_t>(i)]);
                    const double own = static_cast<double>(ours[static_cast<size_t>(i)]);
                    difference += (own - r) * (own - r);
                    norm += r * r;
                }
                ASSERT_GT(norm, 0) << piece.external_name;
                EXPECT_LE(std::sqrt(difference / norm), 1e-4) << piece.external_name;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, GoldenSteps, testing::Values("tiny", "aux"));

}  // namespace
}  // namespace moebius::train
