#include "moebius/config/apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "moebius/base/error.h"
#include "moebius/config/fields.h"
#include "moebius/config/model_keys.h"
#include "moebius/config/nearest.h"
#include "moebius/config/scalar.h"

namespace moebius::config {
namespace {

[[noreturn]] void fail(const std::string& key, const Tree& tree, const std::string& must) {
    throw Error(fmt::format("{} = {} must be {} ({})", key, tree.str(), must, tree.place));
}

bool is_plain(const Tree& tree) {
    return tree.kind == Tree::Kind::Scalar && !tree.quoted;
}

// One value of one field: `or_null` is what the message adds when null is allowed too.
class ValueReader {
  public:
    ValueReader(std::string key, const Field& field, const Choices& choices)
        : key_(std::move(key)), field_(field), choices_(choices) {}

    void read(const Tree& tree, bool* out) const {
        if (!is_plain(tree) || looks_like(tree.text) != Looks::Bool) fail(key_, tree, "true or false");
        *out = tree.text == "true";
    }

    void read(const Tree& tree, int64_t* out) const {
        check_spelling(tree);
        const auto value = is_plain(tree) ? to_int(tree.text) : std::nullopt;
        if (!value && is_plain(tree) && looks_like(tree.text) == Looks::Int) {
            fail(key_, tree, "a whole number that fits into 64 bits");
        }
        if (!value) fail(key_, tree, "a whole number" + or_null());
        check_range(tree, static_cast<double>(*value));
        *out = *value;
    }

    void read(const Tree& tree, double* out) const {
        check_spelling(tree);
        const auto value = is_plain(tree) ? to_double(tree.text) : std::nullopt;
        if (!value) fail(key_, tree, "a number" + or_null());
        check_range(tree, *value);
        *out = *value;
    }

    void read(const Tree& tree, std::string* out) const {
        if (tree.kind == Tree::Kind::Null && !field_.null_means.empty()) {
            out->clear();
            return;
        }
        if (tree.kind != Tree::Kind::Scalar) fail(key_, tree, "text" + or_null());
        if (tree.text.empty()) fail(key_, tree, "text that is not empty" + or_null());
        if (!is_utf8(tree.text)) {
            fail(key_, tree, "UTF-8 text (a file with another name can be renamed or linked to)");
        }
        if (tree.text.find("${") != std::string::npos) {
            fail(key_, tree, "written out: ${…} is not replaced");
        }
        const auto given = choices_.find(key_);
        check_choice(tree, given == choices_.end() ? field_.choices : given->second);
        *out = tree.text;
    }

    template <class Value>
    void read(const Tree& tree, std::optional<Value>* out) const {
        if (tree.kind == Tree::Kind::Null) {
            out->reset();
            return;
        }
        Value value{};
        read(tree, &value);
        *out = std::move(value);
    }

    void read(const Tree& tree, std::array<double, 2>* out) const {
        if (tree.kind != Tree::Kind::Sequence || tree.items.size() != 2)
            fail(key_, tree, "a list of two numbers");
        for (size_t i = 0; i < 2; ++i) {
            const ValueReader item(fmt::format("{}[{}]", key_, i), field_, choices_);
            item.read(at_place(tree.items[i], tree), &(*out)[i]);
        }
    }

    void read(const Tree& tree, std::vector<std::string>* out) const {
        if (tree.kind != Tree::Kind::Sequence) fail(key_, tree, "a list of names" + or_null());
        for (size_t i = 0; i < tree.items.size(); ++i) {
            const ValueReader item(fmt::format("{}[{}]", key_, i), field_, choices_);
            Tree entry = at_place(tree.items[i], tree);
            // Where null is a name, YAML's own null is it.
            const auto& names = field_.choices;
            if (entry.kind == Tree::Kind::Null &&
                std::find(names.begin(), names.end(), "null") != names.end()) {
                out->emplace_back("null");
                continue;
            }
            item.read(entry, &out->emplace_back());
        }
    }

