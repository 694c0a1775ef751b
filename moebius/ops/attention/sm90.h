// Backward on Hopper: what it takes, and the memory it works in. Rules on shapes alone, no GPU involved.
#pragma once

#include "moebius/ops/attention/attention.h"

namespace moebius::ops::sm90 {

// Keys of a tile. A tile's queries are as many at head_dim 64, half as many at 128.
inline constexpr int64_t kTileKeys = 128;

struct BackwardSizes {
    int64_t key_tiles = 0;    // that the sequences make at most
    int64_t query_tiles = 0;  // the same of queries
    int64_t flags = 0;        // one a sum that several blocks add to in order, and one for the next item
    int64_t sums = 0;         // floats of the unrounded dq, dk, dv
    int64_t items = 0;        // a tile of keys and a query head that reads it
};
BackwardSizes backward_sizes(const AttentionBackwardArgs& args);

// The reason against that follows from the arguments; "" for none.
std::string refused(const AttentionBackwardArgs& args);

void attention_backward(const AttentionBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
