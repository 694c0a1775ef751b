#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/nn/fixture.h"

namespace moebius::nn {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double norm(const std::vector<float>& v) {
    double total = 0;
    for (const float x : v) total += static_cast<double>(x) * static_cast<double>(x);
    return std::sqrt(total);
}

SmallModel::Outcome outcome(const DecoderOptions& o, DType dtype, int threads = 2) {
    SmallModel model(o, dtype);
    ThreadPool pool(threads);
    model.run.exec.threads = &pool;
    model.set_batch({19, 1, 30}, 3);
    return model.step();
}

TEST(Decoder, ExpertModesAgree) {
    DecoderOptions o = SmallModel::options();
    for (const DType dtype : {DType::F32, DType::BF16}) {
        o.layer.moe.mode = ExpertMode::GroupedLinear;
        const auto grouped = outcome(o, dtype);
        ASSERT_GT(norm(grouped.gradients), 0.1);
        o.layer.moe.mode = ExpertMode::FusedGroupedMlp;
        const auto fused = outcome(o, dtype);
        EXPECT_TRUE(same_bits(fused.gradients, grouped.gradients))
            << "fused and unfused differ in " << name(dtype);
        EXPECT_EQ(fused.loss, grouped.loss);
        o.layer.moe.mode = ExpertMode::Loop;
        const auto loop = outcome(o, dtype);
        std::vector<float> difference = loop.gradients;
        for (size_t i = 0; i < difference.size(); ++i) difference[i] -= grouped.gradients[i];
        EXPECT_LE(norm(difference), (dtype == DType::F32 ? 1e-5 : 2e-2) * norm(grouped.gradients));
    }
}

// A micro-batch's gradients are summed in fp32 and rounded once, also over several blocks of the head's
// tokens; the next one adds to them before its own rounding.
TEST(Decoder, GradientsInBf16AreThoseInFp32RoundedOnce) {
    for (const ExpertMode mode : {ExpertMode::GroupedLinear, ExpertMode::FusedGroupedMlp, ExpertMode::Loop}) {
        DecoderOptions o = SmallModel::options();
        o.layer.moe.mode = mode;
        SmallModel wide(o, DType::BF16), narrow(o, DType::BF16, DType::BF16);
        std::vector<float> first[2], second[2];
        for (SmallModel* model : {&wide, &narrow}) {
            const int i = model == &narrow;
            model->set_batch({700, 1, 1500}, 3);
            first[i] = model->step().gradients;
            model->set_batch({40, 9}, 4);
            second[i] = model->step(false).gradients;
        }
        ASSERT_GT(norm(first[0]), 0.1);
        int64_t moved = 0;
        for (size_t i = 0; i < first[0].size(); ++i) {
            ASSERT_EQ(first[1][i], to_float(to_bf16(first[0][i])))
                << i << ", mode " << static_cast<int>(mode);
            const float added = second[0][i] - first[0][i], wanted = first[1][i] + added;
            ASSERT_NEAR(second[1][i], wanted, 0x1.02p-8 * std::abs(wanted) + 1e-5 * std::abs(first[0][i]))
                << i;
            moved += second[1][i] != first[1][i];
        }
        EXPECT_GT(moved, static_cast<int64_t>(first[0].size()) / 4);
    }
}

TEST(Decoder, RecomputationGivesTheSameBitsAndKeepsLess) {
    DecoderOptions o = SmallModel::options();
    o.aux = {.coeff = 0.1f, .z_coeff = 0.01f};
    o.layer.moe.input_jitter = 0.1f;
    const auto kept = outcome(o, DType::BF16);
    for (const Recompute recompute : {Recompute::Moe, Recompute::Attention, Recompute::Full}) {
        o.layer.recompute = recompute;
        const auto again = outcome(o, DType::BF16);
        EXPECT_TRUE(same_bits(again.gradients, kept.gradients)) << static_cast<int>(recompute);
        EXPECT_EQ(again.aux, kept.aux) << "statistics were counted twice";
    }
}

DecoderContext forward_alone(SmallModel& model, const Tensor& loss) {
    const int64_t tokens = model.run.batch.tokens.numel();
    model.parameters.begin_step();
    model.decoder->reset_statistics(model.run);
    return model.decoder->forward(
        {.loss = {.token_loss = loss.view().rows(0, tokens), .loss_sum = loss.view().rows(tokens, 1)}},
        model.run);
}

// What context.bytes() says is kept, and the gradients.
std::pair<int64_t, SmallModel::Outcome> kept_and_outcome(const DecoderOptions& o, DType dtype) {
    SmallModel model(o, dtype);
    model.set_batch({19, 1, 30}, 3);
    const auto out = model.step();
    const Tensor loss = Tensor::zeros("loss", {50 + 1}, DType::F32, model.run.exec);
    return {forward_alone(model, loss).bytes(), out};
}

TEST(Decoder, WhatIsMadeAgainHasTheSameBitsAndIsNotKept) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const ExpertMode mode :
             {ExpertMode::GroupedLinear, ExpertMode::FusedGroupedMlp, ExpertMode::Loop}) {
            for (const Recompute recompute : {Recompute::None, Recompute::Moe, Recompute::Attention}) {
                SCOPED_TRACE(testing::Message() << name(dtype) << ", mode " << static_cast<int>(mode)
                                                << ", recompute " << static_cast<int>(recompute));
                DecoderOptions o = SmallModel::options();
                o.layer.moe.mode = mode;
                o.layer.recompute = recompute;
                o.layer.remake = false;
                const auto [kept_bytes, kept] = kept_and_outcome(o, dtype);
                o.layer.remake = true;
                const auto [fewer_bytes, again] = kept_and_outcome(o, dtype);
                EXPECT_TRUE(same_bits(again.gradients, kept.gradients));
                EXPECT_EQ(again.loss, kept.loss);
                // The output of each norm that its module kept, 50 tokens of 32; the two copies of each
                // token for the experts; an activation of 24 for each copy.
                const int64_t norm = 50 * 32;
                int64_t numbers = 2 * norm;
                if (recompute == Recompute::None && mode != ExpertMode::Loop) numbers += 2 * norm;
                if (recompute == Recompute::Attention && mode != ExpertMode::Loop) numbers += 2 * norm;
                if (recompute != Recompute::Moe && mode == ExpertMode::GroupedLinear) numbers += 100 * 24;
                EXPECT_EQ(kept_bytes - fewer_bytes, 2 * bytes_of(dtype, numbers));
            }
        }
    }
}

