// Elements as they lie in a file (any alignment) ↔ elements in memory.
#pragma once

#include <string>

#include "moebius/checkpoint/safetensors.h"

namespace moebius::checkpoint {

// Whether elements of `type` can be read as `dtype`: floats as floats, integers as integers, or the same
// type.
bool readable_as(FileType type, DType dtype);

// `count` elements of `type` at `source` into `destination` of `dtype`. Throws Error with the first value
// that does not fit into an integer type.
void convert(FileType type, const void* source, DType dtype, void* destination, int64_t count);

}  // namespace moebius::checkpoint
