// Asking a model without changing it: micro-batches on the device, losses over them.
#pragma once

#include <cstddef>
#include <vector>

#include "moebius/data/loader.h"
#include "moebius/models/model.h"

namespace moebius::eval {

// Where a micro-batch's arrays lie in one piece of memory, the same on the host and on the device, so that
// one copy moves them all. The shape is a capacity: every micro-batch of it has the same layout.
class BatchLayout {
  public:
    explicit BatchLayout(const data::BatchShape& shape);
    int64_t bytes() const { return bytes_; }  // a multiple of 256
    void pack(const data::MicroBatch& batch, std::byte* to) const;
    // Of memory of that layout, at an address that is a multiple of 256.
    nn::BatchView view(void* data) const;

  private:
    int64_t tokens_, borders_, max_seqlen_, bytes_ = 0;
    bool none_empty_;
    struct {
        int64_t tokens, targets, positions, cu_seqlens, valid, token_count;
    } at_{};
};

// A micro-batch's tensors on the device, at the same place every time.
class DeviceBatch {
  public:
    DeviceBatch(const data::BatchShape& shape, const Exec& exec);
    void copy_from(const data::MicroBatch& batch, const Exec& exec);
    const nn::BatchView& view() const { return view_; }

  private:
    BatchLayout layout_;
    std::vector<std::byte> host_;
    Tensor memory_;
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
