#include "moebius/config/fields.h"

#include <fmt/format.h>

#include "moebius/config/scalar.h"
#include "moebius/config/tree.h"

namespace moebius::config {
namespace {

std::string text_of(const bool* value) {
    return *value ? "true" : "false";
}
std::string text_of(const int64_t* value) {
    return fmt::format("{}", *value);
}
std::string text_of(const double* value) {
    return double_text(*value);
}
std::string text_of(const std::string* value) {
    return yaml_text(*value);
}
std::string text_of(const std::array<double, 2>* value) {
    return fmt::format("[{}, {}]", double_text((*value)[0]), double_text((*value)[1]));
}

std::string text_of(const std::vector<std::string>* value) {
    std::vector<std::string> parts;
    for (const std::string& item : *value) parts.push_back(yaml_text(item));
    return fmt::format("[{}]", fmt::join(parts, ", "));
}

template <class Value>
std::string text_of(const std::optional<Value>* value) {
    return *value ? text_of(&**value) : "null";
}

std::string text_of(const std::map<std::string, std::string>* value) {
    std::vector<std::string> parts;
    for (const auto& [key, item] : *value)
        parts.push_back(fmt::format("{}: {}", yaml_text(key), yaml_text(item)));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

std::string text_of(const Literals* value) {
    std::vector<std::string> parts;
    for (const auto& [key, item] : *value) parts.push_back(fmt::format("{}: {}", yaml_text(key), item.json));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

bool is_not_given(const Field& field) {
    if (auto* const* text = std::get_if<std::string*>(&field.value)) return (*text)->empty();
    if (auto* const* number = std::get_if<int64_t*>(&field.value)) return **number == kNotGiven;
    return false;
}

std::string number_text(double value) {
    return fmt::format("{}", value);
}

class KeyCollector : public PathVisitor {
  public:
    explicit KeyCollector(bool groups) : groups_(groups) {}
    void field(const Field& field) override { keys.push_back(full(field.key)); }
    void enter(std::string_view key, std::string_view help) override {
        PathVisitor::enter(key, help);
        if (groups_) keys.push_back(full());
    }

    std::vector<std::string> keys;

  private:
    bool groups_;
};

}  // namespace

std::string PathVisitor::full(std::string_view key) const {
    std::string name = fmt::format("{}", fmt::join(path_, "."));
    if (!name.empty() && !key.empty()) name += '.';
    return name.append(key);
}

std::vector<std::string> all_keys(bool groups) {
    KeyCollector collector(groups);
    TrainConfig config;
    fields(collector, config);
    return std::move(collector.keys);
}

std::string value_text(const Field& field) {
    if (field.required && is_not_given(field)) return std::string(kMissing);
    if (!field.null_means.empty() && is_not_given(field)) return "null";
    return std::visit([](const auto* value) { return text_of(value); }, field.value);
}

std::string range_text(const Range& range) {
    std::vector<std::string> parts;
    if (range.at_least) parts.push_back("at least " + number_text(*range.at_least));
    if (range.above) parts.push_back("above " + number_text(*range.above));
    if (range.at_most) parts.push_back("at most " + number_text(*range.at_most));
    if (range.below) parts.push_back("below " + number_text(*range.below));
    return fmt::format("{}", fmt::join(parts, " and "));
}

std::string range_violation(const Range& range, double value) {
    const bool fits = (!range.at_least || value >= *range.at_least) &&
                      (!range.above || value > *range.above) && (!range.at_most || value <= *range.at_most) &&
                      (!range.below || value < *range.below);
    return fits ? "" : "must be " + range_text(range);
}

}  // namespace moebius::config
