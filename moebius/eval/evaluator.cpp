#include "moebius/eval/evaluator.h"

#include <cstring>

namespace moebius::eval {

namespace {

constexpr int64_t kAlign = 256;

}  // namespace

BatchLayout::BatchLayout(const data::BatchShape& shape)
    : tokens_(shape.capacity),
      borders_(shape.max_sequences() + 1),
      max_seqlen_(shape.max_seqlen),
      none_empty_(!shape.packing) {
    const auto take = [&](int64_t count, DType dtype) {
        const int64_t at = bytes_;
        bytes_ += round_up(bytes_of(dtype, count), kAlign);
        return at;
    };
    at_.tokens = take(tokens_, DType::I32);
    at_.targets = take(tokens_, DType::I32);
    at_.positions = take(tokens_, DType::I32);
    at_.cu_seqlens = take(borders_, DType::I32);
    at_.valid = take(tokens_, DType::U8);
    at_.token_count = take(1, DType::I32);
}

void BatchLayout::pack(const data::MicroBatch& batch, std::byte* to) const {
    MOEBIUS_CHECK(static_cast<int64_t>(batch.tokens.size()) == tokens_ &&
                      static_cast<int64_t>(batch.cu_seqlens_capacity.size()) == borders_ &&
                      batch.max_seqlen == max_seqlen_,
                  batch.tokens.size(), " tokens, ", batch.cu_seqlens_capacity.size(),
                  " borders, sequences of ", batch.max_seqlen);
    const auto put = [&](int64_t at, const auto& values) {
        std::memcpy(to + at, values.data(), values.size_bytes());
    };
    put(at_.tokens, batch.tokens);
    put(at_.targets, batch.targets);
    put(at_.positions, batch.positions);
    put(at_.cu_seqlens, batch.cu_seqlens_capacity);
    put(at_.valid, batch.valid);
    const auto count = static_cast<int32_t>(tokens_);
    put(at_.token_count, std::span(&count, 1));
}

nn::BatchView BatchLayout::view(void* data) const {
    const auto part = [&](int64_t at, DType dtype, int64_t count) {
        return View(static_cast<char*>(data) + at, dtype, {count});
    };
    return {.tokens = part(at_.tokens, DType::I32, tokens_),
            .targets = part(at_.targets, DType::I32, tokens_),
            .positions = part(at_.positions, DType::I32, tokens_),
            .cu_seqlens = part(at_.cu_seqlens, DType::I32, borders_),
            .valid = part(at_.valid, DType::U8, tokens_),
            .token_count = part(at_.token_count, DType::I32, 1),
            .max_seqlen = max_seqlen_,
            .none_empty = none_empty_};
}

DeviceBatch::DeviceBatch(const data::BatchShape& shape, const Exec& exec)
    : layout_(shape),
      host_(static_cast<size_t>(layout_.bytes())),
      memory_(Tensor::empty("batch", {layout_.bytes()}, DType::U8, exec)),
      view_(layout_.view(memory_.view().data)) {}

void DeviceBatch::copy_from(const data::MicroBatch& batch, const Exec& exec) {
    layout_.pack(batch, host_.data());
    copy_from_host(memory_, host_.data(), exec);
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
            batch.copy_from(micro, exec);
            run.batch = batch.view();
            fill_zero(loss_sum, exec);
            model.decoder().forward({.loss = {.token_loss = token_loss, .loss_sum = loss_sum}}, run);
            float sum = 0;
            copy_to_host(&sum, loss_sum, exec);
            totals.loss_sum += static_cast<double>(sum);
            totals.labels += micro.labels;
        }
    }
    return totals;
}

}  // namespace moebius::eval
