// Configuration before it has types: what YAML files and the command line say, with the place of each value.
// Inside config/ only.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/config/schema.h"

namespace moebius::config {

inline constexpr std::string_view kCommandLine = "command line";
inline constexpr std::string_view kMissing = "???";

struct Member;

struct Tree {
    enum class Kind { Null, Scalar, Sequence, Map };
    Kind kind = Kind::Null;
    std::string text{};             // Scalar: as written, without quotes
    bool quoted = false;            // Scalar: in quotes, therefore a string whatever it looks like
    std::string place{};            // "file.yaml:12" or "command line"
    std::vector<Tree> items{};      // Sequence
    std::vector<Member> members{};  // Map, in the order of the file

    bool is_map() const { return kind == Kind::Map; }
    bool is_missing() const { return kind == Kind::Scalar && text == kMissing; }
    Tree* find(std::string_view key);
    const Tree* find(std::string_view key) const;
    // The member's value, made if absent.
    Tree& operator[](std::string_view key);
    void erase(std::string_view key);
    // The value in one short line, for messages.
    std::string str() const;
};

struct Member {
    std::string key;
    Tree value;
};

// Maps are joined key by key; anything else in `over` replaces what `base` has.
void merge(Tree& base, Tree over);

// Reads a YAML file whose root is a map (or empty). Throws Error with file and line on what YAML readers
// differ about: duplicate keys, merge keys, several documents; and on what is no configuration at all.
// `shown` stands for the file in places. `package` receives the name in a leading "# @package NAME" line, if
// there is one.
Tree read_yaml(const std::filesystem::path& file, std::string* package = nullptr);
Tree parse_yaml(const std::string& text, const std::string& shown);

// Applies "a.b=c", "+a.b=c", "++a.b=c", "~a.b", with the values of Hydra's grammar: [lists], {maps}, quotes,
// null.
void apply_override(Tree& root, const std::string& text);

// A tree as JSON text, its scalars typed by their looks (true, 3, 1e-5, null; quoted ones are strings); `key`
// for errors.
std::string to_json_text(const Tree& tree, const std::string& key);

}  // namespace moebius::config
