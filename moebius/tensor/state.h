// Named state: what a checkpoint holds, as contiguous ranges of global tensors. Modules and optimizers
// produce entries, checkpoints read and write them; neither knows the other.
#pragma once

#include <cstdint>
#include <string>

#include "moebius/base/shape.h"
#include "moebius/tensor/view.h"

namespace moebius {

// Elements [begin, begin + count) of the row-major global tensor `name` of shape `shape`. Experts of a rank,
// shards of a flat buffer, rows of a fused matrix: all are such ranges, so resharding is their intersection.
struct GlobalSlice {
    std::string name;
    Shape shape;
    int64_t begin = 0;
    int64_t count = 0;

    int64_t end() const { return begin + count; }
    bool operator==(const GlobalSlice&) const = default;
};

enum class StateKind : uint8_t { Weight, Master, Moment1, Moment2, Buffer };

// The memory of one slice: `view` is contiguous, has slice.count elements, and is borrowed.
struct StateEntry {
    GlobalSlice slice;
    View view;
    StateKind kind = StateKind::Weight;
    // A Master that is held as bf16 weights, `view`, and i16 remainders: stored joined, as the f32 it is.
    View remainder = {};

    DType stored_dtype() const { return remainder ? DType::F32 : view.dtype; }
};

}  // namespace moebius
