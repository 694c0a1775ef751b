// Steps on memory that is full of NaN before anybody writes it: nothing that nobody wrote reaches a result.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "moebius/comm/registry.h"
#include "moebius/precision/recipe.h"
#include "moebius/train/step.h"
#include "tests/test_machine.h"
#include "tests/train/token_batch.h"

namespace moebius::train {
namespace {

// All bits set: NaN as fp32, bf16 and fp64, and no index.
class PoisonedPool : public Pool {
  public:
    explicit PoisonedPool(Pool& pool) : pool_(pool) {}
    void* allocate(const char* name, size_t bytes, Stream stream) override {
        void* const data = pool_.allocate(name, bytes, stream);
        std::memset(data, 0xFF, bytes);
        ++poisoned;
        return data;
    }
    void release(void* data, Stream stream) override { pool_.release(data, stream); }
    int64_t poisoned = 0;

  private:
    Pool& pool_;
};

struct Outcome {
    std::vector<float> losses, norms, weights;
};

Outcome train(nn::ExpertMode mode, DType dtype, bool poison, const char* recipe = nullptr) {
    TestMachine machine;
    PoisonedPool poisoned(*machine.pool);
    const auto world = make_communicator("self");
    nn::Run run{.exec = machine.exec, .dtype = dtype, .world = world.get()};
    if (poison) run.exec.pool = &poisoned;
    Outcome outcome;
    {
        models::ModelOptions options{.expert_mode = mode};
        if (recipe != nullptr) options.low_precision.recipe = precision::make_recipe(recipe, "", {});
        models::Model model(small_config({.topk = 2}), options);
        model.place({.dtype = dtype, .grad_dtype = dtype}, run.exec);
        model.parameters().fill(3, run.exec);
        // The second one has experts without tokens, right after all had some.
        const TokenBatch spread(false, 3, 50), alike(true, 3, 50);
        Step step(model, {.shape = spread.shape()}, run);
        for (int64_t update = 1; update <= 3; ++update) {
            const StepResult result = step.run((update == 2 ? alike : spread).step, update, 1e-2);
            EXPECT_FALSE(result.bad);
            outcome.losses.push_back(static_cast<float>(result.loss));
            outcome.norms.push_back(static_cast<float>(result.grad_norm));
        }
        const View values = model.parameters().values();
        for (int64_t i = 0; i < values.numel(); ++i)
            outcome.weights.push_back(dtype == DType::F32 ? values.as<float>()[i]
                                                          : to_float(values.as<BF16>()[i]));
    }
    EXPECT_TRUE(!poison || poisoned.poisoned > 100);
    return outcome;
}

TEST(UninitialisedMemory, StepsOnMemoryFullOfNanAreTheSame) {
    if (test_device() == "cuda") GTEST_SKIP() << "the pool writes on the host";
    for (const DType dtype : {DType::F32, DType::BF16}) {
        const Outcome loop = train(nn::ExpertMode::Loop, dtype, false);
        for (const nn::ExpertMode mode :
             {nn::ExpertMode::Loop, nn::ExpertMode::GroupedLinear, nn::ExpertMode::FusedGroupedMlp}) {
            SCOPED_TRACE(std::string(name(dtype)) + ", mode " + std::to_string(static_cast<int>(mode)));
            const Outcome clean = train(mode, dtype, false), dirty = train(mode, dtype, true);
            // Bit for bit what it is on other memory, in the first step and in those after it …
            EXPECT_EQ(dirty.losses, clean.losses);
            EXPECT_EQ(dirty.norms, clean.norms);
            EXPECT_EQ(dirty.weights, clean.weights);
            // … and what a plain loop over experts gives.
            ASSERT_EQ(dirty.losses.size(), loop.losses.size());
            for (size_t i = 0; i < loop.losses.size(); ++i) {
                const float tolerance = dtype == DType::F32 ? 1e-5f : 2e-2f;
                EXPECT_TRUE(std::isfinite(dirty.losses[i]) && std::isfinite(dirty.norms[i])) << i;
                EXPECT_NEAR(dirty.losses[i], loop.losses[i], tolerance * loop.losses[i]) << i;
                EXPECT_NEAR(dirty.norms[i], loop.norms[i], tolerance * loop.norms[i]) << i;
            }
        }
    }
}

// Codes and scales too, those of experts without rows among them.
TEST(UninitialisedMemory, StepsUnderARecipeOnMemoryFullOfNanAreTheSame) {
    if (test_device() == "cuda") GTEST_SKIP() << "the pool writes on the host";
    for (const char* recipe :
         {"Float8BlockScaling", "Float8CurrentScaling", "DelayedScaling", "MXFP8BlockScaling"}) {
        for (const nn::ExpertMode mode :
             {nn::ExpertMode::Loop, nn::ExpertMode::GroupedLinear, nn::ExpertMode::FusedGroupedMlp}) {
            SCOPED_TRACE(std::string(recipe) + ", mode " + std::to_string(static_cast<int>(mode)));
            const Outcome clean = train(mode, DType::BF16, false, recipe),
                          dirty = train(mode, DType::BF16, true, recipe);
            EXPECT_EQ(dirty.losses, clean.losses);
            EXPECT_EQ(dirty.norms, clean.norms);
            EXPECT_EQ(dirty.weights, clean.weights);
            for (const float norm : dirty.norms) EXPECT_TRUE(std::isfinite(norm));
        }
    }
}

}  // namespace
}  // namespace moebius::train
