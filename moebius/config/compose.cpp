#include "moebius/config/compose.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "moebius/base/error.h"
#include "moebius/base/nesting.h"
#include "moebius/config/nearest.h"

namespace fs = std::filesystem;

namespace moebius::config {
namespace {

struct Entry {
    std::string name;  // "db/mysql", "/db/mysql" or "base"
    bool optional = false;
    std::string place;
};

std::string join_packages(const std::string& a, const std::string& b) {
    return a.empty() || b.empty() ? a + b : a + "." + b;
}

// "a/b/name" → package "a.b".
std::string group_package(const std::string& name) {
    const size_t slash = name.rfind('/');
    std::string group = slash == std::string::npos ? "" : name.substr(0, slash);
    std::replace(group.begin(), group.end(), '/', '.');
    return group;
}

// Throws Error where `package` has more parts than a configuration may nest.
Tree nest(Tree tree, const std::string& package) {
    if (package.empty()) return tree;
    const auto parts = static_cast<size_t>(std::count(package.begin(), package.end(), '.')) + 1;
    if (parts > kDeepestNesting) {
        throw Error(fmt::format("{}: a package of {} parts; there are at most {}", tree.place, parts,
                                kDeepestNesting));
    }
    const size_t dot = package.rfind('.');
    const std::string last = dot == std::string::npos ? package : package.substr(dot + 1);
    Tree outer{.kind = Tree::Kind::Map, .place = tree.place};
    outer.members.push_back({last, std::move(tree)});
    return nest(std::move(outer), dot == std::string::npos ? "" : package.substr(0, dot));
}

std::string without_prefix(std::string text, std::string_view prefix, bool& had) {
    had = text.starts_with(prefix);
    return had ? text.substr(prefix.size()) : text;
}

void check_entry_name(const std::string& name, const std::string& place) {
    if (name.empty() || name.starts_with("override ") || name.find('@') != std::string::npos ||
        name.find("${") != std::string::npos) {
        throw Error(
            fmt::format("{}: defaults entry '{}' is not supported; entries are name, dir/name, dir: name, "
                        "optional …, _self_",
                        place, name));
    }
}

void add_map_entry(const Tree& item, std::vector<Entry>& entries) {
    if (item.members.size() != 1) {
        throw Error(fmt::format("{}: defaults entry {} must be one 'dir: name'", item.place, item.str()));
    }
    const auto& [key, value] = item.members.front();
    Entry entry{.place = value.place.empty() ? item.place : value.place};
    const std::string group = without_prefix(key, "optional ", entry.optional);
    const std::vector<Tree> names =
        value.kind == Tree::Kind::Sequence ? value.items : std::vector<Tree>{value};
    for (const Tree& name : names) {
        if (name.kind == Tree::Kind::Null) continue;  // the group is left out
        if (name.kind != Tree::Kind::Scalar || name.is_missing()) {
            throw Error(fmt::format("{}: defaults entry '{}' needs a name", entry.place, key));
        }
        entry.name = group + "/" + name.text;
        check_entry_name(entry.name, entry.place);
        entries.push_back(entry);
    }
}

std::vector<Entry> read_defaults(const Tree* defaults) {
    std::vector<Entry> entries;
    if (defaults && defaults->kind != Tree::Kind::Null) {
        if (defaults->kind != Tree::Kind::Sequence) {
            throw Error(fmt::format("{}: defaults = {} must be a list of configuration names",
                                    defaults->place, defaults->str()));
        }
        for (const Tree& item : defaults->items) {
            if (item.is_map()) {
                add_map_entry(item, entries);
                continue;
            }
            if (item.kind != Tree::Kind::Scalar) {
                throw Error(fmt::format("{}: defaults entry {} must be a name", item.place, item.str()));
            }
            Entry entry{.place = item.place};
            entry.name = without_prefix(item.text, "optional ", entry.optional);
            check_entry_name(entry.name, entry.place);
            entries.push_back(entry);
        }
    }
    const auto self = [](const Entry& e) { return e.name == "_self_"; };
    const auto count = std::count_if(entries.begin(), entries.end(), self);
    if (count > 1) throw Error(fmt::format("{}: _self_ stands {} times in defaults", defaults->place, count));
    if (count == 0) entries.push_back({.name = "_self_"});
    return entries;
}

class Composer {
  public:
    Composer(const LoadOptions& options, std::vector<fs::path>& files) : files_(files) {
        if (!options.config_path.empty()) {
            // A mistyped one must not end with a shipped configuration of the same name.
            std::error_code error;
            if (!fs::is_directory(options.config_path, error)) {
                throw Error(fmt::format("--config-path {}: no such directory", options.config_path.string()));
            }
            roots_.push_back(options.config_path);
        }
        roots_.insert(roots_.end(), options.search_dirs.begin(), options.search_dirs.end());
    }

