// The data of a run: read, split, cut into windows; loaders over them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moebius/config/schema.h"
#include "moebius/data/inputs.h"
#include "moebius/data/loader.h"

namespace moebius::train {

struct RunData {
    std::shared_ptr<const data::Tokenizer> tokenizer;
    std::vector<data::InputFile> inputs;  // training's files, then validation's own
    std::shared_ptr<const data::Dataset> dataset, validation_dataset;  // the same where a part is held out
    std::vector<data::Range> training_ranges, held_out_ranges;
    std::shared_ptr<const data::WindowSet> training, held_out;  // held_out null without validation
};

// Reads dataset.path (and validation.data_path). Throws Error naming file, place and key.
RunData open_data(const config::TrainConfig& c);

// A loader over the held-out windows in the files' order, each base predicted once, ending after one pass.
std::unique_ptr<data::Loader> validation_loader(const RunData& data, const config::TrainConfig& c);

}  // namespace moebius::train
