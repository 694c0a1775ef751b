// Command-line overrides, in the part of Hydra's grammar that a run needs (no sweeps, no functions).
#include <fmt/format.h>

#include <cctype>

#include "moebius/base/error.h"
#include "moebius/base/nesting.h"
#include "moebius/config/scalar.h"
#include "moebius/config/tree.h"

namespace moebius::config {
namespace {

// One value: quoted text, [list], {map}, or raw text up to the end of the enclosing bracket's item.
class ValueParser {
  public:
    ValueParser(const std::string& override_text, size_t begin) : text_(override_text), at_(begin) {}

    Tree parse() {
        skip_spaces();
        Tree value = item(0);
        skip_spaces();
        if (at_ != text_.size()) {
            fail(fmt::format("unexpected '{}' after the value; quote the value if this belongs to it",
                             text_.substr(at_)));
        }
        return value;
    }

  private:
    Tree item(size_t depth) {
        if (depth > kDeepestNesting) fail("nested too deep");
        Tree tree;
        const char first = at_ < text_.size() ? text_[at_] : '\0';
        if (first == '[') {
            tree = list(depth);
        } else if (first == '{') {
            tree = map(depth);
        } else if (first == '"' || first == '\'') {
            tree.kind = Tree::Kind::Scalar;
            tree.quoted = true;
            tree.text = quoted();
        } else {
            tree.kind = Tree::Kind::Scalar;
            tree.text = raw(depth > 0 ? ",]}" : "");
            if (tree.text == "null") tree = Tree{};
        }
        tree.place = kCommandLine;
        return tree;
    }

    Tree list(size_t depth) {
        Tree tree;
        tree.kind = Tree::Kind::Sequence;
        ++at_;
        for (skip_spaces(); !take(']'); skip_spaces()) {
            if (!tree.items.empty() && !take(',')) fail("expected ',' or ']' in the list");
            skip_spaces();
            tree.items.push_back(item(depth + 1));
        }
        return tree;
    }

    Tree map(size_t depth) {
        Tree tree;
        tree.kind = Tree::Kind::Map;
        ++at_;
        for (skip_spaces(); !take('}'); skip_spaces()) {
            if (!tree.members.empty() && !take(',')) fail("expected ',' or '}' in the map");
            skip_spaces();
            const bool in_quotes = at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'');
            const std::string key = in_quotes ? quoted() : raw(":,]}");
            skip_spaces();
            if (key.empty() || !take(':')) fail("expected 'key: value' in the map");
            if (tree.find(key)) fail(fmt::format("key {} appears twice in one map", key));
            skip_spaces();
            tree.members.push_back({key, item(depth + 1)});
        }
        return tree;
    }

    std::string quoted() {
        const char quote = text_[at_++];
        std::string result;
        for (; at_ < text_.size(); ++at_) {
            if (text_[at_] == quote) {
                ++at_;
                return result;
            }
            const bool escape = text_[at_] == '\\' && at_ + 1 < text_.size() &&
                                (text_[at_ + 1] == quote || text_[at_ + 1] == '\\');
            if (escape) ++at_;
            result += text_[at_];
        }
        fail(fmt::format("the closing {} is missing", quote));
    }

    std::string raw(const std::string& ends) {
        const size_t begin = at_;
        while (at_ < text_.size() && ends.find(text_[at_]) == std::string::npos) ++at_;
        size_t end = at_;
        while (end > begin && std::isspace(static_cast<unsigned char>(text_[end - 1]))) --end;
        if (!ends.empty() && end == begin) fail("a value is missing");
        return text_.substr(begin, end - begin);
    }

    void skip_spaces() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    }

    bool take(char wanted) {
        if (at_ >= text_.size()) fail(fmt::format("the closing {} is missing", wanted == ':' ? ']' : wanted));
        if (text_[at_] != wanted) return false;
        ++at_;
        return true;
    }

    [[noreturn]] void fail(const std::string& why) const {
        throw Error(fmt::format("override {}: {}", text_, why));
    }

    const std::string& text_;
    size_t at_;
};

std::vector<std::string> split_key(const std::string& key, const std::string& text) {
    std::vector<std::string> parts = parts_of(key);
    if (parts.size() > kDeepestNesting) {
        throw Error(fmt::format("override {}…: a key of {} parts is none; keys have at most {}",
                                text.substr(0, 80), parts.size(), kDeepestNesting));
    }
    for (const std::string& part : parts) {
        if (part.empty() || part.find_first_of(" \t@[]{}") != std::string::npos) {
            throw Error(fmt::format("override {}: '{}' is not a key; write key.sub=value", text, key));
        }
    }
    return parts;
}

void erase(Tree& tree, const std::vector<std::string>& parts, const std::string& text) {
    Tree* parent = &tree;
    for (size_t i = 0; i + 1 < parts.size() && parent; ++i) parent = parent->find(parts[i]);
    if (!parent || !parent->find(parts.back())) {
        throw Error(fmt::format("override {}: nothing sets {}, so there is nothing to take away", text,
                                text.substr(1)));
    }
    parent->erase(parts.back());
}

}  // namespace

void apply_override(Tree& root, const std::string& text) {
    if (text.starts_with("~")) {
        if (text.find('=') != std::string::npos) {
            throw Error(fmt::format("override {}: ~key takes the key away and has no value", text));
        }
        erase(root, split_key(text.substr(1), text), text);
        return;
    }
    const size_t begin = text.starts_with("++") ? 2 : text.starts_with("+") ? 1 : 0;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
        const bool file = text.find('/') != std::string::npos || text.find(".fa") != std::string::npos;
        throw Error(fmt::format(
            "override {}: the '=' is missing; write {}", text,
            file ? "dataset.path=" + text : std::string("key.sub=value, without spaces around =")));
    }
    Tree* target = &root;
    for (const std::string& part : split_key(text.substr(begin, equals - begin), text)) {
        if (!target->is_map()) *target = Tree{.kind = Tree::Kind::Map, .place = std::string(kCommandLine)};
        target = &(*target)[part];
    }
    Tree value = ValueParser(text, equals + 1).parse();
    merge(*target, std::move(value));
}

}  // namespace moebius::config
