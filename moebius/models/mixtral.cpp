// Mixtral: Hugging Face's MixtralForCausalLM.
#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <string_view>

#include "moebius/base/error.h"
#include "moebius/models/family.h"

namespace moebius::models {
namespace {

using checkpoint::ExportPiece;
using config::ModelConfig;

// The keys' places stand behind the sentence: of those that it names, no others.
[[noreturn]] void refuse(const ModelConfig& c, std::initializer_list<std::string_view> keys,
                         const std::string& text) {
    std::string places;
    for (const std::string_view key : keys)
        places += fmt::format("{}{}: {}", places.empty() ? "" : "; ", key, c.place_of(key));
    throw Error(fmt::format("{} ({})", text, places));
}

int64_t positive(const ModelConfig& c, const char* key) {
    const int64_t value = c.get_int(key);
    if (value < 1) refuse(c, {key}, fmt::format("{} = {} must be at least 1", key, value));
    return value;
}

// A number that is computed with in fp32, from 0 up.
double number(const ModelConfig& c, const char* key, double fallback) {
    const double value = c.get_double(key, fallback);
    if (!(value >= 0) || std::isinf(static_cast<float>(value))) {
        refuse(c, {key},
               fmt::format("{} = {} must be at least 0 and a number that fp32 can hold", key, value));
    }
    return value;
}

// Keys that change the mathematics in a way that is not built: any value but the plain one is refused.
void refuse_unsupported(const ModelConfig& c) {
    const std::string act = c.get_string("hidden_act", "silu");
    if (act != "silu")
        refuse(c, {"hidden_act"}, fmt::format("hidden_act = {} is not supported; only silu is", act));
    const double dropout = c.get_double("attention_dropout", 0.0);
    if (dropout != 0.0)
        refuse(c, {"attention_dropout"},
               fmt::format("attention_dropout = {} is not supported; only 0 is", dropout));
    for (const char* key : {"attention_bias", "mlp_bias", "use_bias"}) {
        if (c.get_bool(key, false)) refuse(c, {key}, fmt::format("{} = true is not supported", key));
    }
    for (const char* key : {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"}) {
        const std::string type = c.get_string(key, "default");
        if (type != "default")
            refuse(c, {key}, fmt::format("{} = {} is not supported; only default is", key, type));
    }
    const double partial =
        c.get_double("rope_parameters.partial_rotary_factor", c.get_double("partial_rotary_factor", 1.0));
    if (partial != 1.0)
        refuse(c, {"partial_rotary_factor"},
               fmt::format("partial_rotary_factor = {} is not supported; only 1 is", partial));
}

nn::AttentionOptions attention_options(const ModelConfig& c) {
    nn::AttentionOptions a;
    a.hidden = positive(c, "hidden_size");
    a.heads = positive(c, "num_attention_heads");
    a.kv_heads = c.is_null("num_key_value_heads") ? a.heads : positive(c, "num_key_value_heads");
    if (a.heads % a.kv_heads != 0) {
        refuse(c, {"num_attention_heads", "num_key_value_heads"},
               fmt::format("num_attention_heads = {} must be a multiple of num_key_value_heads = {}", a.heads,
                           a.kv_heads));
    }
    if (c.is_null("head_dim")) {
        if (a.hidden % a.heads != 0) {
            refuse(c, {"hidden_size", "num_attention_heads"},
                   fmt::format(
                       "hidden_size = {} must be a multiple of num_attention_heads = {} (or set head_dim)",
                       a.hidden, a.heads));
        }
        a.head_dim = a.hidden / a.heads;
    } else {
        a.head_dim = positive(c, "head_dim");
    }
    if (a.head_dim % 2 != 0) refuse(c, {"head_dim"}, fmt::format("head_dim = {} must be even", a.head_dim));
    a.window = c.get_int("sliding_window", 0);
    if (a.window < 0)
        refuse(c, {"sliding_window"}, fmt::format("sliding_window = {} must be positive or null", a.window));
    const double theta = number(c, "rope_parameters.rope_theta", number(c, "rope_theta", 1e6));
    a.rope_theta = static_cast<float>(theta);
    if (!(a.rope_theta > 0))
        refuse(c, {"rope_theta"}, fmt::format("rope_theta = {} must be positive (in fp32)", theta));
    return a;
}

ops::RouterOptions router_options(const ModelConfig& c, const ModelOptions& o, int64_t experts) {
    ops::RouterOptions r;
    r.topk = positive(c, "num_experts_per_tok");
    r.score = o.router_score;
    r.num_groups = o.num_groups;
    r.topk_groups = o.topk_groups;
    if (r.topk > experts) {
        refuse(
            c, {"num_experts_per_tok", "num_local_experts"},
            fmt::format("num_experts_per_tok = {} must not exceed num_local_experts = {}", r.topk, experts));
    }
    if (experts % r.num_groups != 0) {
        refuse(c, {"num_local_experts"},
               fmt::format("num_local_experts = {} must be a multiple of router.num_groups = {}", experts,
                           r.num_groups));
    }
    if (r.topk_groups > r.num_groups || r.topk_groups * (experts / r.num_groups) < r.topk) {
        refuse(c, {"num_local_experts", "num_experts_per_tok"},
               fmt::format("router.topk_groups = {} of {} groups of {} experts leave too few for "
                           "num_experts_per_tok = {}",
                           r.topk_groups, r.num_groups, experts / r.num_groups, r.topk));
    }
    return r;
}

// router_aux_loss_coef counts with output_router_logits, as in Hugging Face; moe_aux_loss_coeff > 0 replaces
// it.
nn::AuxLossOptions aux_options(const ModelConfig& c, const ModelOptions& o) {
    nn::AuxLossOptions aux;
    const double replacing = number(c, "moe_aux_loss_coeff", 0.0);
    const double hugging_face =
        c.get_bool("output_router_logits", false) ? number(c, "router_aux_loss_coef", 0.001) : 0.0;
    aux.coeff = static_cast<float>(replacing > 0 ? replacing : hugging_face);
    aux.definition = replacing > 0 ? ops::AuxLossDefinition::Switch : ops::AuxLossDefinition::HuggingFace;
    if (o.aux_loss_definition == "switch") aux.definition = ops::AuxLossDefinition::Switch;
    if (o.aux_loss_definition == "huggingface") aux.definition = ops::AuxLossDefinition::HuggingFace;
    aux.z_coeff = static_cast<float>(o.z_loss_coeff);
    return aux;
}

// Sizes that no machine holds: products of them would overflow, or their names alone fill the memory.
void check_size(const ModelConfig& c, const nn::DecoderOptions& d) {
    constexpr double kMostParameters = 1e15;
    constexpr int64_t kMostLayers = 10'000, kMostExperts = 100'000;
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    const nn::AttentionOptions& a = d.layer.attention;
    const nn::GroupedMlpOptions& e = d.layer.moe.experts;
    const double hidden = real(a.hidden);
    const double layer = 2 * (real(a.heads) + real(a.kv_heads)) * real(a.head_dim) * hidden +
                         (3 * real(e.intermediate) + 1) * real(e.experts) * hidden;
    const double all = real(d.layers) * layer + 2 * real(d.vocab) * hidden;
    if (all <= kMostParameters && d.layers <= kMostLayers && e.experts <= kMostExperts) return;
    refuse(c,
           {"num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "num_local_experts",
            "intermediate_size", "vocab_size"},
           fmt::format("a model of {:.3g} parameters is too large (at most {:.0e} parameters, {} layers, {} "
                       "experts): num_hidden_layers = {}, hidden_size = {}, num_attention_heads = {}, "
                       "head_dim = {}, num_local_experts = {}, intermediate_size = {}, vocab_size = {}",
                       all, kMostParameters, kMostLayers, kMostExperts, d.layers, a.hidden, a.heads,
                       a.head_dim, e.experts, e.intermediate, d.vocab));
}

// Which layers run in low precision: as layer_precision lists them, or all but some at both ends.
nn::LowPrecisionOptions low_precision_options(const ModelConfig& c, const ModelOptions& o, int64_t layers) {
    nn::LowPrecisionOptions low = o.low_precision;
    if (!low.recipe) return low;
    if (!low.layers.empty()) {
        if (static_cast<int64_t>(low.layers.size()) == layers) return low;
        std::string list;
        for (const bool low_layer : low.layers)
            list += fmt::format("{}{}", list.empty() ? "" : ", ", low_layer ? "fp8" : "bf16");
        refuse(c, {"num_hidden_layers"},
               fmt::format("layer_precision = [{}]{} lists {} layers, but num_hidden_layers = {}", list,
                           o.layer_precision_place.empty() ? "" : " (" + o.layer_precision_place + ")",
                           low.layers.size(), layers));
    }
    const int64_t start = c.get_int("num_layers_at_start_in_bf16", 0),
                  end = c.get_int("num_layers_at_end_in_bf16", 0);
    if (start < 0 || end < 0 || start > layers || end > layers - start) {
        refuse(c, {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "num_hidden_layers"},
               fmt::format("num_layers_at_start_in_bf16 = {} and num_layers_at_end_in_bf16 = {} must be "
                           "from 0 to num_hidden_layers = {} together",
                           start, end, layers));
    }
    for (int64_t i = 0; i < layers; ++i) low.layers.push_back(i >= start && i < layers - end);
    return low;
}

nn::DecoderOptions decoder_options(const ModelConfig& c, const ModelOptions& o) {
    refuse_unsupported(c);
    nn::DecoderOptions d;
    d.vocab = positive(c, "vocab_size");
    d.layers = positive(c, "num_hidden_layers");
    d.tied_embeddings = c.get_bool("tie_word_embeddings", false);
    if (o.spike_no_more_embedding_init && d.tied_embeddings) {
        refuse(c, {"tie_word_embeddings"},
               "spike_no_more_embedding_init = true needs tie_word_embeddings = false");
    }
    d.padding_idx = c.get_int("pad_token_id", -1);
    if (d.padding_idx >= d.vocab) {
        refuse(c, {"pad_token_id", "vocab_size"},
               fmt::format("pad_token_id = {} must be below vocab_size = {}", d.padding_idx, d.vocab));
    }
    const double std = number(c, "initializer_range", 0.02);
    const double out_std =
        o.megatron_scaled_init ? std / std::sqrt(2.0 * static_cast<double>(d.layers)) : std;
    d.embedding_init_std = o.spike_no_more_embedding_init ? 1.0 : std;
    d.head_init_std = std;
    d.decay_embedding = o.decay_embedding;
    d.aux = aux_options(c, o);

    nn::LayerOptions& layer = d.layer;
    layer.norm_eps = static_cast<float>(number(c, "rms_norm_eps", 1e-5));
    layer.recompute = o.recompute;
    layer.attention = attention_options(c);
    layer.attention.init_std = std;
    layer.attention.out_init_std = out_std;
    const int64_t experts = positive(c, "num_local_experts");
    layer.moe.experts = {.experts = experts,
                         .hidden = layer.attention.hidden,
                         .intermediate = positive(c, "intermediate_size"),
                         .init_std = std,
                         .down_init_std = out_std};
    layer.moe.router = router_options(c, o, experts);
    layer.moe.mode = o.expert_mode;
    layer.moe.selection_bias = o.selection_bias;
    layer.moe.bias_update_rate = o.bias_update_rate;
    layer.moe.input_jitter = static_cast<float>(c.get_double("router_jitter_noise", 0.0));
    layer.moe.router_init_std = std;
    if (layer.moe.input_jitter < 0 || layer.moe.input_jitter >= 1) {
        refuse(c, {"router_jitter_noise"},
               fmt::format("router_jitter_noise = {} must be in [0, 1)", layer.moe.input_jitter));
    }
    check_size(c, d);
    d.low_precision = low_precision_options(c, o, d.layers);
    return d;
}

// Collects pieces; every external tensor is a run of rows of one of ours.
struct Rules {
    std::vector<ExportPiece> pieces;
    void add(const std::string& external, Shape shape, const std::string& internal, int64_t begin = 0) {
        pieces.push_back({.external_name = external,
                          .external_shape = shape,
                          .internal_name = internal,
                          .internal_begin = begin,
                          .count = shape.numel()});
    }
};

void attention_rules(Rules& rules, const nn::AttentionOptions& a, const std::string& ours,
                     const std::string& theirs) {
    const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim, h = a.hidden;
    rules.add(theirs + ".self_attn.q_proj.weight", {q, h}, ours + ".attention.qkv", 0);
    rules.add(theirs + ".self_attn.k_proj.weight", {kv, h}, ours + ".attention.qkv", q * h);
    rules.add(theirs + ".self_attn.v_proj.weight", {kv, h}, ours + ".attention.qkv", (q + kv) * h);
    rules.add(theirs + ".self_attn.o_proj.weight", {h, q}, ours + ".attention.out");
}

void per_expert_rules(Rules& rules, const nn::GroupedMlpOptions& e, const std::string& ours,
                      const std::string& theirs) {
    const int64_t h = e.hidden, i = e.intermediate;
    rules.add(theirs + ".block_sparse_moe.gate.weight", {e.experts, h}, ours + ".moe.router");
    for (int64_t expert = 0; expert < e.experts; ++expert) {
        const std::string name = fmt::format("{}.block_sparse_moe.experts.{}", theirs, expert);
        rules.add(name + ".w1.weight", {i, h}, ours + ".moe.gate_up", expert * 2 * i * h);
        rules.add(name + ".w3.weight", {i, h}, ours + ".moe.gate_up", (expert * 2 + 1) * i * h);
        rules.add(name + ".w2.weight", {h, i}, ours + ".moe.down", expert * h * i);
    }
}

void fused_expert_rules(Rules& rules, const nn::GroupedMlpOptions& e, const std::string& ours,
                        const std::string& theirs) {
    const int64_t h = e.hidden, i = e.intermediate;
    rules.add(theirs + ".mlp.gate.weight", {e.experts, h}, ours + ".moe.router");
    rules.add(theirs + ".mlp.experts.gate_up_proj", {e.experts, 2 * i, h}, ours + ".moe.gate_up");
    rules.add(theirs + ".mlp.experts.down_proj", {e.experts, h, i}, ours + ".moe.down");
}

checkpoint::NameLayout layout(const nn::DecoderOptions& d, const char* name,
                              decltype(&per_expert_rules) expert_rules) {
    Rules rules;
    const int64_t h = d.layer.attention.hidden;
    rules.add("model.embed_tokens.weight", {d.vocab, h}, "embedding");
    for (int64_t i = 0; i < d.layers; ++i) {
        const std::string ours = fmt::format("layers.{}", i), theirs = fmt::format("model.layers.{}", i);
        attention_rules(rules, d.layer.attention, ours, theirs);
        rules.add(theirs + ".input_layernorm.weight", {h}, ours + ".input_norm");
        rules.add(theirs + ".post_attention_layernorm.weight", {h}, ours + ".post_attention_norm");
        expert_rules(rules, d.layer.moe.experts, ours, theirs);
    }
    rules.add("model.norm.weight", {h}, "final_norm");
    if (!d.tied_embeddings) rules.add("lm_head.weight", {d.vocab, h}, "lm_head");
    return {name, std::move(rules.pieces), {"*.rotary_emb.inv_freq"}};
}

std::vector<checkpoint::NameLayout> layouts(const nn::DecoderOptions& d) {
    return {layout(d, "per_expert", per_expert_rules), layout(d, "fused_experts", fused_expert_rules)};
}

}  // namespace

const Family& mixtral_family() {
    static const Family family{"mixtral", "MixtralForCausalLM", decoder_options, layouts};
    return family;
}

}  // namespace moebius::models
