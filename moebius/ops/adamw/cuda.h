#pragma once

#include "moebius/ops/adamw/adamw.h"

namespace moebius::ops::cuda {

void adamw(const AdamWArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
