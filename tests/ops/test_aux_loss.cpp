// What the list of cases cannot say of the auxiliary losses: all-zero results and values known by heart.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "moebius/ops/aux_loss/aux_loss.h"

namespace moebius::ops {
namespace {

class AuxLoss : public testing::TestWithParam<AuxLossDefinition> {
  protected:
    static constexpr int64_t kLayers = 2, kExperts = 4, kTopk = 2;

    View view(std::vector<float>& values) {
        return View(values.data(), DType::F32, {static_cast<int64_t>(values.size())});
    }
    View matrix(std::vector<float>& values) { return View(values.data(), DType::F32, {kLayers, kExperts}); }
    void run(float coeff, float z_coeff) {
        aux_loss({.definition = GetParam(),
                  .coeff = coeff,
                  .z_coeff = z_coeff,
                  .topk = kTopk,
                  .counts = matrix(counts_),
                  .prob_sums = matrix(prob_sums_),
                  .z_sums = view(z_sums_),
                  .tokens = view(tokens_),
                  .scale = view(scale_),
                  .aux_loss = view(aux_),
                  .z_loss = view(z_),
                  .layer_aux_loss = view(layer_),
                  .dprobs = matrix(dprobs_),
                  .dz = view(dz_)},
                 {.device = &device_, .pool = &pool_, .threads = &threads_});
    }

    Device device_ = Device::cpu_from_environment();
    HostArena pool_;
    ThreadPool threads_{1};
    const float poison_ = std::nanf("");
    std::vector<float> counts_ = std::vector<float>(8), prob_sums_ = std::vector<float>(8),
                       z_sums_ = std::vector<float>(2), tokens_ = std::vector<float>(2), scale_ = {10};
    std::vector<float> aux_ = {poison_}, z_ = {poison_}, layer_ = std::vector<float>(2, poison_),
                       dprobs_ = std::vector<float>(8, poison_), dz_ = std::vector<float>(2, poison_);
};

TEST_P(AuxLoss, WithoutTokensIsZeroNotNan) {
    run(0.01f, 0.001f);
    EXPECT_EQ(aux_[0], 0);
    EXPECT_EQ(z_[0], 0);
    for (const auto* out : {&layer_, &dprobs_, &dz_}) {
        for (const float value : *out) EXPECT_EQ(value, 0);
    }
}

TEST_P(AuxLoss, BalancedRoutingGivesTheDefinitionsValue) {
    constexpr float kTokens = 16;
    tokens_ = {kTokens, kTokens};
    counts_.assign(8, kTokens * kTopk / kExperts);
    prob_sums_.assign(8, kTokens / kExperts);
    z_sums_ = {kTokens * 3, kTokens * 5};
    run(0.5f, 0.25f);
    const bool switched = GetParam() == AuxLossDefinition::Switch;
    const float balanced = switched ? 1 : kTopk;
    EXPECT_FLOAT_EQ(layer_[0], balanced);
    EXPECT_FLOAT_EQ(layer_[1], balanced);
    EXPECT_FLOAT_EQ(aux_[0], 0.5f * (switched ? kLayers : kTopk));
    EXPECT_FLOAT_EQ(z_[0], 0.25f * (3 + 5));
    EXPECT_FLOAT_EQ(dz_[0], 10 * 0.25f / kTokens);
    // E · f / tokens: f = 1/E by Switch, k/E over both layers' tokens by Hugging Face.
    EXPECT_FLOAT_EQ(dprobs_[5], 10 * 0.5f * (switched ? 1 / kTokens : kTopk / (2 * kTokens)));
}

TEST_P(AuxLoss, GradientsAreOptional) {
    tokens_ = {2, 2};
    counts_.assign(8, 1);
    prob_sums_.assign(8, 0.5f);
    aux_loss({.definition = GetParam(),
              .coeff = 1,
              .z_coeff = 1,
              .topk = kTopk,
              .counts = matrix(counts_),
              .prob_sums = matrix(prob_sums_),
              .z_sums = view(z_sums_),
              .tokens = view(tokens_),
              .aux_loss = view(aux_),
              .z_loss = view(z_)},
             {.device = &device_, .pool = &pool_, .threads = &threads_});
    EXPECT_FLOAT_EQ(aux_[0], 2);
    EXPECT_EQ(z_[0], 0);
}

TEST_P(AuxLoss, StaysNotFiniteWhereTheStatisticsAre) {
    tokens_ = {2, 2};
    counts_.assign(8, 1);
    prob_sums_[3] = poison_;
    z_sums_[1] = poison_;
    run(1, 1);
    EXPECT_TRUE(std::isnan(aux_[0]));
    EXPECT_TRUE(std::isnan(z_[0]));
}

INSTANTIATE_TEST_SUITE_P(Both, AuxLoss,
                         testing::Values(AuxLossDefinition::HuggingFace, AuxLossDefinition::Switch),
                         [](const auto& info) {
                             return info.param == AuxLossDefinition::Switch ? "Switch" : "HuggingFace";
                         });

}  // namespace
}  // namespace moebius::ops
