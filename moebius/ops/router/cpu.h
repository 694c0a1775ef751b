#pragma once

#include "moebius/ops/router/router.h"

namespace moebius::ops::cpu {

void router(const RouterArgs& args, const Exec& exec);
void router_backward(const RouterBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
