#include "moebius/nn/dispatcher.h"

#include "moebius/ops/permute/permute.h"

namespace moebius::nn {
namespace {

struct LocalHandle : DispatchHandle {
    Tensor row_of, source, split_sizes;
    int64_t tokens = 0, topk = 0;
};

// Every token's row once for each of its experts.
Tensor gather(const char* name, const Tensor& x, const Tensor& source, int64_t topk, const Run& run) {
    Tensor out = Tensor::empty(name, {source.shape()[0], x.shape()[1]}, run.dtype, run.exec);
    ops::gather_rows({.x = x, .source = source, .topk = topk, .out = out}, run.exec);
    return out;
}

struct GatherAgain : Remake {
    Kept hidden;
    Tensor source;
    int64_t topk = 1;
    Tensor make(Run& run) const override {
        return gather("dispatch.expert_input", hidden.get(run), source, topk, run);
    }
};

class LocalDispatcher : public TokenDispatcher {
  public:
    explicit LocalDispatcher(int64_t experts) : experts_(experts) {}

    Dispatched dispatch(const Activation& hidden, const Tensor& selected, const Tensor& weights, bool gathers,
                        Run& run) override {
        const int64_t tokens = selected.shape()[0], topk = selected.shape()[1];
        const int64_t rows = checked_mul(tokens, topk);
        auto handle = std::make_shared<LocalHandle>();
        handle->tokens = tokens;
        handle->topk = topk;
        handle->row_of = Tensor::empty("dispatch.row_of", {tokens, topk}, DType::I32, run.exec);
        handle->source = Tensor::empty("dispatch.source", {rows}, DType::I32, run.exec);
        handle->split_sizes = Tensor::empty("dispatch.split_sizes", {experts_}, DType::I32, run.exec);
        ops::permutation({selected, handle->row_of, handle->source, handle->split_sizes}, run.exec);
        Dispatched out;
        out.expert_input = gathered("dispatch.expert_input", hidden.high, *handle, gathers, run);
        if (gathers) {
            out.expert_input.again = hidden.again;
        } else if (run.remake) {
            auto again = std::make_shared<GatherAgain>();
            again->hidden = Kept(hidden);
            again->source = handle->source;
            again->topk = topk;
            out.expert_input.again = std::move(again);
        }
        out.expert_probs = Tensor::empty("dispatch.expert_probs", {rows}, DType::F32, run.exec);
        ops::permute_scalars({weights, handle->source, out.expert_probs}, run.exec);
        out.split_sizes = handle->split_sizes;
        out.handle = std::move(handle);
        return out;
    }

    Activation combine(const Activation& expert_output, const HandlePtr& opaque, Run& run) override {
        const LocalHandle& handle = static_cast<const LocalHandle&>(*opaque);
        const int64_t width = expert_output.high.shape()[1];
        Tensor out = Tensor::empty("combine.out", {handle.tokens, width}, run.dtype, run.exec);
        ops::combine_rows({.y = expert_output.high, .row_of = handle.row_of, .out = out}, run.exec);
        return {out};
    }

    Activation combine_backward(const Activation& dy, const HandlePtr& opaque, bool gathers,
                                Run& run) override {
        return gathered("combine.dy", dy.high, static_cast<const LocalHandle&>(*opaque), gathers, run);
    }

    DispatchGradients dispatch_backward(const Activation& dexpert_input, const Tensor& dprobs,
                                        const HandlePtr& opaque, Run& run) override {
        const LocalHandle& handle = static_cast<const LocalHandle&>(*opaque);
        const int64_t width = dexpert_input.high.shape()[1];
        DispatchGradients out;
        out.dhidden.high = Tensor::empty("dispatch.dhidden", {handle.tokens, width}, run.dtype, run.exec);
        ops::combine_rows({.y = dexpert_input.high, .row_of = handle.row_of, .out = out.dhidden.high},
                          run.exec);
        out.drouting_weights =
            Tensor::empty("dispatch.dweights", {handle.tokens, handle.topk}, DType::F32, run.exec);
        ops::permute_scalars(
            {.values = dprobs, .source = handle.source, .out = out.drouting_weights, .back = true}, run.exec);
        return out;
    }

  private:
    static Activation gathered(const char* name, const Tensor& x, const LocalHandle& handle, bool gathers,
                               const Run& run) {
        if (gathers) return {.high = x, .source = handle.source, .topk = handle.topk};
        return {gather(name, x, handle.source, handle.topk, run)};
    }

    int64_t experts_;
};

}  // namespace

std::unique_ptr<TokenDispatcher> local_dispatcher(int64_t experts) {
    return std::make_unique<LocalDispatcher>(experts);
}

}  // namespace moebius::nn
