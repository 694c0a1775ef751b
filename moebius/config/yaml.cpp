// yaml-cpp → Tree. yaml-cpp lets duplicate keys pass and reads yes as true and 010 as 8: keys are checked
// here, scalars keep their text and get their types in scalar.cpp.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "moebius/base/error.h"
#include "moebius/base/nesting.h"
#include "moebius/config/text_file.h"
#include "moebius/config/tree.h"

namespace moebius::config {
namespace {

constexpr int kMostNodes = 20000;  // aliases can multiply a small file without end
constexpr size_t kLargestFile = 1 << 20;

struct Converter {
    const std::string& shown;
    int nodes = 0;

    std::string place(const YAML::Mark& mark) const {
        return mark.is_null() ? shown : fmt::format("{}:{}", shown, mark.line + 1);
    }

    Tree convert(const YAML::Node& node, size_t depth) {
        const std::string here = place(node.Mark());
        if (depth > kDeepestNesting)
            throw Error(fmt::format("{}: nested more than {} deep", here, kDeepestNesting));
        if (++nodes > kMostNodes) throw Error(fmt::format("{}: more than {} values", here, kMostNodes));
        Tree tree;
        tree.place = here;
        switch (node.Type()) {
            case YAML::NodeType::Undefined:
            case YAML::NodeType::Null:
                break;
            case YAML::NodeType::Scalar:
                check_tag(node, here);
                tree.kind = Tree::Kind::Scalar;
                tree.text = node.Scalar();
                tree.quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
                break;
            case YAML::NodeType::Sequence:
                check_tag(node, here);
                tree.kind = Tree::Kind::Sequence;
                for (const YAML::Node& item : node) tree.items.push_back(convert(item, depth + 1));
                break;
            case YAML::NodeType::Map:
                check_tag(node, here);
                convert_members(node, depth, tree);
                break;
        }
        return tree;
    }

    void convert_members(const YAML::Node& node, size_t depth, Tree& tree) {
        tree.kind = Tree::Kind::Map;
        for (const auto& pair : node) {
            const std::string where = place(pair.first.Mark());
            if (!pair.first.IsScalar()) throw Error(fmt::format("{}: a key must be a plain name", where));
            const std::string key = pair.first.Scalar();
            if (key == "<<") {
                throw Error(
                    fmt::format("{}: merge keys (<<) are not supported; use a defaults: list", where));
            }
            if (const Tree* first = tree.find(key)) {
                throw Error(fmt::format("{}: key {} appears twice in one map (first in {})", where, key,
                                        first->place));
            }
            Tree value = convert(pair.second, depth + 1);
            value.place = where;
            tree.members.push_back({key, std::move(value)});
        }
    }

    static void check_tag(const YAML::Node& node, const std::string& here) {
        const std::string& tag = node.Tag();
        if (tag.empty() || tag == "?" || tag == "!" || tag == "tag:yaml.org,2002:str") return;
        throw Error(fmt::format("{}: tag {} is not supported; write the value without a tag", here, tag));
    }
};

std::string read_text(const std::filesystem::path& file) {
    const std::string shown = file.string();
    std::error_code error;
    if (std::filesystem::is_directory(file, error)) {
        throw Error(
            fmt::format("{} is a directory, not a YAML file; give the file with --config, or the directory "
                        "with --config-path and a name in it with --config-name",
                        shown));
    }
    if (!std::filesystem::exists(file, error))
        throw Error(fmt::format("{}: no such configuration file", shown));
    return read_text_file(file, kLargestFile, "a configuration file");
}

// "# @package NAME" in the comments before the first key, as in Hydra.
std::string package_of(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line) && (line.empty() || line[0] == '#');) {
        std::istringstream words(line);
        std::string hash, at, name;
        if (words >> hash >> at >> name && hash == "#" && at == "@package") return name;
    }
    return "";
}

}  // namespace

Tree parse_yaml(const std::string& text, const std::string& shown) {
    if (text.find('\0') != std::string::npos)
        throw Error(fmt::format("{} is a binary file, not YAML", shown));
    std::vector<YAML::Node> documents;
    try {
        documents = YAML::LoadAll(text);
    } catch (const YAML::Exception& error) {
        const std::string line = error.mark.is_null() ? "" : fmt::format(":{}", error.mark.line + 1);
        throw Error(fmt::format("{}{}: not valid YAML: {}", shown, line, error.msg));
    }
    if (documents.size() > 1) {
        throw Error(fmt::format("{}: {} YAML documents in one file; a configuration is one", shown,
                                documents.size()));
    }
    Tree root;
    if (!documents.empty()) root = Converter{shown}.convert(documents.front(), 0);
    root.place = shown;
    if (root.kind == Tree::Kind::Null) root.kind = Tree::Kind::Map;
    if (!root.is_map()) {
        throw Error(fmt::format("{}: a configuration is a map of keys, not {}", shown,
                                root.kind == Tree::Kind::Sequence ? "a list" : "plain text"));
    }
    return root;
}

Tree read_yaml(const std::filesystem::path& file, std::string* package) {
    const std::string text = read_text(file);
    if (package) *package = package_of(text);
    return parse_yaml(text, file.string());
}

std::string yaml_library() {
    return fmt::format("yaml-cpp {}", MOEBIUS_YAML_VERSION);
}

}  // namespace moebius::config