// A jittered input is not what the norm gives.
TEST(Decoder, AJitteredInputIsKept) {
    DecoderOptions o = SmallModel::options();
    o.layer.moe.input_jitter = 0.1f;
    o.layer.remake = false;
    const auto kept = outcome(o, DType::BF16);
    o.layer.remake = true;
    EXPECT_TRUE(same_bits(outcome(o, DType::BF16).gradients, kept.gradients));
}

TEST(Decoder, LendingGradientsChangesNoBitAndTakesLess) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const ExpertMode mode : {ExpertMode::GroupedLinear, ExpertMode::FusedGroupedMlp}) {
            for (const Recompute recompute : {Recompute::None, Recompute::Full}) {
                DecoderOptions o = SmallModel::options();
                o.layers = 4;
                o.layer.moe.mode = mode;
                o.layer.recompute = recompute;
                SmallModel own(o, dtype, dtype), lent(o, dtype, dtype);
                lent.run.pass.lend_gradients = true;
                int64_t held[2], in_gradients[2];
                for (SmallModel* model : {&own, &lent}) {
                    const int i = model == &lent;
                    model->set_batch({10, 3, 6}, 3);
                    const Tensor loss = Tensor::zeros("loss", {19 + 1}, DType::F32, model->run.exec);
                    const int64_t before = model->pool.report().current_bytes;
                    const DecoderContext context = forward_alone(*model, loss);
                    held[i] = model->pool.report().current_bytes - before;
                    in_gradients[i] = context.lent_bytes();
                }
                // Of three of four layers, the pre-activation of 38 rows at least; or each layer's input.
                const int64_t numbers = recompute == Recompute::None ? 3 * 38 * 48 : 3 * 19 * 32;
                EXPECT_GE(held[0] - held[1], bytes_of(dtype, numbers));
                EXPECT_EQ(in_gradients[0], 0);
                EXPECT_GE(in_gradients[1], held[0] - held[1]);
                for (int i = 0; i < 2; ++i) {
                    // The second adds to what is there: nothing is lent.
                    const auto a = own.step(i == 0), b = lent.step(i == 0);
                    ASSERT_GT(norm(a.gradients), 0.1);
                    EXPECT_TRUE(same_bits(a.gradients, b.gradients)) << name(dtype) << " step " << i;
                    EXPECT_EQ(a.loss, b.loss);
                }
            }
        }
    }
}

