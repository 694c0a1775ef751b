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

// For `moebius info`: an op's variants, best first, "sm90 (not in this build), *cuda_any, cpu". The star is
// at the one that runs on such a device unless its arguments or a forced name say otherwise; above it stands
// why not, as far as that is known without arguments. `cc`: compute capability × 10.
std::string describe_variants(const OpInfo& op, DeviceKind device, int cc);

}  // namespace moebius::ops
