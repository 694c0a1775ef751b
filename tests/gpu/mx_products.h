// Products of MX operands on Hopper against dequantize and the bf16 product, which have the same bits.
#pragma once

#include <functional>
#include <string>

#include "moebius/runtime/exec.h"

namespace moebius::gpu_tests {

// Calls report(product, problem) once a product: problem is "" where all bits are equal, "skipped: …" where
// no variant of this build takes it. Large enough that blocks compute several tiles.
void test_mx_products(const Exec& exec,
                      const std::function<void(const std::string&, const std::string&)>& report);

}  // namespace moebius::gpu_tests
