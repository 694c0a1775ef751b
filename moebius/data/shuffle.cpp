#include "moebius/data/shuffle.h"

#include <algorithm>
#include <numeric>

#include "moebius/base/check.h"

namespace moebius::data {

Shuffle::Shuffle(int64_t windows, int64_t buffer_size, uint64_t seed)
    : windows_(windows), buffer_size_(std::min(buffer_size, windows)), random_(seed, "data.shuffle") {
    MOEBIUS_CHECK(windows > 0 && buffer_size > 0, windows, " windows, buffer of ", buffer_size);
    reservoir_.reserve(static_cast<size_t>(buffer_size_));
}

void Shuffle::begin_epoch(int64_t epoch) {
    epoch_ = epoch;
    draw_ = 0;
    next_ = buffer_size_;
    reservoir_.resize(static_cast<size_t>(buffer_size_));
    std::iota(reservoir_.begin(), reservoir_.end(), 0);
}

int64_t Shuffle::take() {
    const uint64_t index = (static_cast<uint64_t>(epoch_) << 40) + static_cast<uint64_t>(draw_++);
    const auto slot = static_cast<size_t>(random_.below(index, reservoir_.size()));
    const int64_t window = reservoir_[slot];
    if (next_ < windows_) {
        reservoir_[slot] = next_++;
    } else {
        reservoir_[slot] = reservoir_.back();
        reservoir_.pop_back();
    }
    return window;
}

int64_t Shuffle::window(int64_t epoch, int64_t draw) {
    MOEBIUS_CHECK(epoch >= 0 && draw >= 0 && draw < windows_, "epoch ", epoch, ", draw ", draw, " of ",
                  windows_);
    if (epoch != epoch_ || draw < draw_) begin_epoch(epoch);
    while (draw_ < draw) take();
    return take();
}

}  // namespace moebius::data