TEST(Decoder, SameBitsForAnyThreadCount) {
    DecoderOptions o = SmallModel::options();
    o.aux = {.coeff = 0.1f, .z_coeff = 0.01f};
    const auto one = outcome(o, DType::F32, 1);
    for (const int threads : {2, 3, 5, 8, 16}) {
        EXPECT_TRUE(same_bits(outcome(o, DType::F32, threads).gradients, one.gradients))
            << threads << " threads";
    }
}

// d objective along random directions of each parameter, by central differences in fp32.
TEST(Decoder, GradientsMatchCentralDifferences) {
    DecoderOptions o = SmallModel::options();
    o.aux = {.definition = ops::AuxLossDefinition::HuggingFace, .coeff = 3.0f, .z_coeff = 0.3f};
    o.tied_embeddings = true;
    SmallModel model(o);
    model.set_batch({12, 9}, 5);
    const auto exact = model.step();
    for (const auto& p : model.parameters.all()) {
        const Philox random(11, p->spec.name);
        float* value = p->value.as<float>();
        const int64_t count = p->value.numel();
        std::vector<float> saved(value, value + count);
        const double step = 1e-3 / std::sqrt(static_cast<double>(count));
        double along = 0, scale = 0;
        std::vector<double> direction(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
            direction[static_cast<size_t>(i)] = random.normal(static_cast<uint64_t>(i));
            const double g = static_cast<double>(exact.gradients[static_cast<size_t>(p->offset + i)]);
            along += g * direction[static_cast<size_t>(i)];
            scale += g * g;
        }
        const auto at = [&](double sign) {
            for (int64_t i = 0; i < count; ++i) {
                value[i] = saved[static_cast<size_t>(i)] +
                           static_cast<float>(sign * step * direction[static_cast<size_t>(i)]);
            }
            return model.objective();
        };
        const double difference = (at(1) - at(-1)) / (2 * step);
        std::copy(saved.begin(), saved.end(), value);
        ASSERT_GT(scale, 0) << p->spec.name;
        // A direction may change a token's experts, where the loss has a kink; fp32 noise is 1e-7 · loss /
        // step.
        EXPECT_NEAR(difference, along, 0.02 * std::sqrt(scale) + 0.05) << p->spec.name;
    }
}

TEST(Decoder, AnExpertWithoutTokensHasZeroGradientNotAStaleOne) {
    DecoderOptions o = SmallModel::options();
    for (const ExpertMode mode : {ExpertMode::Loop, ExpertMode::GroupedLinear, ExpertMode::FusedGroupedMlp}) {
        o.layer.moe.mode = mode;
        SmallModel model(o);
        model.set_batch({40}, 3);
        model.step();  // every expert has rows, gradients are full
        // One token reaches two experts of four.
        model.set_batch({2}, 3);
        model.step();
        const Parameter* p = model.parameters.find("layers.0.moe.gate_up");
        int zero = 0;
        for (int64_t e = 0; e < 4; ++e) {
            const View part = p->main_grad.at(e);
            bool all_zero = true;
            for (int64_t i = 0; i < part.numel(); ++i) all_zero &= part.as<float>()[i] == 0.0f;
            zero += all_zero;
        }
        EXPECT_GE(zero, 1) << static_cast<int>(mode);
        EXPECT_LT(zero, 4) << static_cast<int>(mode);
    }
}

TEST(Decoder, MemoryIsBackAfterAStep) {
    SmallModel model(SmallModel::options());
    model.set_batch({19, 30}, 3);
    model.step();
    const PoolReport before = model.pool.report();
    for (int i = 0; i < 3; ++i) {
        model.step();
        EXPECT_EQ(model.pool.report().current_bytes, before.current_bytes);
        EXPECT_EQ(model.pool.report().system_allocations, before.system_allocations);
    }
}

TEST(Decoder, AllLabelsMaskedGivesZeroLossAndFiniteGradients) {
    DecoderOptions o = SmallModel::options();
    o.aux = {.coeff = 0.1f};
    SmallModel model(o);
    model.set_batch({16}, 3);
    for (int64_t i = 0; i < 16; ++i) model.run.batch.targets.as<int32_t>()[i] = -100;
    const auto out = model.step();
    EXPECT_EQ(out.loss, 0.0f);
    EXPECT_TRUE(std::isfinite(norm(out.gradients)));
}

}  // namespace
}  // namespace moebius::nn
