// What config.json and the run's options make of a Mixtral: initial weights, weight decay, the load-balancing
// loss.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "moebius/base/error.h"
#include "moebius/models/model.h"

namespace moebius::models {
namespace {

using testing::HasSubstr;

config::ModelConfig small(const std::string& more = "") {
    return config::ModelConfig::parse(
        R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
            "vocab_size": 256, "initializer_range": 0.02)" +
            more + "}",
        "config.json");
}

struct Placed {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{2};
    Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    Model model;

    explicit Placed(const ModelOptions& options) : model(small(), options) {
        model.place({.train = false}, exec);
        model.parameters().fill(42, exec);
    }
    double deviation(const std::string& name) const {
        const Parameter* p = model.parameters().find(name);
        EXPECT_NE(p, nullptr) << name;
        double sum = 0, squares = 0;
        const auto count = static_cast<double>(p->value.numel());
        for (int64_t i = 0; i < p->value.numel(); ++i) {
            const double x = static_cast<double>(p->value.as<float>()[i]);
            sum += x;
            squares += x * x;
        }
        return std::sqrt(squares / count - (sum / count) * (sum / count));
    }
};

const std::vector<std::string> kMatrices = {"embedding",
                                            "lm_head",
                                            "layers.0.attention.qkv",
                                            "layers.1.attention.out",
                                            "layers.0.moe.router",
                                            "layers.0.moe.gate_up",
                                            "layers.1.moe.down"};

TEST(InitialWeights, AreNormalWithTheConfiguredDeviation) {
    const Placed plain({});
    // 5%: four standard errors of the smallest matrix (256 elements) are 18%.
    for (const std::string& name : kMatrices)
        EXPECT_NEAR(plain.deviation(name), 0.02, name == "layers.0.moe.router" ? 0.0036 : 0.001) << name;
    for (const char* name : {"layers.0.input_norm", "layers.1.post_attention_norm", "final_norm"}) {
        const Parameter* p = plain.model.parameters().find(name);
        ASSERT_NE(p, nullptr) << name;
        for (int64_t i = 0; i < p->value.numel(); ++i) EXPECT_EQ(p->value.as<float>()[i], 1.0f) << name;
    }
}

TEST(InitialWeights, SpikeNoMoreTouchesEmbeddingsOnly) {
    const Placed placed({.spike_no_more_embedding_init = true});
    EXPECT_NEAR(placed.deviation("embedding"), 1.0, 0.05);
    for (const std::string& name : kMatrices) {
        if (name == "embedding") continue;
        EXPECT_NEAR(placed.deviation(name), 0.02, 0.0036) << name;
    }
    try {
        const Model tied(small(R"(, "tie_word_embeddings": true)"), {.spike_no_more_embedding_init = true});
        FAIL() << "tied embeddings of deviation 1 are an lm_head of deviation 1";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("tie_word_embeddings"));
    }
}

TEST(InitialWeights, MegatronScalesTheProjectionsBackIntoTheResidual) {
    const Placed placed({.megatron_scaled_init = true});
    const double scaled = 0.02 / std::sqrt(2.0 * 2);
    for (const std::string& name : kMatrices) {
        const bool out = name.ends_with("attention.out") || name.ends_with("moe.down");
        const double tolerance = name.ends_with("router") ? 0.0036 : 0.05 * 0.02;
        EXPECT_NEAR(placed.deviation(name), out ? scaled : 0.02, tolerance) << name;
    }
}

TEST(InitialWeights, DoNotDependOnTheExpertMode) {
    const Placed loop({.expert_mode = nn::ExpertMode::Loop});
    const Placed fused({.expert_mode = nn::ExpertMode::FusedGroupedMlp});
    for (const auto& p : loop.model.parameters().all()) {
        const Parameter* other = fused.model.parameters().find(p->spec.name);
        ASSERT_NE(other, nullptr) << p->spec.name;
        EXPECT_EQ(std::memcmp(p->value.data, other->value.data, static_cast<size_t>(p->value.bytes())), 0)
            << p->spec.name;
    }
}

TEST(WeightDecay, SparesNormsAndByDefaultEmbeddings) {
    for (const bool decay_embedding : {false, true}) {
        const Model model(small(), {.decay_embedding = decay_embedding});
        int spared = 0;
        for (const auto& p : model.parameters().all()) {
            const bool norm = p->spec.shape.rank() == 1;
            const bool embedding = p->spec.name == "embedding";
            EXPECT_EQ(p->spec.decay, embedding ? decay_embedding : !norm) << p->spec.name;
            spared += !p->spec.decay;
        }
        EXPECT_EQ(spared, 5 + !decay_embedding);  // two norms a layer, the last one
    }
}

TEST(AuxLoss, WhichKeyCounts) {
    struct Row {
        const char* keys;
        const char* definition;
        double coeff;
        ops::AuxLossDefinition expected;
    };
    using enum ops::AuxLossDefinition;
    for (const Row& row : {
             // As in Hugging Face: its coefficient is idle until router logits are asked for.
             Row{R"(, "router_aux_loss_coef": 0.5)", "auto", 0, HuggingFace},
             Row{R"(, "router_aux_loss_coef": 0.5, "output_router_logits": false)", "auto", 0, HuggingFace},
             Row{R"(, "router_aux_loss_coef": 0.5, "output_router_logits": true)", "auto", 0.5, HuggingFace},
             Row{R"(, "output_router_logits": true)", "auto", 0.001, HuggingFace},
             Row{R"(, "moe_aux_loss_coeff": 0.25)", "auto", 0.25, Switch},
             Row{R"(, "moe_aux_loss_coeff": 0.25, "router_aux_loss_coef": 0.5, "output_router_logits": true)",
                 "auto", 0.25, Switch},
             Row{R"(, "moe_aux_loss_coeff": 0, "router_aux_loss_coef": 0.5, "output_router_logits": true)",
                 "auto", 0.5, HuggingFace},
             Row{R"(, "moe_aux_loss_coeff": 0.25)", "huggingface", 0.25, HuggingFace},
             Row{R"(, "router_aux_loss_coef": 0.5, "output_router_logits": true)", "switch", 0.5, Switch},
         }) {
        const Model model(small(row.keys), {.aux_loss_definition = row.definition});
        EXPECT_FLOAT_EQ(model.options().aux.coeff, static_cast<float>(row.coeff)) << row.keys;
        EXPECT_EQ(model.options().aux.definition, row.expected) << row.keys << " " << row.definition;
    }
}

}  // namespace
}  // namespace moebius::models
