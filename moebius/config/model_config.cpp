#include "moebius/config/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "moebius/base/error.h"
#include "moebius/base/nesting.h"
#include "moebius/config/model_keys.h"
#include "moebius/config/nearest.h"
#include "moebius/config/scalar.h"
#include "moebius/config/text_file.h"

namespace fs = std::filesystem;

namespace moebius::config {
namespace {

using Json = nlohmann::json;

constexpr size_t kLargestFile = 16 << 20;

const Json* find(const Json& root, std::string_view key) {
    const Json* at = &root;
    for (const std::string& part : parts_of(key)) {
        if (!at->is_object()) return nullptr;
        const auto member = at->find(part);
        if (member == at->end()) return nullptr;
        at = &*member;
    }
    return at;
}

// The value at `key`, made if absent; a null on the way becomes an object.
Json& make(Json& root, std::string_view key, const std::string& origin) {
    Json* at = &root;
    std::string so_far;
    for (const std::string& part : parts_of(key)) {
        if (at->is_null()) *at = Json::object();
        if (!at->is_object()) {
            throw Error(fmt::format("{}: {} is not a map, so {} cannot be set", origin, so_far, key));
        }
        at = &(*at)[part];
        so_far += (so_far.empty() ? "" : ".") + part;
    }
    return *at;
}

// Line of a byte offset, from 1.
size_t line_at(std::string_view text, size_t byte) {
    return 1 +
           static_cast<size_t>(std::count(text.begin(), text.begin() + std::min(byte, text.size()), '\n'));
}

// Parses and refuses duplicate keys, of which JSON readers keep the one or the other in silence.
Json parse_document(std::string_view text, const std::string& origin) {
    std::vector<std::vector<std::string>> seen;
    const auto on_event = [&](int depth, Json::parse_event_t event, Json& parsed) {
        if (depth > static_cast<int>(kDeepestNesting))
            throw Error(fmt::format("{}: nested more than {} deep", origin, kDeepestNesting));
        if (event == Json::parse_event_t::object_start) seen.emplace_back();
        if (event == Json::parse_event_t::object_end) seen.pop_back();
        if (event == Json::parse_event_t::key) {
            const std::string key = parsed.get<std::string>();
            if (std::find(seen.back().begin(), seen.back().end(), key) != seen.back().end()) {
                throw Error(fmt::format("{}: key {} appears twice in one map", origin, key));
            }
            seen.back().push_back(key);
        }
        return true;
    };
    try {
        return Json::parse(text.begin(), text.end(), on_event);
    } catch (const Json::parse_error& error) {
        throw Error(
            fmt::format("{}:{}: not valid JSON", origin, line_at(text, error.byte > 0 ? error.byte - 1 : 0)));
    } catch (const Json::exception& error) {
        throw Error(fmt::format("{}: not valid JSON: {}", origin, error.what()));
    }
}

fs::path locate(const std::string& name_or_path, const std::vector<fs::path>& config_dirs) {
    std::error_code error;
    const fs::path path(name_or_path);
    if (fs::is_regular_file(path, error)) return path;
    if (fs::exists(path / "config.json", error)) return path / "config.json";
    std::vector<std::string> known;
    for (const fs::path& dir : config_dirs) {
        const fs::path shipped = dir / "models" / name_or_path / "config.json";
        if (fs::exists(shipped, error)) return shipped;
        for (const auto& entry : fs::directory_iterator(dir / "models", error)) {
            known.push_back(entry.path().filename().string());
        }
    }
    std::sort(known.begin(), known.end());
    const std::string what = fs::is_directory(path, error)
                                 ? "is a directory without a config.json"
                                 : "is neither a config.json, a directory that holds one, nor "
                                   "the name of a shipped model";
    throw Error(
        fmt::format("config_name_or_path = {} {}{}", name_or_path, what, suggestion(name_or_path, known)));
}

}  // namespace

struct ModelConfig::Document {
    Json json;
};

namespace {

// The value at `key` if `accepts` takes it; an Error that names file, key and value otherwise.
template <class Accepts>
const Json& typed(const Json& root, std::string_view key, const std::string& origin, std::string_view must,
                  Accepts accepts) {
    const Json* value = find(root, key);
    if (!value) throw Error(fmt::format("{}: key {} is missing; it must be {}", origin, key, must));
    if (!accepts(*value)) {
        std::string shown = value->dump(-1, ' ', false, Json::error_handler_t::replace);
        if (shown.size() > 80) shown = shown.substr(0, 80) + "…";
        throw Error(fmt::format("{}: {} = {} must be {}", origin, key, shown, must));
    }
    return *value;
}

bool is_int(const Json& value) {
    // Not 18446744073709551615, which would be read as -1.
    return value.is_number_integer() &&
           !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
}
bool is_number(const Json& value) {
    return value.is_number();
}
bool is_bool(const Json& value) {
    return value.is_boolean();
}
bool is_string(const Json& value) {
    return value.is_string();
}

// Two documents' values are of one kind: a number for a number, text for text.
bool same_kind(const Json& a, const Json& b) {
    return a.type() == b.type() || (a.is_number_integer() && b.is_number_integer()) ||
           (a.is_number_float() && b.is_number());
}

}  // namespace

ModelConfig::ModelConfig(std::unique_ptr<Document> document, std::string origin)
    : document_(std::move(document)), origin_(std::move(origin)) {}
ModelConfig::ModelConfig(const ModelConfig& other)
    : document_(std::make_unique<Document>(*other.document_)),
      origin_(other.origin_),
      places_(other.places_) {}
ModelConfig::ModelConfig(ModelConfig&& other) noexcept = default;
ModelConfig::~ModelConfig() = default;

ModelConfig& ModelConfig::operator=(ModelConfig other) noexcept {
    document_.swap(other.document_);
    origin_.swap(other.origin_);
    places_.swap(other.places_);
    return *this;
}

ModelConfig ModelConfig::load(const std::string& name_or_path, const std::vector<fs::path>& config_dirs,
                              const Literals& overrides) {
    const fs::path file = locate(name_or_path, config_dirs);
    ModelConfig config = parse(read_text_file(file, kLargestFile, "a config.json"), file.string());
    config.apply(overrides);
    return config;
}

ModelConfig ModelConfig::parse(std::string_view json, const std::string& origin) {
    auto document = std::make_unique<Document>(Document{parse_document(json, origin)});
    if (!document->json.is_object())
        throw Error(fmt::format("{}: a model configuration is a JSON object", origin));
    return ModelConfig(std::move(document), origin);
}

void ModelConfig::apply(const Literals& overrides) {
    for (const auto& [key, literal] : overrides) {
        check_model_override(key, literal);
        const ModelKey* known = find_model_key(key);
        const Json* present = find(document_->json, key);
        const Json value = Json::parse(literal.json);
        if (!known && !present) {
            std::vector<std::string> names = keys();
            for (const ModelKey& model_key : model_keys()) names.emplace_back(model_key.key);
            throw Error(fmt::format("unknown key config_kwargs.{}{}: {} has no such key{}", key,
                                    literal.place.empty() ? "" : fmt::format(" ({})", literal.place), origin_,
                                    suggestion(key, names)));
        }
        if (!known && !present->is_null() && !value.is_null() && !same_kind(*present, value)) {
            throw Error(fmt::format("config_kwargs.{} = {} must be of the type of {} in {}{}", key,
                                    literal.json, present->dump(), origin_,
                                    literal.place.empty() ? "" : fmt::format(" ({})", literal.place)));
        }
        const bool other = known && !known->other_spelling.empty() && !present && has(known->other_spelling);
        const std::string_view spelling = other ? known->other_spelling : std::string_view(key);
        make(document_->json, spelling, origin_) = value;
        places_[std::string(spelling)] = literal.place.empty() ? "config_kwargs" : literal.place;
    }
}

std::string ModelConfig::place_of(std::string_view key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? origin_ : found->second;
}

bool ModelConfig::has(std::string_view key) const {
    return find(document_->json, key) != nullptr;
}

bool ModelConfig::is_null(std::string_view key) const {
    const Json* value = find(document_->json, key);
    return !value || value->is_null();
}

int64_t ModelConfig::get_int(std::string_view key) const {
    return typed(document_->json, key, place_of(key), "a whole number", is_int).get<int64_t>();
}

double ModelConfig::get_double(std::string_view key) const {
    return typed(document_->json, key, place_of(key), "a number", is_number).get<double>();
}

bool ModelConfig::get_bool(std::string_view key) const {
    return typed(document_->json, key, place_of(key), "true or false", is_bool).get<bool>();
}

std::string ModelConfig::get_string(std::string_view key) const {
    return typed(document_->json, key, place_of(key), "text", is_string).get<std::string>();
}

std::vector<std::string> ModelConfig::get_strings(std::string_view key) const {
    const auto accepts = [](const Json& v) {
        return v.is_array() && std::all_of(v.begin(), v.end(), is_string);
    };
    return typed(document_->json, key, place_of(key), "a list of texts", accepts)
        .get<std::vector<std::string>>();
}

std::vector<int64_t> ModelConfig::get_ints(std::string_view key) const {
    const auto accepts = [](const Json& v) {
        return is_int(v) || (v.is_array() && std::all_of(v.begin(), v.end(), is_int));
    };
    const Json& value =
        typed(document_->json, key, place_of(key), "a whole number or a list of them", accepts);
    if (is_int(value)) return {value.get<int64_t>()};
    return value.get<std::vector<int64_t>>();
}

int64_t ModelConfig::get_int(std::string_view key, int64_t fallback) const {
    return is_null(key) ? fallback : get_int(key);
}

double ModelConfig::get_double(std::string_view key, double fallback) const {
    return is_null(key) ? fallback : get_double(key);
}

bool ModelConfig::get_bool(std::string_view key, bool fallback) const {
    return is_null(key) ? fallback : get_bool(key);
}

std::string ModelConfig::get_string(std::string_view key, const std::string& fallback) const {
    return is_null(key) ? fallback : get_string(key);
}

void ModelConfig::set_int(std::string_view key, int64_t value) {
    make(document_->json, key, origin_) = value;
}
void ModelConfig::set_double(std::string_view key, double value) {
    make(document_->json, key, origin_) = value;
}
void ModelConfig::set_bool(std::string_view key, bool value) {
    make(document_->json, key, origin_) = value;
}
void ModelConfig::set_string(std::string_view key, const std::string& value) {
    make(document_->json, key, origin_) = value;
}
void ModelConfig::set_null(std::string_view key) {
    make(document_->json, key, origin_) = nullptr;
}

void ModelConfig::erase(std::string_view key) {
    if (!has(key)) return;
    const size_t dot = key.rfind('.');
    Json& parent =
        dot == std::string_view::npos ? document_->json : make(document_->json, key.substr(0, dot), origin_);
    parent.erase(std::string(dot == std::string_view::npos ? key : key.substr(dot + 1)));
}

std::vector<std::string> ModelConfig::keys() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : document_->json.items()) names.push_back(key);
    return names;
}

std::string ModelConfig::value_json(std::string_view key) const {
    const Json* value = find(document_->json, key);
    return value ? value->dump() : "null";
}

std::string ModelConfig::to_json() const {
    // Readers of the folder take a whole number for another type than the key's.
    Json written = document_->json;
    for (const ModelKey& key : model_keys()) {
        const auto found = written.find(key.key);
        if (key.type == JsonType::Number && found != written.end() && found->is_number_integer())
            *found = found->get<double>();
    }
    return written.dump(2) + "\n";
}

}  // namespace moebius::config
