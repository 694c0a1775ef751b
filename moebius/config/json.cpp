#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/config/scalar.h"
#include "moebius/config/tree.h"

namespace moebius::config {
namespace {

using Json = nlohmann::json;

Json scalar_to_json(const Tree& tree, const std::string& key) {
    const auto fail = [&](std::string_view must) {
        throw Error(fmt::format("{} = {} must be {} ({})", key, tree.str(), must, tree.place));
    };
    if (tree.quoted) return tree.text;
    switch (looks_like(tree.text)) {
        case Looks::Bool:
            return tree.text == "true";
        case Looks::Null:
            return nullptr;
        case Looks::Int:
            if (const auto value = to_int(tree.text)) return *value;
            fail("a whole number that fits into 64 bits");
            break;
        case Looks::Float:
            if (const auto value = to_double(tree.text)) return *value;
            fail("a number that fits into a double");
            break;
        case Looks::Octal:
            fail("written without leading zeros (numbers are decimal), or in quotes");
            break;
        case Looks::Grouped:
            fail("written without underscores, or in quotes");
            break;
        case Looks::Text:
            break;
    }
    return tree.text;
}

Json tree_to_json(const Tree& tree, const std::string& key) {
    switch (tree.kind) {
        case Tree::Kind::Null:
            return nullptr;
        case Tree::Kind::Scalar:
            return scalar_to_json(tree, key);
        case Tree::Kind::Sequence: {
            Json list = Json::array();
            for (const Tree& item : tree.items) list.push_back(tree_to_json(item, key));
            return list;
        }
        case Tree::Kind::Map: {
            Json map = Json::object();
            for (const Member& member : tree.members) {
                map[member.key] = tree_to_json(member.value, key + "." + member.key);
            }
            return map;
        }
    }
    return nullptr;
}

}  // namespace

std::string to_json_text(const Tree& tree, const std::string& key) {
    try {
        return tree_to_json(tree, key).dump();
    } catch (const Json::type_error&) {
        throw Error(fmt::format("{} is not UTF-8 text ({})", key, tree.place));
    }
}

}  // namespace moebius::config
