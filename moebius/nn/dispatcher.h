// How token copies reach their experts and come back. One interface; the local form is here, those over many
// ranks stand in parallel/.
#pragma once

#include "moebius/nn/module.h"

namespace moebius::nn {

struct DispatchHandle {
    virtual ~DispatchHandle() = default;
};
using HandlePtr = std::shared_ptr<DispatchHandle>;

struct Dispatched {
    Activation expert_input;  // (M, H), sorted by local expert
    Tensor expert_probs;      // (M) f32: routing weights, travelled along
    Tensor split_sizes;       // (local experts) i32, in the op's memory space
    HandlePtr handle;
};

struct DispatchGradients {
    Activation dhidden;       // (T, H)
    Tensor drouting_weights;  // (T, k) f32
};

class TokenDispatcher {
  public:
    virtual ~TokenDispatcher() = default;
    // selected_experts (T, k) i32, routing_weights (T, k) f32. `gathers`: who takes the expert_input reads
    // rows by their source, so that a copy need not be written; so in combine_backward.
    virtual Dispatched dispatch(const Activation& hidden, const Tensor& selected_experts,
                                const Tensor& routing_weights, bool gathers, Run& run) = 0;
    // Sums each token's k rows in slot order; applies no weights.
    virtual Activation combine(const Activation& expert_output, const HandlePtr& handle, Run& run) = 0;
    virtual Activation combine_backward(const Activation& dy, const HandlePtr& handle, bool gathers,
                                        Run& run) = 0;
    // dprobs (M) f32.
    virtual DispatchGradients dispatch_backward(const Activation& dexpert_input, const Tensor& dprobs,
                                                const HandlePtr& handle, Run& run) = 0;
};

// All experts on this rank: permutation, gather, combine.
std::unique_ptr<TokenDispatcher> local_dispatcher(int64_t experts);

}  // namespace moebius::nn
