// A Hugging Face config.json as a document with typed access. What the keys mean, a model family decides
// (models/). Keys are dotted paths: "hidden_size", "rope_parameters.rope_theta".
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/config/schema.h"

namespace moebius::config {

class ModelConfig {
  public:
    // `name_or_path`: a config.json, a directory that holds one, or NAME for models/NAME/config.json in one
    // of `config_dirs`. Throws Error naming what was looked for, or the file and line of a syntax error.
    static ModelConfig load(const std::string& name_or_path,
                            const std::vector<std::filesystem::path>& config_dirs,
                            const Literals& overrides = {});
    // `origin` stands for the file in messages.
    static ModelConfig parse(std::string_view json, const std::string& origin);

    ModelConfig(const ModelConfig& other);
    ModelConfig(ModelConfig&& other) noexcept;
    ModelConfig& operator=(ModelConfig other) noexcept;
    ~ModelConfig();

    // Sets config_kwargs. A key must be in the document or a known one; its type must fit. Where the document
    // has the other spelling of the key (rope_theta at the top or in rope_parameters), that one is set.
    // place_of() tells them from then on.
    void apply(const Literals& overrides);

    const std::string& origin() const { return origin_; }
    // Where a key's value stands: "command line" or "file.yaml:12" of config_kwargs, else the file.
    std::string place_of(std::string_view key) const;

    bool has(std::string_view key) const;      // present, null included
    bool is_null(std::string_view key) const;  // absent or null
    // Throw Error naming file and key if the key is absent, null or of another type. A number may be written
    // as an integer; an integer may not be written with a fraction or exponent.
    int64_t get_int(std::string_view key) const;
    double get_double(std::string_view key) const;
    bool get_bool(std::string_view key) const;
    std::string get_string(std::string_view key) const;
    std::vector<std::string> get_strings(std::string_view key) const;
    std::vector<int64_t> get_ints(std::string_view key) const;  // one integer counts as a list of one
    // `fallback` where the key is absent or null; still an Error where it has another type.
    int64_t get_int(std::string_view key, int64_t fallback) const;
    double get_double(std::string_view key, double fallback) const;
    bool get_bool(std::string_view key, bool fallback) const;
    std::string get_string(std::string_view key, const std::string& fallback) const;

    void set_int(std::string_view key, int64_t value);
    void set_double(std::string_view key, double value);
    void set_bool(std::string_view key, bool value);
    void set_string(std::string_view key, const std::string& value);
    void set_null(std::string_view key);
    void erase(std::string_view key);  // no effect if absent

    std::vector<std::string> keys() const;               // of the top level
    std::string value_json(std::string_view key) const;  // "null" if absent; for messages and comparisons

    // As Hugging Face writes it: keys sorted, two blanks of indentation, a newline at the end.
    std::string to_json() const;

  private:
    struct Document;
    explicit ModelConfig(std::unique_ptr<Document> document, std::string origin);

    std::unique_ptr<Document> document_;
    std::string origin_;
    std::map<std::string, std::string, std::less<>> places_;  // of keys that config_kwargs set
};

}  // namespace moebius::config
