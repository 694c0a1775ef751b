#include "moebius/train/held_out.h"

#include <algorithm>

#include "moebius/data/count_model.h"
#include "moebius/eval/evaluator.h"

namespace moebius::train {
namespace {

constexpr int64_t kFinalBatches = 100;

}  // namespace

std::optional<ValidationReport> HeldOut::measure(models::Model& model, nn::Run run, int64_t step,
                                                 bool final) {
    const auto loader = validation_loader(data_, config_);
    const int64_t batches =
        final ? std::max(kFinalBatches, config_.validation.num_batches) : config_.validation.num_batches;
    const eval::LossTotals totals = eval::evaluate(model, *loader, batches, run);
    if (totals.labels == 0) return {};
    ValidationReport report{
        .step = step, .labels = totals.labels, .batches = batches, .loss = totals.mean(), .final = final};
    if (final && data_.validation_dataset == data_.dataset) {
        const auto compare = [&](int order) {
            return data::count_model_loss(*data_.dataset, data_.training_ranges, data_.held_out_ranges, order)
                .nats;
        };
        report.cased = data_.dataset->soft_masked() && !config_.dataset.uppercase_labels;
        report.order1 = compare(1);
        report.order3 = compare(3);
    }
    return report;
}

}  // namespace moebius::train
