// Tensor maps: how TMA reads and writes a View. Host code, for .cu files.
#pragma once

#include <cuda.h>

#include "moebius/tensor/view.h"

namespace moebius::ops::sm90 {

// Boxes of `box_rows` × (128 bytes), swizzled by 128 bytes, of a view (rows, columns) or (experts, rows,
// columns), seen as three axes. Axes of no elements count as one: such a map may be passed, not used.
// Elements of one byte are not told apart.
CUtensorMap tensor_map(const View& view, int64_t box_rows);

// Boxes of `box_columns` of one row of a view (rows, columns), as they lie.
CUtensorMap scale_map(const View& view, int64_t box_columns);

// Without any rows there may be no memory, but a tensor map has an address.
inline View with_address(View view, const View& other) {
    if (!view.data) view.data = other.data;
    return view;
}

}  // namespace moebius::ops::sm90