    Tree compose_name(const std::string& name) {
        const auto file = find(name, {});
        if (!file) fail_not_found(name, "--config-name " + name, {});
        return compose_file(*file, "");
    }

    Tree compose_file(const fs::path& file, std::string package) {
        enter(file);
        std::string directive;
        Tree self = read_yaml(file, &directive);
        files_.push_back(file);
        if (directive == "_global_") {
            package.clear();
        } else if (!directive.empty() && directive != "_group_") {
            package = directive;
        }
        const std::vector<Entry> entries = read_defaults(self.find("defaults"));
        self.erase("defaults");
        Tree result{.kind = Tree::Kind::Map, .place = file.string()};
        for (const Entry& entry : entries) {
            if (entry.name == "_self_") {
                merge(result, nest(std::move(self), package));
            } else if (auto composed = compose_entry(entry, file, package)) {
                merge(result, std::move(*composed));
            }
        }
        chain_.pop_back();
        return result;
    }

  private:
    std::optional<Tree> compose_entry(const Entry& entry, const fs::path& from, const std::string& package) {
        const bool from_root = entry.name.starts_with("/");
        const std::string name = from_root ? entry.name.substr(1) : entry.name;
        const fs::path beside = from_root ? fs::path{} : from.parent_path();
        const auto file = find(name, from_root ? std::nullopt : std::optional(beside));
        if (!file) {
            if (entry.optional) return std::nullopt;
            fail_not_found(name, fmt::format("{}: defaults entry {}", entry.place, entry.name), beside);
        }
        return compose_file(*file, join_packages(from_root ? "" : package, group_package(name)));
    }

    void enter(const fs::path& file) {
        const fs::path canonical = fs::weakly_canonical(file);
        const auto begin = std::find(chain_.begin(), chain_.end(), canonical);
        if (begin != chain_.end()) {
            std::string chain;
            for (auto it = begin; it != chain_.end(); ++it) chain += it->string() + " → ";
            throw Error(fmt::format("defaults lists go round in a circle: {}{}", chain, canonical.string()));
        }
        chain_.push_back(canonical);
    }

    std::optional<fs::path> find(const std::string& name, const std::optional<fs::path>& beside) const {
        std::vector<fs::path> dirs;
        if (beside) dirs.push_back(*beside);
        dirs.insert(dirs.end(), roots_.begin(), roots_.end());
        const std::string file = name.ends_with(".yaml") ? name : name + ".yaml";
        for (const fs::path& dir : dirs) {
            std::error_code error;
            if (fs::exists(dir / file, error)) return dir / file;
        }
        return std::nullopt;
    }

    [[noreturn]] void fail_not_found(const std::string& name, const std::string& who,
                                     const fs::path& beside) const {
        std::vector<fs::path> dirs = roots_;
        if (!beside.empty() && std::find(dirs.begin(), dirs.end(), beside) == dirs.end()) {
            dirs.insert(dirs.begin(), beside);
        }
        std::vector<std::string> shown;
        for (const fs::path& dir : dirs) shown.push_back(dir.string());
        throw Error(fmt::format("{}: no {}.yaml in {}{}", who, name,
                                shown.empty() ? "any directory (give one with --config-path)"
                                              : fmt::format("{}", fmt::join(shown, ", ")),
                                suggestion(name, config_names(dirs))));
    }

    std::vector<fs::path> roots_;
    std::vector<fs::path>& files_;
    std::vector<fs::path> chain_;  // the files being composed, outermost first
};

}  // namespace

std::vector<std::string> config_names(const std::vector<fs::path>& dirs) {
    std::vector<std::string> names;
    for (const fs::path& dir : dirs) {
        std::error_code error;
        for (const auto& entry : fs::directory_iterator(dir, error)) {
            if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
        }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

Tree compose(const LoadOptions& options, std::vector<fs::path>& files) {
    Composer composer(options, files);
    if (!options.config_file.empty() && !options.config_name.empty()) {
        throw Error(fmt::format("--config {} and --config-name {} both name the configuration; give one",
                                options.config_file.string(), options.config_name));
    }
    if (!options.config_file.empty()) return composer.compose_file(options.config_file, "");
    if (!options.config_name.empty()) return composer.compose_name(options.config_name);
    return Tree{.kind = Tree::Kind::Map};
}

}  // namespace moebius::config
