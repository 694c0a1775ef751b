#include "moebius/config/scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

namespace moebius::config {
namespace {

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

std::string_view unsigned_part(std::string_view text) {
    if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
    return text;
}

// Digits with at most one point and an optional exponent; at least one digit before the exponent.
bool is_decimal(std::string_view text) {
    size_t at = 0, digits = 0, points = 0;
    for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
        (is_digit(text[at]) ? digits : points) += 1;
    }
    if (digits == 0 || points > 1) return false;
    if (at == text.size()) return true;
    if (text[at] != 'e' && text[at] != 'E') return false;
    const std::string_view exponent = unsigned_part(text.substr(at + 1));
    return !exponent.empty() && std::all_of(exponent.begin(), exponent.end(), is_digit);
}

std::string_view without_plus(std::string_view text) {
    if (text.starts_with('+')) text.remove_prefix(1);
    return text;
}

}  // namespace

Looks looks_like(const std::string& text) {
    if (text == "true" || text == "false") return Looks::Bool;
    if (text == "null" || text == "~" || text == "Null" || text == "NULL") return Looks::Null;
    const std::string_view number = unsigned_part(text);
    if (is_decimal(number)) {
        if (number.size() > 1 && number[0] == '0' && is_digit(number[1])) return Looks::Octal;
        return std::all_of(number.begin(), number.end(), is_digit) ? Looks::Int : Looks::Float;
    }
    std::string ungrouped(number);
    if (std::erase(ungrouped, '_') > 0 && is_digit(number[0]) && is_decimal(ungrouped)) return Looks::Grouped;
    return Looks::Text;
}

std::optional<int64_t> to_int(const std::string& text) {
    if (looks_like(text) != Looks::Int) return std::nullopt;
    const std::string_view digits = without_plus(text);
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc{}) return std::nullopt;
    return value;
}

std::optional<double> to_double(const std::string& text) {
    const Looks looks = looks_like(text);
    if (looks != Looks::Int && looks != Looks::Float) return std::nullopt;
    const std::string_view digits = without_plus(text);
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc{} || !std::isfinite(value)) return std::nullopt;
    return value;
}

bool is_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const auto first = static_cast<unsigned char>(text[at++]);
        if (first < 0x80) continue;
        const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4) return false;  // a byte from within, an overlong one, too large
        uint32_t code = first & (0x3Fu >> more);
        for (int i = 0; i < more; ++i) {
            if (at == text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) return false;
            code = code << 6 | (static_cast<unsigned char>(text[at++]) & 0x3Fu);
        }
        const bool overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
        if (overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) return false;
    }
    return true;
}

std::string double_text(double value) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
}

std::string yaml_text(const std::string& text) {
    static constexpr std::array<std::string_view, 8> kWords = {"yes", "no", "on",   "off",
                                                               "y",   "n",  "true", "false"};
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool harmless_letters = std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return (c < 128 && std::isalnum(c)) || c == '_' || c == '.' || c == '/' || c == '-' || c == '+';
    });
    const bool harmless_begin =
        !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/' ||
                          text[0] == '_' || text.starts_with("./") || text.starts_with("../"));
    if (harmless_letters && harmless_begin && looks_like(lower) == Looks::Text &&
        std::find(kWords.begin(), kWords.end(), lower) == kWords.end()) {
        return text;
    }
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
            quoted += c;
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
            quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
            quoted += c;
        }
    }
    return quoted + '"';
}

std::vector<std::string> parts_of(std::string_view key) {
    std::vector<std::string> parts(1);
    for (const char c : key) {
        if (c == '.') {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

}  // namespace moebius::config
