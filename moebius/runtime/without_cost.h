// For ops that call others: what they cost was counted when they were chosen.
#pragma once

#include "moebius/runtime/exec.h"

namespace moebius {

inline Exec without_cost(const Exec& exec) {
    Exec inner = exec;
    inner.cost = nullptr;
    return inner;
}

}  // namespace moebius