  private:
    static Tree at_place(Tree item, const Tree& list) {
        if (item.place.empty()) item.place = list.place;
        return item;
    }

    std::string or_null() const {
        const bool nullable =
            std::holds_alternative<std::optional<int64_t>*>(field_.value) ||
            std::holds_alternative<std::optional<double>*>(field_.value) ||
            std::holds_alternative<std::optional<std::string>*>(field_.value) ||
            std::holds_alternative<std::optional<std::vector<std::string>>*>(field_.value) ||
            !field_.null_means.empty();
        return nullable ? " or null" : "";
    }

    // Numbers that YAML readers take differently: 010 is 8 to some, 1_000 is text to others.
    void check_spelling(const Tree& tree) const {
        if (!is_plain(tree)) return;
        const Looks looks = looks_like(tree.text);
        if (looks == Looks::Octal) fail(key_, tree, "written without leading zeros (numbers are decimal)");
        if (looks == Looks::Grouped) fail(key_, tree, "written without underscores");
    }

    void check_range(const Tree& tree, double value) const {
        if (const std::string violation = range_violation(field_.range, value); !violation.empty()) {
            throw Error(fmt::format("{} = {} {} ({})", key_, tree.str(), violation, tree.place));
        }
    }

    void check_choice(const Tree& tree, const std::vector<std::string>& allowed) const {
        if (allowed.empty() || std::find(allowed.begin(), allowed.end(), tree.text) != allowed.end()) return;
        throw Error(fmt::format("{} = {} must be one of {} ({}){}", key_, tree.str(),
                                fmt::join(allowed, ", "), tree.place, did_you_mean(tree.text, allowed)));
    }

    std::string key_;
    const Field& field_;
    const Choices& choices_;
};

class Applier : public PathVisitor {
  public:
    Applier(const Tree& root, const Choices& choices) : choices_(choices) { levels_.push_back({&root, {}}); }

    void field(const Field& field) override {
        const std::string key = full(field.key);
        levels_.back().known.insert(std::string(field.key));
        const Tree* tree = levels_.back().tree ? levels_.back().tree->find(field.key) : nullptr;
        if (!tree || tree->is_missing()) {
            if (tree || field.required) note_missing(key, field, tree);
            result_.places[key] = tree ? tree->place : "default";
            return;
        }
        result_.places[key] = tree->place;
        std::visit([&](auto* out) { read(key, field, *tree, out); }, field.value);
    }

    void enter(std::string_view key, std::string_view help) override {
        levels_.back().known.insert(std::string(key));
        const Tree* tree = levels_.back().tree ? levels_.back().tree->find(key) : nullptr;
        PathVisitor::enter(key, help);
        if (tree && !tree->is_map()) {
            throw Error(fmt::format("{} = {} must be a map: {} is a group of keys ({})", full(), tree->str(),
                                    full(), tree->place));
        }
        levels_.push_back({tree, {}});
    }

    void leave() override {
        check_unknown();
        levels_.pop_back();
        PathVisitor::leave();
    }

    Applied finish() {
        check_unknown();
        return std::move(result_);
    }

  private:
    struct Level {
        const Tree* tree;  // null when nothing sets a key in this group
        std::set<std::string> known;
    };

    template <class Value>
    void read(const std::string& key, const Field& field, const Tree& tree, Value* out) {
        ValueReader(key, field, choices_).read(tree, out);
    }

    void read(const std::string& key, const Field& field, const Tree& tree,
              std::map<std::string, std::string>* out) {
        if (!tree.is_map()) fail(key, tree, "a map of names");
        const auto allowed = choices_.find(key);
        for (const Member& member : tree.members) {
            const std::string name = key + "." + member.key;
            if (allowed != choices_.end() && std::find(allowed->second.begin(), allowed->second.end(),
                                                       member.key) == allowed->second.end()) {
                throw Error(fmt::format("unknown key {} ({}){}", name, member.value.place,
                                        suggestion(member.key, allowed->second)));
            }
            ValueReader(name, field, choices_).read(member.value, &(*out)[member.key]);
            result_.places[name] = member.value.place;
        }
    }

