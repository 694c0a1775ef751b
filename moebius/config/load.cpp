#include "moebius/config/load.h"

#include <fmt/format.h>

#include <algorithm>

#include "moebius/base/error.h"
#include "moebius/config/apply.h"
#include "moebius/config/compose.h"
#include "moebius/config/fields.h"
#include "moebius/config/scalar.h"
#include "moebius/config/tree.h"

namespace moebius::config {
namespace {

// As a user writes it on the command line: names without the quotes that YAML may need around them.
std::string plain_text(const Field& field) {
    if (auto* const* text = std::get_if<std::string*>(&field.value)) return **text;
    return value_text(field);
}

struct DefaultTexts : PathVisitor {
    void field(const Field& field) override { texts[full(field.key)] = plain_text(field); }
    std::map<std::string, std::string> texts;
};

// Collects the fields whose value this build does not honour.
class NotYetFinder : public PathVisitor {
  public:
    NotYetFinder() {
        TrainConfig config;
        fields(defaults_, config);
    }

    void field(const Field& field) override {
        if (field.not_yet.empty()) return;
        const std::string key = full(field.key);
        const std::string value = plain_text(field);
        if (value == defaults_.texts.at(key)) return;
        for (const std::string& honoured : field.honoured) {
            if (value == honoured) return;
        }
        found[key] = fmt::format("{} = {} is not supported: {}", key, value, field.not_yet);
        order.push_back(key);
    }

    std::map<std::string, std::string> found;
    std::vector<std::string> order;

  private:
    DefaultTexts defaults_;
};

NotYetFinder find_not_yet(TrainConfig config) {
    NotYetFinder finder;
    fields(finder, config);
    return finder;
}

std::string config_name(const LoadOptions& options) {
    if (!options.config_file.empty()) return options.config_file.stem().string();
    if (options.config_name.empty()) return "train";
    const std::filesystem::path name(options.config_name);
    return name.extension() == ".yaml" ? name.stem().string() : name.filename().string();
}

// "yeast" of data/yeast.fa.gz; "" where `paths` is not the plain name of one file or folder.
std::string data_name(const std::string& paths) {
    if (paths.find_first_of("*?[,") != std::string::npos) return "";
    std::filesystem::path path(paths);
    if (!path.has_filename()) path = path.parent_path();  // a folder, with a slash at its end
    for (const char* packed : {".gz", ".bgz", ".bgzf"})
        if (path.extension() == packed) path.replace_extension();
    const std::string stem = path.stem().string();
    return stem == "." || stem == ".." || stem == "/" ? "" : stem;
}

// Data that are named on the command line are other ones each time: they give the run its folder's name, too.
std::string default_run_dir(const Loaded& loaded) {
    const bool named = loaded.place_of("dataset.path") == kCommandLine;
    const std::string data = named ? data_name(loaded.config.dataset.path) : "";
    return "runs/" + loaded.name + (data.empty() ? "" : "-" + data);
}

void resolve_folders(const Applied& applied, Loaded& loaded) {
    TrainConfig& config = loaded.config;
    if (config.logger.run_dir.empty()) config.logger.run_dir = default_run_dir(loaded);
    const bool given = applied.places.at("checkpoint.ckpt_dir") != "default";
    const bool missing =
        std::any_of(applied.missing.begin(), applied.missing.end(),
                    [](const std::string& text) { return text.starts_with("checkpoint.ckpt_dir "); });
    if (given && !missing && config.checkpoint.ckpt_dir.empty()) {
        config.checkpoint.ckpt_dir = (std::filesystem::path(config.logger.run_dir) / "checkpoints").string();
    }
}

}  // namespace

std::string Loaded::place_of(const std::string& key) const {
    const auto found = places.find(key);
    return found == places.end() ? "default" : found->second;
}

std::vector<std::string> not_honoured(const TrainConfig& config) {
    const NotYetFinder finder = find_not_yet(config);
    std::vector<std::string> sentences;
    for (const std::string& key : finder.order) sentences.push_back(finder.found.at(key));
    return sentences;
}

Loaded load(const LoadOptions& options) {
    Loaded loaded;
    loaded.name = config_name(options);
    if (!is_utf8(loaded.name)) {
        throw Error(fmt::format("{}: the name of a configuration must be UTF-8 text", loaded.name));
    }
    Tree root = compose(options, loaded.files);
    for (const std::string& text : options.overrides) apply_override(root, text);
    const Applied applied = apply_tree(root, options.choices, loaded.config);
    loaded.places = applied.places;
    if (!applied.missing.empty() && !options.allow_missing) {
        const bool bare = options.config_name.empty() && options.config_file.empty();
        throw Error(fmt::format("{}{}", fmt::join(applied.missing, "\n"),
                                bare ? "\nA configuration has them all but the data: --config-name my_genome "
                                       "dataset.path=FILE.fa"
                                     : ""));
    }
    resolve_folders(applied, loaded);
    check_contradictions(loaded);
    if (!options.allow_not_yet) {
        const NotYetFinder finder = find_not_yet(loaded.config);
        std::vector<std::string> sentences;
        for (const std::string& key : finder.order) {
            sentences.push_back(fmt::format("{} ({})", finder.found.at(key), loaded.place_of(key)));
        }
        if (!sentences.empty()) throw Error(fmt::format("{}", fmt::join(sentences, "\n")));
    }
    return loaded;
}

}  // namespace moebius::config
