#include "moebius/config/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace moebius::config {
namespace {

constexpr size_t kListedAtMost = 12;

struct OtherName {
    std::string_view other, ours;
};
constexpr OtherName kOtherNames[] = {
    {"gpu", "cuda"},      {"nvidia", "cuda"}, {"bfloat16", "bf16"}, {"float32", "fp32"},
    {"float", "fp32"},    {"single", "fp32"}, {"eager", "loop"},    {"grouped_mm", "grouped_linear"},
    {"dna", "nucleotide"}};

bool same_letter(char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

}  // namespace

int64_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<int64_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
    for (size_t i = 1; i <= a.size(); ++i) {
        before_last.swap(last);
        last.swap(row);
        row[0] = static_cast<int64_t>(i);
        for (size_t j = 1; j <= b.size(); ++j) {
            const int64_t substituted = last[j - 1] + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, substituted});
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1])) {
                row[j] = std::min(row[j], before_last[j - 2] + 1);
            }
        }
    }
    return row[b.size()];
}

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates) {
    std::optional<std::string> found;
    constexpr size_t kLongest = 256;  // what is longer is no key, and would take its square in time
    if (name.size() > kLongest) return found;
    for (const OtherName& row : kOtherNames) {
        const bool known = std::find(candidates.begin(), candidates.end(), row.ours) != candidates.end();
        if (known && edit_distance(name, row.other) == 0) return std::string(row.ours);
    }
    int64_t best = std::max<int64_t>(1, static_cast<int64_t>(name.size()) / 3) + 1;
    for (const std::string& candidate : candidates) {
        const int64_t distance = edit_distance(name, candidate);
        // A name that shares no letter with the candidate is no typing mistake, however short both are.
        if (distance < best && distance < static_cast<int64_t>(std::max(name.size(), candidate.size()))) {
            best = distance;
            found = candidate;
        }
    }
    return found;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
    const std::optional<std::string> found = nearest(name, candidates);
    return found ? fmt::format("; did you mean {}?", *found) : "";
}

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
    if (std::string text = did_you_mean(name, candidates); !text.empty()) return text;
    if (candidates.empty() || candidates.size() > kListedAtMost) return "";
    return fmt::format("; known: {}", fmt::join(candidates, ", "));
}

}  // namespace moebius::config
