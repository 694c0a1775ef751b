#include "moebius/eval/evaluator.h"

namespace moebius::eval {

DeviceBatch::DeviceBatch(const data::BatchShape& shape, const Exec& exec)
    : tokens_(Tensor::empty("batch.tokens", {shape.capacity}, DType::I32, exec)),
      targets_(Tensor::empty("batch.targets", {shape.capacity}, DType::I32, exec)),
      positions_(Tensor::empty("batch.positions", {shape.capacity}, DType::I32, exec)),
      cu_seqlens_(Tensor::empty("batch.cu_seqlens", {shape.max_sequences() + 1}, DType::I32, exec)),
      valid_(Tensor::empty("batch.valid", {shape.capacity}, DType::U8, exec)) {
    view_ = {.tokens = tokens_,
             .targets = targets_,
             .positions = positions_,
             .cu_seqlens = cu_seqlens_,
             .valid = valid_,
             .max_seqlen = shape.max_seqlen};
}

void DeviceBatch::copy_from(const data::MicroBatch& batch, int64_t first_token, const Exec& exec) {
    MOEBIUS_CHECK(static_cast<int64_t>(batch.tokens.size()) == tokens_.view().numel() &&
                      static_cast<int64_t>(batch.cu_seqlens_capacity.size()) == cu_seqlens_.view().numel(),
                  batch.tokens.size(), " tokens, ", batch.cu_seqlens_capacity.size(), " borders");
    copy_from_host(tokens_, batch.tokens.data(), exec);
    copy_from_host(targets_, batch.targets.data(), exec);
    copy_from_host(positions_, batch.positions.data(), exec);
    copy_from_host(cu_seqlens_, batch.cu_seqlens_capacity.data(), exec);
    copy_from_host(valid_, batch.valid.data(), exec);
    view_.max_seqlen = batch.max_seqlen;
    view_.first_token = first_token;
}

DeviceScalars::DeviceScalars(const Exec& exec) {
    const auto make = [&](DType dtype) {
        owned_.push_back(Tensor::zeros("scalars", {1}, dtype, exec));
        return owned_.back().view();
    };
    view.learning_rate = make(DType::F32);
    view.step = make(DType::I64);
    view.bad = make(DType::I32);
    view.clip = make(DType::F32);
    view.norm = make(DType::F32);
    view.grad_factor = make(DType::F32);
    view.aux_scale = make(DType::F32);
    view.one = make(DType::F32);
    const float one = 1;
    copy_from_host(view.one, &one, exec);
    copy_from_host(view.aux_scale, &one, exec);
    copy_from_host(view.grad_factor, &one, exec);
}

LossTotals evaluate(models::Model& model, data::Loader& loader, int64_t max_batches, nn::Run run) {
    const data::BatchShape& shape = loader.shape();
    const Exec& exec = run.exec;
    DeviceBatch batch(shape, exec);
    DeviceScalars scalars(exec);
    Tensor token_loss = Tensor::empty("eval.token_loss", {shape.capacity}, DType::F32, exec);
    Tensor loss_sum = Tensor::zeros("eval.loss_sum", {1}, DType::F32, exec);
    run.pass = {.training = false, .save = false, .count = false};
    run.scalars = scalars.view;
    run.observer = nullptr;
    LossTotals totals;
    for (int64_t taken = 0; max_batches <= 0 || taken < max_batches; ++taken) {
        const data::StepBatch* step = loader.next_step();
        if (step == nullptr) break;
        for (const data::MicroBatch& micro : step->micro) {
            if (micro.labels == 0) continue;
            batch.copy_from(micro, 0, exec);
            run.batch = batch.view();
            fill_zero(loss_sum, exec);
            model.decoder().forward({.loss = {.token_loss = token_loss, .loss_sum = loss_sum}}, run);
            totals.loss_sum += static_cast<double>(*loss_sum.view().as<float>());
            totals.labels += micro.labels;
        }
    }
    return totals;
}

}  // namespace moebius::eval
