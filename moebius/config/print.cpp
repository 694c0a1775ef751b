#include "moebius/config/print.h"

#include <fmt/format.h>

#include "moebius/config/fields.h"
#include "moebius/config/model_keys.h"
#include "moebius/config/scalar.h"

namespace moebius::config {
namespace {

class YamlPrinter : public PathVisitor {
  public:
    explicit YamlPrinter(const std::map<std::string, std::string>& places) : places_(places) {}

    void field(const Field& field) override {
        if (auto* const* names = std::get_if<std::map<std::string, std::string>*>(&field.value)) {
            std::map<std::string, std::string> values;
            for (const auto& [name, value] : **names) values[name] = yaml_text(value);
            free_map(field.key, values);
        } else if (auto* const* literals = std::get_if<Literals*>(&field.value)) {
            std::map<std::string, std::string> values;
            for (const auto& [name, value] : **literals) values[name] = value.json;
            free_map(field.key, values);
        } else {
            line(field.key, value_text(field), full(field.key), path().size());
        }
    }

    void enter(std::string_view key, std::string_view help) override {
        out += fmt::format("{:{}}{}:\n", "", 2 * path().size(), key);
        PathVisitor::enter(key, help);
    }

    std::string out;

  private:
    void free_map(std::string_view key, const std::map<std::string, std::string>& values) {
        if (values.empty()) {
            line(key, "{}", full(key), path().size());
            return;
        }
        out += fmt::format("{:{}}{}:\n", "", 2 * path().size(), key);
        for (const auto& [name, value] : values) {
            line(yaml_text(name), value, full(key) + "." + name, path().size() + 1);
        }
    }

    void line(std::string_view key, const std::string& value, const std::string& dotted, size_t depth) {
        std::string text = fmt::format("{:{}}{}: {}", "", 2 * depth, key, value);
        if (!places_.empty()) {
            const auto place = places_.find(dotted);
            text = fmt::format("{:<52}  # {}", text, place == places_.end() ? "default" : place->second);
        }
        out += text + "\n";
    }

    const std::map<std::string, std::string>& places_;
};

std::vector<std::string> choices_of(const std::string& key, const Field& field, const Choices& choices) {
    const auto given = choices.find(key);
    return given == choices.end() ? field.choices : given->second;
}

struct TypeName {
    std::string operator()(const bool*) const { return "true or false"; }
    std::string operator()(const int64_t*) const { return "whole number"; }
    std::string operator()(const double*) const { return "number"; }
    std::string operator()(const std::string*) const { return "text"; }
    std::string operator()(const std::array<double, 2>*) const { return "two numbers"; }
    std::string operator()(const std::vector<std::string>*) const { return "list of names"; }
    std::string operator()(const std::map<std::string, std::string>*) const { return "map of names"; }
    std::string operator()(const Literals*) const { return "map"; }
    template <class Value>
    std::string operator()(const std::optional<Value>*) const {
        return (*this)(static_cast<const Value*>(nullptr)) + " or null";
    }
};

// "whole number at least 1", "one of fp32, bf16".
std::string type_text(const std::string& key, const Field& field, const Choices& choices) {
    const std::vector<std::string> names = choices_of(key, field, choices);
    const bool is_map = std::holds_alternative<std::map<std::string, std::string>*>(field.value);
    const bool is_list = std::holds_alternative<std::optional<std::vector<std::string>>*>(field.value);
    if (is_list && !names.empty()) return fmt::format("list of {}; or null", fmt::join(names, ", "));
    std::string text = names.empty() || is_map ? std::visit(TypeName{}, field.value)
                                               : fmt::format("one of {}", fmt::join(names, ", "));
    if (is_map && !names.empty()) text += fmt::format(" for {}", fmt::join(names, ", "));
    if (const std::string range = range_text(field.range); !range.empty()) text += ", " + range;
    if (!field.null_means.empty()) text += fmt::format(", or null for {}", field.null_means);
    return text;
}

std::string not_yet_text(const Field& field) {
    if (field.not_yet.empty()) return "";
    const std::string others =
        field.honoured.empty() ? "the default" : fmt::format("{}", fmt::join(field.honoured, ", "));
    return fmt::format("Only {} for now: {}.", others, field.not_yet);
}

std::string default_text(const Field& field) {
    const std::string value = value_text(field);
    return value == "???" ? "required" : value;
}

class HelpPrinter : public PathVisitor {
  public:
    explicit HelpPrinter(const Choices& choices) : choices_(choices) {}

