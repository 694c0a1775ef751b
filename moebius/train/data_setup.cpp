#include "moebius/train/data_setup.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/train/resolve.h"

namespace moebius::train {
namespace {

std::vector<std::string> path_list(const std::string& paths) {
    // A list is written as one string, its entries separated by commas; a file may have one in its name.
    std::error_code error;
    if (std::filesystem::exists(paths, error)) return {paths};
    std::vector<std::string> list;
    size_t begin = 0;
    while (begin <= paths.size()) {
        const size_t comma = std::min(paths.find(',', begin), paths.size());
        if (comma > begin) list.push_back(paths.substr(begin, comma - begin));
        begin = comma + 1;
    }
    return list;
}

// What the data room says of dataset.path, the one key that it knows, is said of `key`. Not within a file's
// name.
std::string with_key(std::string text, const std::string& key) {
    const std::string known = "dataset.path";
    if (key == known) return text;
    for (size_t at = 0; (at = text.find(known, at)) != std::string::npos;) {
        const bool word = at == 0 || text[at - 1] == ' ' || text[at - 1] == '(';
        if (word) text.replace(at, known.size(), key);
        at += word ? key.size() : known.size();
    }
    return text;
}

std::vector<data::Range> whole(const data::Dataset& dataset) {
    std::vector<data::Range> ranges;
    for (int64_t record = 0; record < dataset.records(); ++record) {
        ranges.push_back({record, 0, dataset.length(record)});
    }
    return ranges;
}

}  // namespace

RunData open_data(const config::TrainConfig& c) {
    RunData run;
    run.tokenizer = data::make_tokenizer(c.dataset.tokenizer);
    const auto open = [&](const std::string& paths) {
        data::DatasetOptions options{.paths = data::expand_paths(path_list(paths)),
                                     .format = c.dataset.format,
                                     .tokenizer = run.tokenizer};
        for (data::InputFile& input : data::describe_inputs(options.paths))
            run.inputs.push_back(std::move(input));
        return data::Dataset::open(options);
    };
    const auto open_as = [&](const char* key, const std::string& paths) {
        try {
            return open(paths);
        } catch (const Error& error) {
            const std::string text = with_key(error.what(), key);
            if (text.find(key) != std::string::npos) throw Error(text);
            throw Error(fmt::format("{} ({} = {})", text, key, paths));
        }
    };
    const data::WindowOptions windows{.max_seq_length = c.dataset.max_seq_length, .stride = c.dataset.stride};
    run.dataset = open_as("dataset.path", c.dataset.path);
    run.training_ranges = whole(*run.dataset);
    if (c.validation.enabled && c.validation.data_path) {
        run.validation_dataset = open_as("validation.data_path", *c.validation.data_path);
        run.held_out_ranges = whole(*run.validation_dataset);
    } else if (c.validation.enabled && c.validation.fraction) {
        data::Split split = data::split_held_out(*run.dataset, *c.validation.fraction);
        run.training_ranges = std::move(split.training);
        run.held_out_ranges = std::move(split.held_out);
        run.validation_dataset = run.dataset;
    } else if (c.validation.enabled) {
        throw Error("validation.enabled = true needs validation.data_path or validation.fraction");
    }
    run.training = std::make_shared<data::WindowSet>(run.dataset, run.training_ranges, windows);
    if (run.validation_dataset) {
        run.held_out =
            std::make_shared<data::WindowSet>(run.validation_dataset, run.held_out_ranges, windows);
    }
    return run;
}

std::unique_ptr<data::Loader> validation_loader(const RunData& run, const config::TrainConfig& c) {
    data::LoaderOptions options = loader_options(c);
    options.grad_acc_steps = 1;
    options.buffer_size = 1;
    options.num_workers = 0;
    options.one_epoch = true;
    options.labels.each_base_once = true;
    return std::make_unique<data::Loader>(run.held_out, options);
}

}  // namespace moebius::train
