// Matrices of 300,000 × 7168 elements, more than 2^31, through the ops that see a whole layer's rows.
#pragma once

#include <functional>
#include <string>

#include "moebius/runtime/exec.h"

namespace moebius::gpu_tests {

// Calls report(op, problem) once an op: problem is "" where the marked rows are right, "skipped: …" where no
// variant of this build takes it.
void test_large_offsets(const Exec& exec,
                        const std::function<void(const std::string&, const std::string&)>& report);

}  // namespace moebius::gpu_tests
