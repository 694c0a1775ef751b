// A small decoder under every recipe: what it computes, what it keeps, and what is quantized how often.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "moebius/base/error.h"
#include "tests/nn/fixture.h"

namespace moebius::nn {
namespace {

using precision::make_recipe;
using testing::HasSubstr;

const char* const kRecipes[] = {"Float8BlockScaling", "MXFP8BlockScaling", "Float8CurrentScaling",
                                "DelayedScaling"};

std::shared_ptr<const precision::Recipe> recipe_named(const std::string& name) {
    if (name == "DelayedScaling") return make_recipe(name, "HYBRID", {{"amax_history_len", int64_t{4}}});
    return make_recipe(name, "HYBRID", {});
}

DecoderOptions options_with(const std::string& recipe, ExpertMode mode = ExpertMode::GroupedLinear) {
    DecoderOptions o = SmallModel::options();
    o.layer.moe.mode = mode;
    if (!recipe.empty()) o.low_precision.recipe = recipe_named(recipe);
    o.low_precision.micro_batches = 2;
    return o;
}

// A step of one micro-batch, or of two alike, to its end.
SmallModel::Outcome whole_step(SmallModel& m, int micro_batches = 1) {
    m.parameters.touch();
    m.decoder->begin_step(m.run);
    SmallModel::Outcome out;
    for (int i = 0; i < micro_batches; ++i) {
        m.run.batch.index = i;
        out = m.step(i == 0);
    }
    const View counts = m.decoder->statistics().counts;
    m.decoder->end_step(counts, m.run);
    return out;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, norm = 0;
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        norm += double{b[i]} * b[i];
    }
    EXPECT_GT(norm, 0);
    return std::sqrt(error / norm);
}

// A product of two operands in E4M3 is off by 0.037 of its norm (2⁻⁴ / √3 / √2 each), E5M2's gradients by
// about twice that; a gradient has passed up to 8 products forward and 8 back in these two layers, whose
// errors are independent: √(8 · 0.037² + 8 · 0.06²) = 0.2. Twice that is allowed, as for everything.
// The weights leave magnitudes as they are, and all experts are chosen: a choice that flips is no rounding.
TEST(LowPrecisionDecoder, GradientsAreNearThoseOfHighPrecision) {
    const auto options = [](const std::string& recipe, ExpertMode mode) {
        DecoderOptions o = options_with(recipe, mode);
        o.layer.moe.router.topk = o.layer.moe.experts.experts;
        for (double* std :
             {&o.layer.attention.init_std, &o.layer.attention.out_init_std, &o.layer.moe.experts.init_std,
              &o.layer.moe.experts.down_init_std, &o.layer.moe.router_init_std, &o.head_init_std})
            *std = 1 / std::sqrt(32.0);
        return o;
    };
    SmallModel plain(options("", ExpertMode::GroupedLinear));
    plain.set_batch({24, 40}, 5);
    const SmallModel::Outcome high = whole_step(plain);
    for (const char* name : kRecipes) {
        for (const ExpertMode mode : {ExpertMode::GroupedLinear, ExpertMode::Loop}) {
            SmallModel m(options(name, mode));
            m.set_batch({24, 40}, 5);
            // DelayedScaling needs steps to find its scales.
            for (int i = 0; i < 2; ++i) whole_step(m);
            const SmallModel::Outcome low = whole_step(m);
            EXPECT_NEAR(low.loss, high.loss, 0.1 * static_cast<double>(high.loss)) << name;
            const double error = difference(low.gradients, high.gradients);
            EXPECT_LT(error, 0.4) << name;
            EXPECT_GT(error, 0.02) << name << ": not quantized at all?";
        }
    }
}

TEST(LowPrecisionDecoder, AllExpertModesHaveTheSameCodes) {
    for (const char* name : kRecipes) {
        SmallModel grouped(options_with(name)), loop(options_with(name, ExpertMode::Loop)),
            fused(options_with(name, ExpertMode::FusedGroupedMlp));
        for (SmallModel* m : {&grouped, &loop, &fused}) m->set_batch({24, 40}, 5);
        for (int i = 0; i < 3; ++i) {
            const SmallModel::Outcome a = whole_step(grouped);
            for (SmallModel* m : {&loop, &fused}) {
                const SmallModel::Outcome b = whole_step(*m);
                EXPECT_LT(difference(a.gradients, b.gradients), 1e-5) << name << " step " << i;
                if (m == &fused) {
                    EXPECT_EQ(a.gradients, b.gradients) << name << " step " << i;
                }
            }
        }
    }
}

TEST(LowPrecisionDecoder, WeightsThatAreNotKeptLiveAsLongAsTheirProduct) {
    for (const char* name : kRecipes) {
        for (const ExpertMode mode : {ExpertMode::Loop, ExpertMode::FusedGroupedMlp}) {
            DecoderOptions o = options_with(name, mode);
            SmallModel kept(o);
            o.low_precision.keep_weights = false;
            SmallModel again(o);
            for (SmallModel* m : {&kept, &again}) m->set_batch({24, 40}, 5);
            for (int i = 0; i < 2; ++i) {
                const SmallModel::Outcome a = whole_step(kept), b = whole_step(again);
                EXPECT_EQ(a.loss, b.loss) << name << " step " << i;
                EXPECT_EQ(a.gradients, b.gradients) << name << " step " << i;
            }
        }
    }
}

TEST(LowPrecisionDecoder, KeptWeightsChangeNoBitAndAreQuantizedOnceAStep) {
    for (const char* name : kRecipes) {
        DecoderOptions o = options_with(name);
        SmallModel kept(o);
        o.low_precision.keep_weights = false;
        SmallModel again(o);
        EXPECT_GT(kept.decoder->low_precision().weight_bytes(), 2 * 32 * 32);
        EXPECT_EQ(again.decoder->low_precision().weight_bytes(), 0);
        const auto calls = [](SmallModel& m, SmallModel::Outcome& out) {
            VariantLog log;
            m.run.exec.log = &log;
            out = whole_step(m, 2);
            m.run.exec.log = nullptr;
            int64_t total = 0;
            for (const auto& entry : log.entries()) total += entry.op == "quantize" ? entry.calls : 0;
            return total;
        };
        for (SmallModel* m : {&kept, &again}) m->set_batch({24, 40}, 5);
        for (int i = 0; i < 2; ++i) {
            SmallModel::Outcome a, b;
            const int64_t few = calls(kept, a), many = calls(again, b);
            EXPECT_EQ(a.gradients, b.gradients) << name;
            // Eight weights: once, in place of forward and backward of both micro-batches.
            EXPECT_EQ(many - few, 8 * (4 - 1)) << name;
        }
        // The update is seen.
        const float before = whole_step(kept).loss;
        const View values = kept.parameters.find("layers.0.moe.down")->value;
        for (int64_t i = 0; i < values.numel(); ++i) values.as<float>()[i] *= -1;
        EXPECT_NE(whole_step(kept).loss, before);
    }
}

TEST(LowPrecisionDecoder, WhatIsKeptForBackwardIsLessThanBf16s) {
    SmallModel plain(options_with(""), DType::BF16);
    const std::vector<int32_t> lengths = {300, 212};
    plain.set_batch(lengths, 5);
    const auto kept = [](SmallModel& m) {
        const Tensor loss = Tensor::zeros("loss", {512 + 1}, DType::F32, m.run.exec);
        m.parameters.begin_step();
        m.decoder->reset_statistics(m.run);
        m.decoder->begin_step(m.run);
        const DecoderContext context = m.decoder->forward(
            {.loss = {.token_loss = loss.view().rows(0, 512), .loss_sum = loss.view().rows(512, 1)}}, m.run);
        return context.bytes();
    };
    const int64_t high = kept(plain);
    for (const char* name : kRecipes) {
        SmallModel m(options_with(name), DType::BF16);
        m.set_batch(lengths, 5);
        EXPECT_LT(kept(m), high) << name;
    }
}

// Codes that backward makes again, where bf16 makes the norms' outputs and the gathered rows again: the bits
// are those of codes that were kept, and no recipe keeps more than bf16.
TEST(LowPrecisionDecoder, WhatIsMadeAgainHasTheSameBitsAndIsNotKept) {
    const auto kept_of = [](const DecoderOptions& o, SmallModel::Outcome& out) {
        SmallModel model(o, DType::BF16);
        model.set_batch({24, 1, 39}, 5);
        out = whole_step(model, 2);
        const Tensor loss = Tensor::zeros("loss", {64 + 1}, DType::F32, model.run.exec);
        model.decoder->begin_step(model.run);
        model.decoder->reset_statistics(model.run);
        return model.decoder
            ->forward({.loss = {.token_loss = loss.view().rows(0, 64), .loss_sum = loss.view().rows(64, 1)}},
                      model.run)
            .bytes();
    };
    SmallModel::Outcome kept, again;
    DecoderOptions plain = options_with("", ExpertMode::FusedGroupedMlp);
    plain.layer.remake = true;
    const int64_t of_bf16 = kept_of(plain, again);
    for (const char* name : kRecipes) {
        for (const Recompute recompute : {Recompute::None, Recompute::Moe, Recompute::Attention}) {
            SCOPED_TRACE(testing::Message() << name << ", recompute " << static_cast<int>(recompute));
            DecoderOptions o = options_with(name, ExpertMode::FusedGroupedMlp);
            o.layer.recompute = recompute;
            o.layer.remake = false;
            const int64_t bytes = kept_of(o, kept);
            o.layer.remake = true;
            const int64_t fewer = kept_of(o, again);
            EXPECT_EQ(again.gradients, kept.gradients);
            EXPECT_EQ(again.loss, kept.loss);
            EXPECT_LE(fewer, bytes);
            // Beyond it, a few amaxes.
            if (recompute == Recompute::None) {
                EXPECT_LE(fewer, of_bf16 + 64);
            }
        }
    }
}

TEST(LowPrecisionDecoder, LayersThatAreLeftOutAreAsIfThereWereNoRecipe) {
    SmallModel plain(options_with(""));
    plain.set_batch({24, 40}, 5);
    const SmallModel::Outcome high = whole_step(plain);
    std::vector<std::vector<float>> seen;
    for (const std::vector<bool>& layers :
         {std::vector<bool>{false, false}, {true, false}, {false, true}, {}}) {
        DecoderOptions o = options_with("Float8BlockScaling");
        o.low_precision.layers = layers;
        SmallModel m(o);
        m.set_batch({24, 40}, 5);
        EXPECT_EQ(m.decoder->low_precision().members().size(), layers.empty()           ? 8u
                                                               : layers[0] || layers[1] ? 4u
                                                                                        : 0u);
        seen.push_back(whole_step(m).gradients);
    }
    EXPECT_EQ(seen[0], high.gradients);
    EXPECT_NE(seen[1], seen[0]);
    EXPECT_NE(seen[2], seen[1]);
    EXPECT_NE(seen[3], seen[2]);
}

// Recompute::Attention quantizes a norm that was made, the others make it as they quantize.
TEST(LowPrecisionDecoder, RecomputationChangesNoBit) {
    for (const char* name : kRecipes) {
        std::vector<std::vector<float>> seen;
        for (const Recompute recompute :
             {Recompute::None, Recompute::Moe, Recompute::Attention, Recompute::Full}) {
            DecoderOptions o = options_with(name);
            o.layer.recompute = recompute;
            SmallModel m(o);
            m.set_batch({24, 40}, 5);
            whole_step(m);
            seen.push_back(whole_step(m).gradients);
        }
        for (size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[0]) << name << " " << i;
    }
}

TEST(LowPrecisionDecoder, DelayedScalingTakesTheAmaxOfTheStepBefore) {
    SmallModel m(options_with("DelayedScaling"));
    m.set_batch({24, 40}, 5);
    const auto buffer = [&](const std::string& name) {
        for (const StateEntry& entry : m.decoder->buffers()) {
            if (entry.slice.name == name) {
                EXPECT_EQ(entry.kind, StateKind::Buffer);
                return std::vector<float>(entry.view.as<float>(),
                                          entry.view.as<float>() + entry.view.numel());
            }
        }
        ADD_FAILURE() << "no buffer " << name;
        return std::vector<float>(64);
    };
    const std::string weight = "layers.1.moe.gate_up";
    EXPECT_EQ(buffer(weight + ".weight.scale"), std::vector<float>(4, 1.0f));
    const SmallModel::Outcome first = whole_step(m);
    // The largest magnitude of each expert's weights.
    std::vector<float> amax(4, 0.0f);
    const View values = m.parameters.find(weight)->value;
    const int64_t each = values.numel() / 4;
    for (int64_t i = 0; i < values.numel(); ++i) {
        float& own = amax[static_cast<size_t>(i / each)];
        own = std::max(own, std::abs(values.as<float>()[i]));
    }
    const std::vector<float> history = buffer(weight + ".weight.amax_history"),
                             scale = buffer(weight + ".weight.scale"),
                             gradient_scale = buffer(weight + ".grad_output.scale");
    ASSERT_EQ(history.size(), 16u);
    for (size_t e = 0; e < 4; ++e) {
        EXPECT_EQ(history[4 * e + 3], amax[e]);
        EXPECT_EQ(history[4 * e], 0.0f);
        EXPECT_EQ(scale[e], 448.0f / amax[e]);
        EXPECT_NE(gradient_scale[e], 1.0f);
    }
    // What validation looks at leaves no trace, and uses the scales that there are.
    m.run.pass = {.training = false, .save = false, .count = false};
    const Tensor loss = Tensor::zeros("loss", {64 + 1}, DType::F32, m.run.exec);
    m.decoder->forward({.loss = {.token_loss = loss.view().rows(0, 64), .loss_sum = loss.view().rows(64, 1)}},
                       m.run);
    m.run.pass = {};
    EXPECT_EQ(buffer(weight + ".input.amax_history").size(), 16u);
    const auto inputs = buffer(weight + ".input.amax_history");
    EXPECT_NE(whole_step(m).gradients, first.gradients) << "the scales are the same?";
    EXPECT_EQ(buffer(weight + ".input.amax_history")[2], inputs[3]) << "the history moved by one";
    // After a bad step everything is as it was.
    const auto before = buffer(weight + ".input.amax_history");
    *m.run.scalars.bad.as<int32_t>() = 1;
    whole_step(m);
    EXPECT_EQ(buffer(weight + ".input.amax_history"), before);
}

TEST(LowPrecisionDecoder, AmaxIsTakenOverAllMicroBatches) {
    const auto history = [](std::vector<uint64_t> seeds) {
        SmallModel m(options_with("DelayedScaling"));
        m.parameters.touch();
        m.decoder->begin_step(m.run);
        for (size_t i = 0; i < seeds.size(); ++i) {
            m.set_batch({24, 40}, seeds[i]);
            m.run.batch.index = static_cast<int64_t>(i);
            m.step(i == 0);
        }
        m.decoder->end_step(m.decoder->statistics().counts, m.run);
        std::vector<float> all;
        for (const StateEntry& entry : m.decoder->buffers()) {
            if (!entry.slice.name.ends_with(".input.amax_history")) continue;
            const auto* values = entry.view.as<float>();
            for (int64_t i = 3; i < entry.view.numel(); i += 4) all.push_back(values[i]);
        }
        return all;
    };
    const std::vector<float> a = history({5}), b = history({6}), both = history({5, 6});
    ASSERT_EQ(both.size(), a.size());
    EXPECT_NE(a, b);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(both[i], std::max(a[i], b[i])) << i;
}

// One of two ranks; the other sent `others`, or nothing yet and then the same.
class OneOfTwo : public Communicator {
  public:
    std::vector<float> sent, others;
    int gathers = 0;

