// The loss on data that are not trained on, beside what count models of the same training bases reach.
#pragma once

#include <optional>
#include <string>

#include "moebius/models/model.h"
#include "moebius/train/data_setup.h"
#include "moebius/train/sink.h"

namespace moebius::train {

class HeldOut {
  public:
    // Both are borrowed. The data have a held-out part.
    HeldOut(const RunData& data, const config::TrainConfig& config) : data_(data), config_(config) {}

    // Of the model as it is; the final one takes more batches and makes the count models. Nothing where no
    // label counts.
    std::optional<ValidationReport> measure(models::Model& model, nn::Run run, int64_t step, bool final);

  private:
    const RunData& data_;
    const config::TrainConfig& config_;
};

}  // namespace moebius::train
