// Every token to one expert: a batch of one and the same token, of which all copies route alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "moebius/comm/registry.h"
#include "moebius/precision/recipe.h"
#include "moebius/train/step.h"
#include "tests/test_machine.h"
#include "tests/train/token_batch.h"

namespace moebius::train {
namespace {

constexpr int64_t kRows = 4, kLength = 64, kTokens = kRows * kLength;
constexpr nn::ExpertMode kModes[] = {nn::ExpertMode::GroupedLinear, nn::ExpertMode::FusedGroupedMlp};

TEST(AllTokensToOneExpert, TakesNoMoreMemoryThanSpreadOnes) {
    for (const nn::ExpertMode mode : kModes) {
        TestMachine machine;
        const auto world = make_communicator("self");
        nn::Run run{.exec = machine.exec, .world = world.get()};
        models::Model model(small_config(), {.expert_mode = mode});
        model.place({}, run.exec);
        model.parameters().fill(3, run.exec);
        Step step(model, {.shape = TokenBatch(true, kRows, kLength).shape(), .cuda_graph = machine.on_gpu()},
                  run, &machine.host);
        int64_t peak = 0;
        // Spread tokens first: the memory that they took must do for the worst case.
        for (int64_t update = 1; update <= 4; ++update) {
            const TokenBatch batch(update > 2, kRows, kLength);
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

// What a step is said to need at most is not exceeded, whatever the routing: the plan, and beside it the
// scratch of operations.
TEST(AllTokensToOneExpert, StaysWithinTheStatedBound) {
    struct Sizes {
        const char* name;
        SmallSizes model;
        int64_t rows, length;
        bool bf16;
        int threads;
        const char* recipe = nullptr;
    };
    const Sizes all[] = {
        {"tiny", {}, 4, 64, false, 2},
        {"l0_sanity", {.hidden = 256, .intermediate = 512, .topk = 2}, 2, 1024, false, 2},
        {"many_threads", {.hidden = 256, .intermediate = 512, .topk = 2}, 2, 1024, true, 16},
        {"wide", {.hidden = 512, .intermediate = 2048, .heads = 8, .kv_heads = 8}, 1, 512, true, 2},
        {"many_experts", {.hidden = 128, .intermediate = 64, .experts = 64, .topk = 8}, 2, 512, true, 3},
        {"one_long_sequence", {.hidden = 128, .heads = 8, .kv_heads = 1, .experts = 2}, 1, 4096, false, 2},
        {"large_vocabulary", {.vocab = 20000}, 2, 256, false, 2},
        {"block", {.hidden = 256, .intermediate = 512, .topk = 2}, 1, 1024, true, 2, "Float8BlockScaling"},
        {"current", {.hidden = 256, .intermediate = 128}, 1, 512, false, 3, "Float8CurrentScaling"},
        {"delayed", {.hidden = 128, .intermediate = 256, .topk = 2}, 1, 512, true, 3, "DelayedScaling"},
        {"mx",
         {.hidden = 128, .intermediate = 64, .experts = 8, .topk = 8},
         1,
         512,
         true,
         2,
         "MXFP8BlockScaling"},
    };
    for (const Sizes& s : all) {
        // With gaps between blocks, and tens of times slower, it says no more in the larger ones.
        if (kInstrumented && &s != all) break;
        for (const nn::ExpertMode mode : kModes) {
            SCOPED_TRACE(std::string(s.name) + ", mode " + std::to_string(static_cast<int>(mode)));
            TestMachine machine;
            if (machine.on_gpu()) GTEST_SKIP() << "a GPU's scratch is not in the plan";
            ThreadPool threads(s.threads);
            const auto world = make_communicator("self");
            const DType dtype = s.bf16 ? DType::BF16 : DType::F32;
            nn::Run run{.exec = machine.exec, .dtype = dtype, .world = world.get()};
            run.exec.threads = &threads;
            models::ModelOptions options{.expert_mode = mode};
            if (s.recipe) options.low_precision.recipe = precision::make_recipe(s.recipe, "", {});
            models::Model model(small_config(s.model), options);
            model.place({.dtype = dtype, .grad_dtype = dtype}, run.exec);
            model.parameters().fill(3, run.exec);
            const PoolReport before = machine.pool->report();
            const TokenBatch spread(false, s.rows, s.length), alike(true, s.rows, s.length);
            Step step(model, {.shape = spread.shape()}, run);
            const StepPlan plan = step.plan();
            for (int64_t update = 1; update <= 2; ++update) {
                const StepResult result = step.run((update == 1 ? spread : alike).step, update, 1e-3);
                ASSERT_FALSE(result.bad);
            }
            const PoolReport after = machine.pool->report();
            EXPECT_LE(after.peak_bytes - before.current_bytes, plan.bytes + plan.scratch_bytes);
            EXPECT_LE(after.system_bytes - before.system_bytes,
                      plan.memory.system_bytes + plan.scratch_bytes);
            // A bound that says nothing would hold as well.
            EXPECT_GT(after.peak_bytes - before.current_bytes, plan.bytes);
            EXPECT_LT(plan.scratch_bytes, int64_t{200} << 20);
        }
    }
}

// Experts that no token reaches have gradients, of zero, though they had others a step before; and weight
// decay applies to them as to all.
TEST(AllTokensToOneExpert, TheOthersHaveZeroGradientsAndDecay) {
    constexpr float kRate = 0.125f, kDecay = 0.25f;
    for (const nn::ExpertMode mode : {nn::ExpertMode::Loop, kModes[0], kModes[1]}) {
        TestMachine machine;
        if (machine.on_gpu()) GTEST_SKIP() << "reads parameters on the host";
        const auto world = make_communicator("self");
        const nn::Run run{.exec = machine.exec, .world = world.get()};
        models::Model model(small_config(), {.expert_mode = mode});
        model.place({}, run.exec);
        model.parameters().fill(3, run.exec);
        const TokenBatch spread(false, kRows, kLength), alike(true, kRows, kLength);
        Step step(model, {.shape = spread.shape(), .adamw = {.weight_decay = kDecay}, .clip_grad_norm = 0},
                  run);
        // The rate of the first update is 0: it leaves gradients and moments, and the weights as they are.
        const StepResult first = step.run(spread.step, 1, 0.0);
        ASSERT_TRUE(std::all_of(first.expert_counts.begin(), first.expert_counts.end(),
                                [](float count) { return count > 0; }));
        const Parameter* p = model.parameters().find("layers.0.moe.gate_up");
        ASSERT_NE(p, nullptr);
        const int64_t each = p->value.numel() / 4;
        const auto values = [&](const View& view) {
            return std::vector<float>(view.as<float>(), view.as<float>() + 4 * each);
        };
        const std::vector<float> gradients = values(p->main_grad);
        // Moments of the first update would move the weights too: a rate that leaves the decay alone is not
        // to be had, so the first moments are taken away.
        fill_zero(model.parameters().first_moments(), run.exec);
        const std::vector<float> weights = values(p->value);
        const StepResult second = step.run(alike.step, 2, static_cast<double>(kRate));
        const std::vector<float> again = values(p->main_grad), decayed = values(p->value);
        int empty = 0;
        for (int64_t e = 0; e < 4; ++e) {
            const bool none = second.expert_counts[static_cast<size_t>(e)] == 0;
            empty += none;
            double before = 0, after = 0;
            for (int64_t i = e * each; i < (e + 1) * each; ++i) {
                const auto at = static_cast<size_t>(i);
                before += std::abs(static_cast<double>(gradients[at]));
                after += std::abs(static_cast<double>(again[at]));
                if (!none) continue;
                ASSERT_NEAR(decayed[at], weights[at] * (1 - kRate * kDecay), 2e-7f * std::abs(weights[at]))
                    << i;
            }
            EXPECT_GT(before, 0);
            EXPECT_EQ(after == 0, none) << "expert " << e << ", mode " << static_cast<int>(mode);
        }
        EXPECT_EQ(empty, 3);
    }
}

}  // namespace
}  // namespace moebius::train
