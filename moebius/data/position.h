// Where a data rank stands in the stream of windows, as text that a checkpoint carries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moebius::data {

// A window of which `offset` tokens (BOS counted) have been used.
struct DrawRef {
    int64_t epoch = 0, draw = 0, offset = 0;
};

// All data ranks share one stream of items: first `pending`, then the draws from (epoch, draw) on, without
// end. Rank r of n takes the items r, r + n, r + 2n, …: as long as ranks × samples a rank stay the same, so
// do the global batches.
struct StreamStart {
    int64_t epoch = 0, draw = 0;
    std::vector<DrawRef> pending;
};

struct Position {
    // What the position is valid for.
    uint64_t seed = 0;
    int64_t windows = 0, buffer_size = 0, max_seq_length = 0;
    std::optional<int64_t> stride;
    std::string content;  // the data set's fingerprint and the ranges' borders

    StreamStart start;
    int32_t rank = 0, world = 1;
    int64_t items = 0;   // that this rank has used up
    int64_t offset = 0;  // tokens that it has used of its next item

    std::string to_json() const;
    static Position parse(const std::string& text);  // throws Error if it isn't one
};

// Throws Error naming the key and both values if `saved` isn't of the same data, options, rank and world.
void check_matches(const Position& saved, const Position& now);

// The positions for `new_world` ranks that go on where those of all old ranks, in any order, stood: what no
// old rank had used comes exactly once, first the items left behind by the slowest ranks (begun ones with the
// rest of their tokens), then the stream's next ones. If all ranks had used equally many (always so without
// packing), the global order is that of a run that had the new world from the start. Reads no data.
std::vector<std::string> resplit(const std::vector<std::string>& positions, int32_t new_world);

}  // namespace moebius::data
