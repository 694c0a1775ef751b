// What attention's kernels on Hopper share: where sequences lie, rings of stages, how items of work are
// found.
#pragma once

#include <cuda.h>

#include "moebius/ops/attention/sm90.h"
#include "moebius/ptx/mbarrier.h"

namespace moebius::ops::sm90 {

inline constexpr int kKeys = static_cast<int>(kTileKeys);

struct Sequences {
    const int32_t* cu_seqlens;
    int count, tokens;
};

namespace detail {

// Position in a ring of stages.
template <int kStages>
struct Ring {
    uint32_t stage = 0, round = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            ++round;
        }
    }
};

// The sequence that an item belongs to. Length 0: there is no more.
struct Place {
    int begin, length;  // in tokens
    int before, count;  // `count_of` of the sequences before and of this one
};

// Sequences in turn: finds ascending items. By a whole warp.
class Cursor {
  public:
    __device__ explicit Cursor(const Sequences& sequences) : p_(sequences) {}

    // A sequence has `factor` times count_of(its length) items.
    template <class F>
    __device__ Place find(int index, int factor, F&& count_of) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        for (; base_ < p_.count; base_ += 32) {
            int size = 0;
            if (base_ + lane < p_.count) {
                const int64_t wide = int64_t{p_.cu_seqlens[base_ + lane + 1]} - p_.cu_seqlens[base_ + lane];
                size = static_cast<int>(wide < 0 ? 0 : wide < p_.tokens ? wide : p_.tokens);
            }
            const int end = scan(size, rows_, p_.tokens);
            int begin = __shfl_up_sync(~0u, end, 1);
            if (lane == 0) begin = rows_;
            const int count = count_of(end - begin);
            const int counted = scan(count, counted_, 1 << 30);
            const unsigned past = __ballot_sync(~0u, counted * factor > index);
            if (past != 0) {
                const int found = __ffs(static_cast<int>(past)) - 1;
                Place place;
                place.begin = __shfl_sync(~0u, begin, found);
                place.length = __shfl_sync(~0u, end, found) - place.begin;
                place.count = __shfl_sync(~0u, count, found);
                place.before = __shfl_sync(~0u, counted, found) - place.count;
                return place;
            }
            rows_ = __shfl_sync(~0u, end, 31);
            counted_ = __shfl_sync(~0u, counted, 31);
        }
        return {};
    }

  private:
    // before + the sum over this lane and those below, at most `most`.
    __device__ static int scan(int value, int before, int most) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        if (lane == 0) value = min(value + before, most);
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, value, step);
            if (lane >= step) value = min(value + other, most);
        }
        return value;
    }

    const Sequences& p_;
    int base_ = 0, rows_ = 0, counted_ = 0;
};

}  // namespace detail
}  // namespace moebius::ops::sm90