    void field(const Field& field) override {
        const std::string key = full(field.key);
        const std::string value = default_text(field);
        out += fmt::format("  {} ({}; {})\n      {}.", key, type_text(key, field, choices_),
                           value == "required" ? value : "default " + value, field.help);
        if (const std::string limits = not_yet_text(field); !limits.empty()) out += " " + limits;
        out += "\n";
    }

    std::string out;

  private:
    const Choices& choices_;
};

// For a cell of a Markdown table: '|' ends a cell, '<' begins a tag.
std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (c == '|') result += '\\';
        result += c == '<' ? std::string("&lt;") : std::string(1, c);
    }
    return result;
}

// A Markdown table a group; nested groups follow the one they are in.
class DocsPrinter : public PathVisitor {
  public:
    explicit DocsPrinter(const Choices& choices) : choices_(choices) { begin_section("A run", ""); }

    void field(const Field& field) override {
        const std::string key = full(field.key);
        const std::string limits = not_yet_text(field);
        sections_[open_.back()].rows +=
            fmt::format("| `{}` | {} | {} | {}.{} |\n", key, escaped(type_text(key, field, choices_)),
                        shown_default(field), escaped(field.help), limits.empty() ? "" : " " + limits);
    }

    void enter(std::string_view key, std::string_view help) override {
        PathVisitor::enter(key, help);
        begin_section(fmt::format("`{}`", full()), std::string(help));
    }

    void leave() override {
        PathVisitor::leave();
        open_.pop_back();
    }

    std::string page() const {
        std::string text;
        for (const Section& section : sections_) {
            if (section.rows.empty()) continue;
            text += fmt::format("\n## {}\n\n", section.title);
            if (!section.help.empty()) text += section.help + ".\n\n";
            text += "| key | value | default | meaning |\n|---|---|---|---|\n" + section.rows;
        }
        return text;
    }

  private:
    struct Section {
        std::string title, help, rows;
    };

    void begin_section(std::string title, std::string help) {
        open_.push_back(sections_.size());
        sections_.push_back({std::move(title), std::move(help), ""});
    }

    static std::string shown_default(const Field& field) {
        const std::string value = default_text(field);
        return value == "required" ? value : fmt::format("`{}`", value);
    }

    const Choices& choices_;
    std::vector<Section> sections_;
    std::vector<size_t> open_;
};

constexpr std::string_view kDocsHead = R"(# Configuration

<!-- Written by `moebius config --docs` from the schema; change the schema, not this page. -->

`moebius train --config-name NAME key.sub=value …` reads `NAME.yaml`, then the overrides. Every key, its default and its
range stand below; `moebius config …` prints the configuration that a command line gives, with `--places` the place of each value too.

- `--config-name NAME` takes `NAME.yaml` from `--config-path DIR`, then from the shipped configurations;
  `--config FILE` reads one file.
- A `defaults:` list names files to start from (`defaults: [L0_sanity, _self_]`); later ones win, `_self_` is the file
  itself. `dir/name` or `dir: name` reads `dir/name.yaml` for the keys below `dir`.
- `key=value` sets, `~key` goes back to the default; values may be quoted, `[lists]`, `{maps: 1}` or `null`.
- A required key is `???` until it is given. Unknown keys, wrong types, values out of range, keys that contradict each
  other, and keys that this build does not honour are errors, never ignored.
- Booleans are `true` and `false` only; numbers are decimal, without leading zeros or underscores.
)";

std::string model_keys_text() {
    std::string text =
        "\n## Keys of `config.json` that `config_kwargs` may add\n\n"
        "`config_kwargs` may set every key that the model's `config.json` has, and these:\n\n";
    for (const ModelKey& key : model_keys()) {
        text += fmt::format("- `{}`\n", key.key);
    }
    return text;
}

}  // namespace

std::string to_yaml(const TrainConfig& config, const std::map<std::string, std::string>& places) {
    YamlPrinter printer(places);
    TrainConfig copy = config;
    fields(printer, copy);
    return std::move(printer.out);
}

std::string help_text(const Choices& choices) {
    HelpPrinter printer(choices);
    TrainConfig config;
    fields(printer, config);
    return std::move(printer.out);
}

std::string docs_page(const Choices& choices) {
    DocsPrinter printer(choices);
    TrainConfig config;
    fields(printer, config);
    return std::string(kDocsHead) + printer.page() + model_keys_text();
}

}  // namespace moebius::config
