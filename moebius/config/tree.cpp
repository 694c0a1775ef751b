#include "moebius/config/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace moebius::config {
namespace {

constexpr size_t kShownAtMost = 80;

std::string shown(const Tree& tree) {
    switch (tree.kind) {
        case Tree::Kind::Null:
            return "null";
        case Tree::Kind::Scalar:
            return tree.quoted ? fmt::format("\"{}\"", tree.text) : tree.text;
        case Tree::Kind::Sequence: {
            std::vector<std::string> parts;
            for (const Tree& item : tree.items) parts.push_back(shown(item));
            return fmt::format("[{}]", fmt::join(parts, ", "));
        }
        case Tree::Kind::Map: {
            std::vector<std::string> parts;
            for (const Member& member : tree.members) {
                parts.push_back(fmt::format("{}: {}", member.key, shown(member.value)));
            }
            return fmt::format("{{{}}}", fmt::join(parts, ", "));
        }
    }
    return "";
}

}  // namespace

const Tree* Tree::find(std::string_view key) const {
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.key == key; });
    return found == members.end() ? nullptr : &found->value;
}

Tree* Tree::find(std::string_view key) {
    return const_cast<Tree*>(std::as_const(*this).find(key));
}

Tree& Tree::operator[](std::string_view key) {
    if (Tree* found = find(key)) return *found;
    members.push_back({std::string(key), {}});
    return members.back().value;
}

void Tree::erase(std::string_view key) {
    std::erase_if(members, [&](const Member& m) { return m.key == key; });
}

std::string Tree::str() const {
    std::string text = shown(*this);
    if (text.size() > kShownAtMost) text = text.substr(0, kShownAtMost) + "…";
    return text;
}

void merge(Tree& base, Tree over) {
    if (!base.is_map() || !over.is_map()) {
        base = std::move(over);
        return;
    }
    base.place = over.place;
    for (Member& member : over.members) {
        if (Tree* old = base.find(member.key)) {
            merge(*old, std::move(member.value));
        } else {
            base.members.push_back(std::move(member));
        }
    }
}

}  // namespace moebius::config
