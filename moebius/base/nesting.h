// How deep text from outside (YAML, JSON, values of the command line) may nest.
#pragma once

#include <cstddef>

namespace moebius {

// What nests deeper is refused where it is read: it would take the stack of whoever copies or writes it.
inline constexpr size_t kDeepestNesting = 32;

}  // namespace moebius
