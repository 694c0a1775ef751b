// What the list of cases cannot say of the router: logits that are not finite or far from 0, no tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "moebius/ops/router/router.h"

namespace moebius::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
    std::vector<int32_t> indices;
    std::vector<float> weights, counts, prob_sums, z_sum, tokens, dlogits;
};

// Forward and backward over `tokens` rows of the same size; statistics start at 0.
Result run(std::vector<float> logits, int64_t tokens, const RouterOptions& options, bool statistics = true) {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads(2);
    const Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    const int64_t experts = tokens > 0 ? static_cast<int64_t>(logits.size()) / tokens : options.topk;
    logits.push_back(0);
    const auto slots = static_cast<size_t>(tokens * options.topk + 1);
    Result r{std::vector<int32_t>(slots, -7),
             std::vector<float>(slots, -7),
             std::vector<float>(static_cast<size_t>(experts)),
             std::vector<float>(static_cast<size_t>(experts)),
             {0},
             {0},
             std::vector<float>(logits.size())};
    std::vector<float> ones(slots, 1.0f), dprobs(static_cast<size_t>(experts), 0.5f), dz = {0.1f};
    const auto view = [](std::vector<float>& values, Shape shape) {
        return View(values.data(), DType::F32, shape);
    };
    const Shape table{tokens, options.topk};
    const View x = view(logits, {tokens, experts});
    const View indices(r.indices.data(), DType::I32, table);
    router({.options = options,
            .logits = x,
            .topk_indices = indices,
            .topk_weights = view(r.weights, table),
            .counts = statistics ? view(r.counts, {experts}) : View(),
            .prob_sums = statistics ? view(r.prob_sums, {experts}) : View(),
            .z_sum = statistics ? view(r.z_sum, {1}) : View(),
            .tokens = statistics ? view(r.tokens, {1}) : View()},
           exec);
    router_backward({.options = options,
                     .logits = x,
                     .topk_indices = indices,
                     .topk_weights = view(r.weights, table),
                     .dweights = view(ones, table),
                     .dprobs = view(dprobs, {experts}),
                     .dz = view(dz, {1}),
                     .dlogits = view(r.dlogits, {tokens, experts})},
                    exec);
    r.indices.pop_back();
    r.weights.pop_back();
    r.dlogits.pop_back();
    EXPECT_EQ(pool.report().current_bytes, 0);
    return r;
}

std::vector<RouterOptions> all_options(int64_t topk, int64_t groups = 1, int64_t topk_groups = 1) {
    std::vector<RouterOptions> all;
    for (const auto score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
        for (const bool normalize : {true, false})
            all.push_back({topk, score, groups, topk_groups, normalize});
    }
    return all;
}

TEST(Router, NanLogitsKeepIndicesInRangeAndShowInTheWeights) {
    for (const auto& [topk, groups, chosen] : {std::array<int64_t, 3>{2, 1, 1}, {2, 3, 2}, {6, 1, 1}}) {
        for (const RouterOptions& options : all_options(topk, groups, chosen)) {
            const Result r = run({0.1f,  kNan,  0.3f,  2,     1,     0,      //
                                  kNan,  kNan,  kNan,  kNan,  kNan,  kNan,   //
                                  -kInf, -kInf, -kInf, -kInf, -kInf, -kInf,  //
                                  1,     2,     3,     4,     5,     6},
                                 4, options);
            for (int64_t token = 0; token < 4; ++token) {
                const auto begin = r.indices.begin() + token * topk;
                const std::set<int32_t> distinct(begin, begin + topk);
                EXPECT_EQ(static_cast<int64_t>(distinct.size()), topk);
                for (const int32_t index : distinct) EXPECT_TRUE(index >= 0 && index < 6) << index;
            }
            EXPECT_EQ(r.indices[0], 1) << "NaN comes first, so that the step is seen to be broken";
            EXPECT_TRUE(std::isnan(r.weights[0]));
            for (int64_t s = 0; s < topk; ++s) {
                EXPECT_TRUE(std::isnan(r.weights[static_cast<size_t>(topk + s)]));
                EXPECT_TRUE(std::isfinite(r.weights[static_cast<size_t>(3 * topk + s)]))
                    << "other tokens are not touched";
            }
            EXPECT_FALSE(std::isfinite(r.z_sum[0]));
        }
    }
}