    void read(const std::string& key, const Field& field, const Tree& tree, Literals* out) {
        if (!tree.is_map()) fail(key, tree, "a map");
        for (const Member& member : tree.members) read_literal(key, member.key, field, member.value, *out);
    }

    // Maps become dotted keys; lists stay values.
    void read_literal(const std::string& root, const std::string& name, const Field& field, const Tree& tree,
                      Literals& out) {
        if (tree.is_map() && !tree.members.empty()) {
            for (const Member& member : tree.members) {
                read_literal(root, name + "." + member.key, field, member.value, out);
            }
            return;
        }
        const std::string key = root + "." + name;
        result_.places[key] = tree.place;
        if (tree.is_missing()) {
            note_missing(key, field, &tree);
            return;
        }
        Literal& literal = out[name];
        literal = {to_json_text(tree, key), tree.place};
        if (root == "config_kwargs") check_model_override(name, literal);
    }

    void note_missing(const std::string& key, const Field& field, const Tree* tree) {
        const std::string where = tree ? fmt::format(" ({} leaves it {})", tree->place, kMissing) : "";
        result_.missing.push_back(
            fmt::format("{} is required: give it on the command line as {}=VALUE, or in the YAML "
                        "file{}. {}.",
                        key, key, where, field.help));
    }

    void check_unknown() const {
        const Level& level = levels_.back();
        if (!level.tree) return;
        for (const Member& member : level.tree->members) {
            if (!level.known.contains(member.key)) fail_unknown(full(member.key), member);
        }
    }

    [[noreturn]] static void fail_unknown(const std::string& key, const Member& member) {
        const std::vector<std::string> known = all_keys(true);
        std::string hint;
        if (member.key.find('.') != std::string::npos &&
            std::find(known.begin(), known.end(), key) != known.end()) {
            hint = "; dotted keys are for the command line, in YAML write the groups as nested maps";
        } else if (member.value.is_map() && nearest(key, known)) {
            hint = suggestion(key, known);
        } else if (const std::vector<std::string> same = with_leaf(known, first_leaf(key, member.value));
                   !same.empty()) {
            hint = fmt::format("; did you mean {}?", fmt::join(same, " or "));
        } else {
            hint = suggestion(key, known);
        }
        throw Error(fmt::format("unknown key {} ({}){}", key, member.value.place, hint));
    }

    // The dotted name of the first value below a key: of optimizer: {lr: 3}, optimizer.lr.
    static std::string first_leaf(std::string key, const Tree& tree) {
        const Tree* at = &tree;
        for (; at->is_map() && !at->members.empty(); at = &at->members.front().value)
            key += "." + at->members.front().key;
        return key;
    }

    // lr → adamw_kwargs.lr, hidden_size → config_kwargs.hidden_size: keys of a group that have the last part.
    static std::vector<std::string> with_leaf(const std::vector<std::string>& known, const std::string& key) {
        const std::string leaf = "." + key.substr(key.rfind('.') + 1);
        std::vector<std::string> found;
        for (const std::string& candidate : known) {
            if (candidate.ends_with(leaf)) found.push_back(candidate);
        }
        if (found.empty() && find_model_key(leaf.substr(1))) found.push_back("config_kwargs" + leaf);
        return found;
    }

    const Choices& choices_;
    std::vector<Level> levels_;
    Applied result_;
};

}  // namespace

Applied apply_tree(const Tree& root, const Choices& choices, TrainConfig& config) {
    Applier applier(root, choices);
    fields(applier, config);
    return applier.finish();
}

}  // namespace moebius::config
