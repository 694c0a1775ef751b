// Which variants the fused operations of a step run: the fuser replaces layers by one operation, and that
// operation may still be composed of several where no variant of it that fuses takes these arguments.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "moebius/ops/registry.h"

namespace moebius::train {

// A choice that a fused operation made, of the log's entries with that choice and that reason.
struct FusedVariant {
    std::string op, chosen;
    int64_t calls = 0;
    bool composed = false;  // the operation runs as several, one after the other
    // Where it is composed, the first variant for this device that fuses, of those for the recipe if there is
    // one: why it was passed over. `reason` is empty where kernels.<op> asks for the composed one; both are,
    // where this device has no variant that fuses.
    std::string passed_over, reason;
};

// In the log's order. `ops`: of ops::registry(); `cc`: compute capability × 10.
std::vector<FusedVariant> fused_variants(const VariantLog& log, std::span<const ops::OpInfo> ops,
                                         DeviceKind device, int cc);

// "grouped_mlp = sm90_fused; grouped_mlp_backward = cuda_composed, composed of several operations: …"; ""
// without any.
std::string describe(std::span<const FusedVariant> variants);

// What fusion = strict asks for: throws Error where a variant that fuses was passed over, with the operation,
// the reason and the keys to change. An operation that nothing fuses on this device, and one that
// kernels.<op> chose, are as they must be.
void check_strict_fusion(std::span<const FusedVariant> variants);

}  // namespace moebius::train
