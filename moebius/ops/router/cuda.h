#pragma once

#include "moebius/ops/router/router.h"

namespace moebius::ops::cuda {

// A warp holds a token's logits in registers, and a slot a lane.
inline constexpr int64_t kMostExperts = 1024, kMostTopk = 32;

void router(const RouterArgs& args, const Exec& exec);
void router_backward(const RouterBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
