// Intersections of contiguous ranges: all that resharding is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "moebius/tensor/view.h"

namespace moebius::checkpoint {

struct Range {
    int64_t begin = 0;
    int64_t count = 0;
};

inline Range intersect(Range a, Range b) {
    const int64_t begin = std::max(a.begin, b.begin);
    const int64_t end = std::min(a.begin + a.count, b.begin + b.count);
    return {begin, std::max<int64_t>(0, end - begin)};
}

// Elements [begin, begin + count) of a contiguous view, as a flat one.
inline View elements(const View& view, int64_t begin, int64_t count) {
    MOEBIUS_CHECK(view.contiguous() && begin >= 0 && begin + count <= view.numel(), begin, " + ", count,
                  " of ", view.numel());
    return View(static_cast<char*>(view.data) + bytes_of(view.dtype, begin), view.dtype, Shape{count});
}

}  // namespace moebius::checkpoint
