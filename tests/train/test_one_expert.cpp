// Every token to one expert: a batch of one and the same token, of which all copies route alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "moebius/comm/registry.h"
#include "moebius/train/step.h"
#include "tests/test_machine.h"

namespace moebius::train {
namespace {

constexpr int64_t kRows = 4, kLength = 64, kTokens = kRows * kLength;

struct Batch {
    std::vector<int32_t> tokens = std::vector<int32_t>(kTokens, 7), targets, positions, borders;
    std::vector<uint8_t> valid = std::vector<uint8_t>(kTokens, 1);
    data::StepBatch step;

    // The same token everywhere, or all different ones.
    explicit Batch(bool alike) {
        for (int64_t i = 0; i < kTokens; ++i) {
            if (!alike) tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i % 251);
            targets.push_back(i % kLength + 1 == kLength ? data::kIgnore : static_cast<int32_t>(i % 4));
            positions.push_back(static_cast<int32_t>(i % kLength));
        }
        for (int64_t row = 0; row <= kRows; ++row) borders.push_back(static_cast<int32_t>(row * kLength));
        data::MicroBatch micro;
        micro.tokens = tokens;
        micro.targets = targets;
        micro.positions = positions;
        micro.valid = valid;
        micro.cu_seqlens = micro.cu_seqlens_capacity = borders;
        micro.max_seqlen = kLength;
        micro.labels = kRows * (kLength - 1);
        step.labels = micro.labels;
        step.tokens = step.real_tokens = kTokens;
        step.micro = {micro};
    }
};

TEST(AllTokensToOneExpert, TakesNoMoreMemoryThanSpreadOnes) {
    const auto config = config::ModelConfig::parse(
        R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 1,
            "vocab_size": 256})",
        "config.json");
    for (const nn::ExpertMode mode : {nn::ExpertMode::GroupedLinear, nn::ExpertMode::FusedGroupedMlp}) {
        TestMachine machine;
        const auto world = make_communicator("self");
        nn::Run run{.exec = machine.exec, .world = world.get()};
        models::Model model(config, {.expert_mode = mode});
        model.place({}, run.exec);
        model.parameters().fill(3, run.exec);
        Step step(model,
                  {.shape = {.rows = kRows, .capacity = kTokens, .max_seqlen = kLength},
                   .cuda_graph = machine.on_gpu()},
                  run, &machine.host);
        int64_t peak = 0;
        // Spread tokens first: the memory that they took must do for the worst case.
        for (int64_t update = 1; update <= 4; ++update) {
            const Batch batch(update > 2);
            const StepResult result = step.run(batch.step, update, 1e-3);
            ASSERT_FALSE(result.bad);
            EXPECT_TRUE(std::isfinite(result.loss) && result.loss > 0);
            ASSERT_EQ(result.expert_counts.size(), 8u);
            for (size_t layer = 0; layer < 2; ++layer) {
                const auto begin = result.expert_counts.begin() + static_cast<int64_t>(4 * layer);
                const float most = *std::max_element(begin, begin + 4);
                if (update > 2) {
                    EXPECT_EQ(most, static_cast<float>(kTokens)) << "not all went to one expert";
                } else {
                    EXPECT_LT(most, static_cast<float>(kTokens));
                }
            }
            const int64_t now = machine.pool->report().peak_bytes;
            if (update == 2) peak = now;
            if (update > 2) {
                EXPECT_EQ(now, peak) << "the worst case took more than spread tokens";
            }
        }
    }
}

}  // namespace
}  // namespace moebius::train
