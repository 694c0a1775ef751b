// The order in which windows come, epoch after epoch: a seeded reservoir over their numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/base/philox.h"

namespace moebius::data {

// In each epoch every window comes once. The reservoir is filled with the first `buffer_size` windows; each
// draw takes one at random and puts the next window in its place, until both are used up. It holds numbers, 8
// bytes a window: with buffer_size >= windows the order is a full shuffle, with 1 it is the files' own. A
// draw depends on (seed, epoch, draw) and those before it in its epoch: any position is reached by repeating
// these, about 20 ns each.
class Shuffle {
  public:
    Shuffle(int64_t windows, int64_t buffer_size, uint64_t seed);

    // The window of the draw, from 0, of the epoch, from 0. Cheap if the draws are asked for in order.
    int64_t window(int64_t epoch, int64_t draw);

    int64_t windows() const { return windows_; }

  private:
    void begin_epoch(int64_t epoch);
    int64_t take();

    int64_t windows_, buffer_size_;
    Philox random_;
    std::vector<int64_t> reservoir_;
    int64_t epoch_ = -1;
    int64_t draw_ = 0;  // the next one
    int64_t next_ = 0;  // window that goes into the reservoir next
};

}  // namespace moebius::data
