// The keys of a config.json that config_kwargs may set although the file does not have them. Inside config/
// only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/config/schema.h"

namespace moebius::config {

enum class JsonType { Int, Number, Bool, String, List, Map };

struct ModelKey {
    std::string_view key;
    JsonType type;
    bool nullable = false;
    std::optional<double> at_least{};
    std::string_view other_spelling{};  // where else Hugging Face has kept the same thing
};

const std::vector<ModelKey>& model_keys();
const ModelKey* find_model_key(std::string_view key);

// Throws Error if the value is not of the type of a known key; nothing for keys that aren't in the table.
void check_model_override(const std::string& key, const Literal& value);

}  // namespace moebius::config
