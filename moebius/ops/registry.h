// The ops, listed once: for `info`, for checking forced names, for the test matrix.
#pragma once

#include <string>
#include <vector>

#include "moebius/ops/variant.h"

namespace moebius::ops {

struct OpInfo {
    std::string name;  // as in `kernels.<name>` and in variant logs
    std::vector<VariantInfo> variants;
};

std::vector<OpInfo> registry();

}  // namespace moebius::ops
