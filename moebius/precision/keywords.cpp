#include "moebius/precision/keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moebius/base/error.h"

namespace moebius::precision {
namespace {

constexpr const char* kKeywords = "fp8_config.fp8_recipe_kwargs";

std::string text(const KeywordValue& value) {
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
    if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
    if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
    return std::get<std::string>(value);
}

template <class Strings>
std::string listed(const Strings& strings) {
    std::string all;
    for (const auto& string : strings) all += (all.empty() ? "" : ", ") + string;
    return all;
}

}  // namespace

KeywordReader::KeywordReader(std::string recipe, std::string fp8_format, const Keywords& keywords,
                             const std::map<std::string, std::string>& places)
    : recipe_(std::move(recipe)), fp8_format_(std::move(fp8_format)), keywords_(keywords), places_(places) {}

const KeywordValue* KeywordReader::find(const std::string& key) {
    known_.insert(key);
    const auto found = keywords_.find(key);
    return found == keywords_.end() ? nullptr : &found->second;
}

void KeywordReader::fail(const std::string& key, const std::string& problem) const {
    const auto found = keywords_.find(key);
    const std::string value = found == keywords_.end() ? "" : " = " + text(found->second);
    const auto place = places_.find(key);
    throw Error(fmt::format("{}.{}{} ({}): {}{}", kKeywords, key, value, recipe_, problem,
                            place == places_.end() ? "" : " (" + place->second + ")"));
}

std::optional<bool> KeywordReader::flag(const std::string& key) {
    const KeywordValue* value = find(key);
    if (!value) return {};
    const auto* flag = std::get_if<bool>(value);
    if (!flag) fail(key, "true or false is expected");
    return *flag;
}

std::optional<int64_t> KeywordReader::integer(const std::string& key, int64_t least, int64_t most) {
    const KeywordValue* value = find(key);
    if (!value) return {};
    const auto* integer = std::get_if<int64_t>(value);
    if (!integer || *integer < least || *integer > most)
        fail(key, fmt::format("an integer from {} to {} is expected", least, most));
    return *integer;
}

std::optional<double> KeywordReader::number(const std::string& key, double least) {
    const KeywordValue* value = find(key);
    if (!value) return {};
    double number = NAN;
    if (const auto* real = std::get_if<double>(value)) number = *real;
    if (const auto* integer = std::get_if<int64_t>(value)) number = static_cast<double>(*integer);
    if (!(number >= least && std::isfinite(static_cast<float>(number))))
        fail(key, fmt::format("a number from {} on that fp32 holds is expected", least));
    return number;
}

std::optional<std::string> KeywordReader::word(const std::string& key,
                                               const std::vector<std::string>& allowed) {
    const KeywordValue* value = find(key);
    if (!value) return {};
    const auto* word = std::get_if<std::string>(value);
    if (!word || std::find(allowed.begin(), allowed.end(), *word) == allowed.end())
        fail(key, "one of " + listed(allowed) + " is expected");
    return *word;
}

void KeywordReader::only(const std::string& key, bool value, const std::string& why) {
    const std::optional<bool> given = flag(key);
    if (given && *given != value) fail(key, why);
}
void KeywordReader::only(const std::string& key, int64_t value, const std::string& why) {
    const KeywordValue* given = find(key);
    if (given && !std::holds_alternative<int64_t>(*given)) fail(key, "an integer is expected");
    if (given && *given != KeywordValue(value)) fail(key, why);
}

bool KeywordReader::hybrid(const std::string& standard) {
    const std::optional<std::string> keyword = word("fp8_format", {"E4M3", "HYBRID"});
    if (!fp8_format_.empty() && fp8_format_ != "E4M3" && fp8_format_ != "HYBRID") {
        throw Error(
            fmt::format("fp8_config.fp8_format = {} ({}): E4M3 or HYBRID is expected", fp8_format_, recipe_));
    }
    if (keyword && !fp8_format_.empty() && *keyword != fp8_format_)
        fail("fp8_format", "fp8_config.fp8_format = " + fp8_format_ + " says otherwise");
    return (keyword ? *keyword : fp8_format_.empty() ? standard : fp8_format_) == "HYBRID";
}

void KeywordReader::done() const {
    for (const auto& [key, value] : keywords_) {
        if (!known_.count(key)) fail(key, "there is no such keyword; there are " + listed(known_));
    }
}

void read_tensor_rules(KeywordReader& reader, const char* key_of_all, std::optional<bool> all, bool standard,
                       Recipe& recipe) {
    constexpr const char* kTensors[] = {"fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad"};
    for (size_t role = 0; role < 3; ++role) {
        const std::string tensor = kTensors[role], power = tensor + ".power_2_scale";
        const std::optional<bool> own = reader.flag(power);
        if (own && all && *own != *all) reader.fail(power, std::string(key_of_all) + " says otherwise");
        recipe.tensors[role].power_of_two = own ? *own : all.value_or(standard);
        recipe.tensors[role].amax_epsilon =
            static_cast<float>(reader.number(tensor + ".amax_epsilon", 0).value_or(0));
    }
}

void read_accumulation(KeywordReader& reader, Recipe& recipe) {
    constexpr const char* kProducts[] = {"fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"};
    for (size_t use = 0; use < 3; ++use) {
        const std::string key = std::string(kProducts[use]) + ".use_split_accumulator";
        const std::optional<bool> split = reader.flag(key);
        if (!split) continue;
        if (!*split && recipe.source == ScaleSource::Block)
            reader.fail(key, "scales of blocks are applied to sums in fp32, so it can only be true");
        recipe.fast_accumulation[use] = !*split;
    }
}

void set_elements(Recipe& recipe, bool hybrid) {
    for (TensorRule& rule : recipe.tensors) rule.element = DType::F8E4M3;
    if (hybrid) recipe.tensors[static_cast<size_t>(Role::GradOutput)].element = DType::F8E5M2;
}

void refuse_attention(KeywordReader& reader) {
    for (const char* key : {"fp8_dpa", "fp8_mha"})
        reader.only(key, false, "attention's own products are in bf16");
}

}  // namespace moebius::precision
