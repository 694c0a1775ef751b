// Attention on Hopper: what it takes, and the memory it works in. Rules on shapes alone, no GPU involved.
#pragma once

#include "moebius/ops/attention/attention.h"

namespace moebius::ops::sm90 {

// Keys of a tile. Backward's tiles have as many queries at head_dim 64, half as many at 128.
inline constexpr int64_t kTileKeys = 128;

struct BackwardSizes {
    int64_t key_tiles = 0;    // that the sequences make at most
    int64_t query_tiles = 0;  // the same of queries
    int64_t flags = 0;        // one a sum that several blocks add to in order, and one for the next item
    int64_t sums = 0;         // floats of the unrounded dq, dk, dv
    int64_t items = 0;        // a tile of keys and a query head that reads it
};
BackwardSizes backward_sizes(const AttentionBackwardArgs& args);

struct ForwardSizes {
    int64_t items = 0;  // what a block computes at a time, as many as the sequences make at most
};
// Warpgroups of a block that multiply, each for 64 queries: as many as have registers.
constexpr int forward_groups(int64_t head_dim) {
    return head_dim == 64 ? 3 : 2;
}
ForwardSizes forward_sizes(const AttentionArgs& args);

// The reason against that follows from the arguments; "" for none.
std::string refused(const AttentionArgs& args);
std::string refused(const AttentionBackwardArgs& args);

void attention(const AttentionArgs& args, const Exec& exec);
void attention_backward(const AttentionBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
