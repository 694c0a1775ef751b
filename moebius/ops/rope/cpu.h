#pragma once

#include "moebius/ops/rope/rope.h"

namespace moebius::ops::cpu {

void rope(const RopeArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