    std::string_view backend() const override { return "one of two"; }
    int rank() const override { return 0; }
    int size() const override { return 2; }
    bool capturable() const override { return false; }
    std::unique_ptr<Communicator> split(int, int, std::string_view) override { return nullptr; }
    void abort() noexcept override {}

  protected:
    void do_all_gather(const View& send, const View& receive, Stream, std::string_view) override {
        ++gathers;
        sent.assign(send.as<float>(), send.as<float>() + send.numel());
        if (others.empty()) others = sent;
        std::copy(sent.begin(), sent.end(), receive.as<float>());
        std::copy(others.begin(), others.end(), receive.as<float>() + send.numel());
    }
    // The router's counts: this rank's alone.
    void do_all_reduce(const View&, Stream, std::string_view) override {}
    void do_broadcast(const View&, int, Stream, std::string_view) override { FAIL(); }
    void do_reduce_scatter(const View&, const View&, Stream, std::string_view) override { FAIL(); }
    void do_all_to_all(const View&, const View&, Stream, std::string_view) override { FAIL(); }
    void do_all_to_all_v(const View&, std::span<const int64_t>, const View&, std::span<const int64_t>, Stream,
                         std::string_view) override {
        FAIL();
    }
    void do_barrier(Stream, std::string_view) override { FAIL(); }
};

TEST(LowPrecisionDecoder, AmaxIsTakenOverAllRanksAndOfAnExpertOverThoseThatHoldIt) {
    // The last amaxes of all tensors, by name.
    const auto history = [](uint64_t seed, Communicator* world, Communicator* expert_ranks,
                            bool reduces = true) {
        DecoderOptions o = options_with("DelayedScaling");
        o.low_precision.recipe = make_recipe("DelayedScaling", "HYBRID",
                                             {{"amax_history_len", int64_t{4}}, {"reduce_amax", reduces}});
        SmallModel m(o);
        if (world != nullptr) m.run.world = world;
        m.run.expert_ranks = expert_ranks;
        m.set_batch({24, 40}, seed);
        whole_step(m);
        std::map<std::string, std::vector<float>> all;
        for (const StateEntry& entry : m.decoder->buffers()) {
            if (!entry.slice.name.ends_with(".amax_history")) continue;
            const auto* values = entry.view.as<float>();
            for (int64_t i = 3; i < entry.view.numel(); i += 4) all[entry.slice.name].push_back(values[i]);
        }
        return all;
    };
    const auto a = history(5, nullptr, nullptr), b = history(6, nullptr, nullptr);
    OneOfTwo other, same;
    EXPECT_EQ(history(6, &other, nullptr), b);
    EXPECT_EQ(other.gathers, 1);
    same.others = other.sent;
    const auto both = history(5, &same, nullptr);
    const std::unique_ptr<Communicator> alone = make_communicator("self");
    const auto apart = history(5, &same, alone.get());
    EXPECT_EQ(same.gathers, 2);
    EXPECT_EQ(history(5, &same, nullptr, false), a) << "reduce_amax=false";
    EXPECT_EQ(same.gathers, 2);
    int64_t moved = 0;
    for (const auto& [name, own] : a) {
        const bool routed = name.find(".moe.") != std::string::npos;
        for (size_t i = 0; i < own.size(); ++i) {
            const float most = std::max(own[i], b.at(name)[i]);
            EXPECT_EQ(both.at(name)[i], most) << name << " " << i;
            EXPECT_EQ(apart.at(name)[i], routed ? own[i] : most) << name << " " << i;
            moved += routed && most != own[i];
        }
    }
    EXPECT_GT(moved, 0);
}

TEST(LowPrecisionDecoder, StatisticsCountWhatQuantizingLoses) {
    DecoderOptions o = options_with("DelayedScaling");
    o.low_precision.statistics = true;
    SmallModel m(o);
    m.set_batch({24, 40}, 5);
    // With the scale 1 of a first step, E4M3 holds from 2⁻⁹ to 448.
    const View values = m.parameters.find("layers.0.moe.down")->value;
    for (int64_t i = 0; i < values.numel(); ++i) values.as<float>()[i] = i % 4 == 0 ? 500.0f : 1e-4f;
    m.parameters.touch();
    m.decoder->begin_step(m.run);
    m.step();
    const auto s = m.decoder->low_precision().statistics();
    for (const auto& member : m.decoder->low_precision().members()) {
        if (member.linear->parameter().spec.name != "layers.0.moe.down") continue;
        EXPECT_TRUE(member.routed);
        const int64_t n = s.observed_amax.size(2), each = values.numel() / 4;
        for (int64_t e = 0; e < 4; ++e) {
            const int64_t at = n + m.decoder->low_precision().offset(member) + e;  // role: weight
            EXPECT_EQ(s.observed_amax.as<float>()[at], 500.0f);
            EXPECT_EQ(s.counts.as<int64_t>()[2 * at], each * 3 / 4);
            EXPECT_EQ(s.counts.as<int64_t>()[2 * at + 1], each / 4);
        }
    }
}

TEST(LowPrecisionDecoder, ARecipeInTheRunAloneKeepsNothing) {
    SmallModel m(options_with(""));
    m.set_batch({24, 40}, 5);
    const SmallModel::Outcome high = m.step();
    {
        const Autocast scope(m.run, true, recipe_named("Float8BlockScaling"));
        EXPECT_NE(m.step().gradients, high.gradients);
    }
    EXPECT_EQ(m.step().gradients, high.gradients);
    const Autocast scope(m.run, true, recipe_named("DelayedScaling"));
    try {
        m.step();
        FAIL() << "DelayedScaling without scales";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("fp8_config.fp8_recipe = DelayedScaling"));
    }
}

}  // namespace
}  // namespace moebius::nn
