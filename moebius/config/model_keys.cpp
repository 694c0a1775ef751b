#include "moebius/config/model_keys.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "moebius/base/error.h"

namespace moebius::config {
namespace {

using Json = nlohmann::json;

bool has_type(const Json& value, const ModelKey& key) {
    switch (key.type) {
        case JsonType::Int:
            return value.is_number_integer();
        case JsonType::Number:
            return value.is_number();
        case JsonType::Bool:
            return value.is_boolean();
        case JsonType::String:
            return value.is_string();
        case JsonType::List:
            return value.is_array();
        case JsonType::Map:
            return value.is_object();
    }
    return false;
}

std::string_view type_name(JsonType type) {
    switch (type) {
        case JsonType::Int:
            return "a whole number";
        case JsonType::Number:
            return "a number";
        case JsonType::Bool:
            return "true or false";
        case JsonType::String:
            return "text";
        case JsonType::List:
            return "a list";
        case JsonType::Map:
            return "a map";
    }
    return "";
}

}  // namespace

const std::vector<ModelKey>& model_keys() {
    using enum JsonType;
    static const std::vector<ModelKey> kKeys = {
        {.key = "architectures", .type = List},
        {.key = "attention_bias", .type = Bool},
        {.key = "attention_dropout", .type = Number, .at_least = 0},
        {.key = "bos_token_id", .type = Int, .nullable = true, .at_least = 0},
        {.key = "dtype", .type = String, .nullable = true, .other_spelling = "torch_dtype"},
        {.key = "eos_token_id", .type = Int, .nullable = true, .at_least = 0},
        {.key = "head_dim", .type = Int, .nullable = true, .at_least = 1},
        {.key = "hidden_act", .type = String},
        {.key = "hidden_size", .type = Int, .at_least = 1},
        {.key = "initializer_range", .type = Number, .at_least = 0},
        {.key = "intermediate_size", .type = Int, .at_least = 1},
        {.key = "max_position_embeddings", .type = Int, .at_least = 1},
        {.key = "model_type", .type = String},
        {.key = "moe_aux_loss_coeff", .type = Number, .at_least = 0},
        {.key = "num_attention_heads", .type = Int, .at_least = 1},
        {.key = "num_experts_per_tok", .type = Int, .at_least = 1},
        {.key = "num_hidden_layers", .type = Int, .at_least = 1},
        {.key = "num_key_value_heads", .type = Int, .at_least = 1},
        {.key = "num_layers_at_end_in_bf16", .type = Int, .at_least = 0},
        {.key = "num_layers_at_start_in_bf16", .type = Int, .at_least = 0},
        {.key = "num_local_experts", .type = Int, .at_least = 1},
        {.key = "output_router_logits", .type = Bool},
        {.key = "pad_token_id", .type = Int, .nullable = true, .at_least = 0},
        {.key = "rms_norm_eps", .type = Number, .at_least = 1e-12},
        {.key = "rope_parameters", .type = Map, .nullable = true},
        {.key = "rope_parameters.rope_theta", .type = Number, .at_least = 1, .other_spelling = "rope_theta"},
        {.key = "rope_parameters.rope_type", .type = String},
        {.key = "rope_scaling", .type = Map, .nullable = true},
        {.key = "rope_theta", .type = Number, .at_least = 1, .other_spelling = "rope_parameters.rope_theta"},
        {.key = "router_aux_loss_coef", .type = Number, .at_least = 0},
        {.key = "router_jitter_noise", .type = Number, .at_least = 0},
        {.key = "sliding_window", .type = Int, .nullable = true, .at_least = 1},
        {.key = "tie_word_embeddings", .type = Bool},
        {.key = "torch_dtype", .type = String, .nullable = true, .other_spelling = "dtype"},
        {.key = "transformers_version", .type = String},
        {.key = "use_cache", .type = Bool},
        {.key = "vocab_size", .type = Int, .at_least = 1},
    };
    return kKeys;
}

const ModelKey* find_model_key(std::string_view key) {
    for (const ModelKey& known : model_keys()) {
        if (known.key == key) return &known;
    }
    return nullptr;
}

void check_model_override(const std::string& key, const Literal& literal) {
    const ModelKey* known = find_model_key(key);
    if (!known) return;
    const Json value = Json::parse(literal.json);
    const std::string shown = fmt::format("config_kwargs.{} = {}", key, literal.json);
    const std::string place = literal.place.empty() ? "" : fmt::format(" ({})", literal.place);
    if (!(known->nullable && value.is_null()) && !has_type(value, *known)) {
        throw Error(fmt::format("{} must be {}{}{}", shown, type_name(known->type),
                                known->nullable ? " or null" : "", place));
    }
    if (known->at_least && value.is_number() && value.get<double>() < *known->at_least) {
        throw Error(fmt::format("{} must be at least {}{}", shown, *known->at_least, place));
    }
}

}  // namespace moebius::config
