// Asking a model without changing it: micro-batches on the device, losses over them.
#pragma once

#include <vector>

#include "moebius/data/loader.h"
#include "moebius/models/model.h"

namespace moebius::eval {

// A micro-batch's tensors on the device, of the same capacity every time.
class DeviceBatch {
  public:
    DeviceBatch(const data::BatchShape& shape, const Exec& exec);
    void copy_from(const data::MicroBatch& batch, int64_t first_token, const Exec& exec);
    const nn::BatchView& view() const { return view_; }

  private:
    Tensor tokens_, targets_, positions_, cu_seqlens_, valid_;
    nn::BatchView view_;
};

// The scalars of StepScalars in device memory.
class DeviceScalars {
  public:
    explicit DeviceScalars(const Exec& exec);
    nn::StepScalars view;

  private:
    std::vector<Tensor> owned_;
};

struct LossTotals {
    double loss_sum = 0;  // nats
    int64_t labels = 0;   // targets that counted
    double mean() const { return labels > 0 ? loss_sum / static_cast<double>(labels) : 0.0; }
};

// Mean loss over at most `max_batches` steps of the loader (≤ 0: until it ends). Forward only.
LossTotals evaluate(models::Model& model, data::Loader& loader, int64_t max_batches, nn::Run run);

}  // namespace moebius::eval
