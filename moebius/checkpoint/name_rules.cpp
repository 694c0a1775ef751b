#include "moebius/checkpoint/name_rules.h"

#include <set>
#include <string_view>

#include "moebius/base/check.h"

namespace moebius::checkpoint {

namespace {

bool matches(std::string_view pattern, std::string_view name) {
    while (!pattern.empty() && pattern[0] != '*') {
        if (name.empty() || name[0] != pattern[0]) return false;
        pattern.remove_prefix(1);
        name.remove_prefix(1);
    }
    if (pattern.empty()) return name.empty();
    pattern.remove_prefix(1);
    for (;; name.remove_prefix(1)) {
        if (matches(pattern, name)) return true;
        if (name.empty()) return false;
    }
}

}  // namespace

bool is_ignored(const NameLayout& layout, const std::string& name) {
    for (const std::string& pattern : layout.ignored)
        if (matches(pattern, name)) return true;
    return false;
}

void check_pieces(const std::vector<ExportPiece>& pieces) {
    std::set<std::string_view> seen;
    for (size_t i = 0; i < pieces.size();) {
        const ExportPiece& first = pieces[i];
        MOEBIUS_CHECK(seen.insert(first.external_name).second, first.external_name, " stands in two places");
        int64_t filled = 0;
        for (; i < pieces.size() && pieces[i].external_name == first.external_name; ++i) {
            MOEBIUS_CHECK(pieces[i].external_shape == first.external_shape, first.external_name);
            MOEBIUS_CHECK(pieces[i].external_begin == filled && pieces[i].count >= 0, first.external_name,
                          " at ", filled);
            filled += pieces[i].count;
        }
        MOEBIUS_CHECK(filled == first.external_shape.numel(), first.external_name, " ",
                      first.external_shape.str(), ": ", filled, " elements given");
    }
}

}  // namespace moebius::checkpoint