TEST(Router, LogitsFarFromZeroStayFinite) {
    for (const float shift : {-1000.0f, -120.0f, 120.0f, 1000.0f}) {
        for (const RouterOptions& options : all_options(2)) {
            const Result r = run({shift, shift + 2, shift + 1, shift - 200}, 1, options);
            EXPECT_THAT(r.indices, testing::ElementsAre(1, 2)) << shift;
            for (const auto* values : {&r.weights, &r.prob_sums, &r.z_sum, &r.dlogits}) {
                for (const float value : *values) EXPECT_TRUE(std::isfinite(value)) << shift;
            }
            if (!options.normalize) continue;
            // e / (1 + e) far below 0; there σ is e^x. Far above, all of it is 1.
            const bool flat = options.score == RouterScore::Sigmoid && shift > 0;
            EXPECT_NEAR(r.weights[0], flat ? 0.5 : 0.7310586, 1e-6) << shift;
            EXPECT_NEAR(r.weights[0] + r.weights[1], 1, 1e-6) << shift;
        }
    }
}

TEST(Router, LargeLogitsThatRoundToTheSameProbabilityKeepTheirOrder) {
    for (const RouterOptions& options : all_options(3)) {
        const Result r = run({100, 300, 200, 400}, 1, options);
        EXPECT_THAT(r.indices, testing::ElementsAre(3, 1, 2));
    }
}

TEST(Router, ZerosTieWhateverTheirSign) {
    const Result r = run({-1, 0.0f, -0.0f, -1, /**/ -1, -0.0f, 0.0f, -1}, 2, {.topk = 3});
    EXPECT_THAT(r.indices, testing::ElementsAre(1, 2, 0, 1, 2, 0));
}

TEST(Router, NoTokens) {
    for (const RouterOptions& options : all_options(2)) {
        const Result r = run({}, 0, options);
        EXPECT_THAT(r.counts, testing::Each(0));
        EXPECT_THAT(r.prob_sums, testing::Each(0));
        EXPECT_EQ(r.z_sum[0], 0);
        EXPECT_EQ(r.tokens[0], 0);
    }
}

TEST(Router, StatisticsAreOptionalAndChangeNothing) {
    for (const RouterOptions& options : all_options(2)) {
        const std::vector<float> logits = {0.5f, -1, 2, 0.25f, 1, 1, 1, 3};
        const Result with = run(logits, 2, options), without = run(logits, 2, options, false);
        EXPECT_EQ(with.indices, without.indices);
        EXPECT_EQ(with.weights, without.weights);
        EXPECT_EQ(with.tokens[0], 2);
        EXPECT_THAT(with.counts, testing::ElementsAre(2, 0, 1, 1));
        EXPECT_THAT(without.counts, testing::Each(0));
    }
}

TEST(RouterDeathTest, OptionsThatCannotBeAbort) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const std::vector<float> logits(6, 1.0f);
    EXPECT_DEATH(run(logits, 1, {.topk = 7}), "topk = 7 of 6 experts");
    EXPECT_DEATH(run(logits, 1, {.topk = 0}), "topk = 0");
    EXPECT_DEATH(run(logits, 1, {.topk = 2, .num_groups = 4}), "6 experts in 4 groups");
    EXPECT_DEATH(run(logits, 1, {.topk = 3, .num_groups = 3, .topk_groups = 1}),
                 "topk = 3 of 1 groups of 2 experts");
}

}  // namespace
}  // namespace moebius::ops
