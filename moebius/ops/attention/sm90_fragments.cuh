// Pieces of attention's products on Hopper that forward and backward share: sums in registers, rows that do
// not exist.
#pragma once

#include "moebius/ptx/matrix.h"
#include "moebius/ptx/sync.h"
#include "moebius/ptx/wgmma_narrow.h"

namespace moebius::ops::sm90::detail {

// Of a thread in its warpgroup.
struct Thread {
    int group, warp, lane;
};

// The same address, computed here: descriptors that the compiler keeps from one tile to the next take the
// registers of sums.
__device__ __forceinline__ uint32_t here(uint32_t address) {
    asm volatile("" : "+r"(address));
    return address;
}

template <int kCount>
__device__ __forceinline__ void pack(uint32_t (&to)[kCount / 8][4], const float (&from)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) to[i / 4][i % 4] = ptx::pack_bf16(from[2 * i], from[2 * i + 1]);
}

template <int kCount>
__device__ __forceinline__ void clear(float (&sums)[kCount]) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
}

// Rows [rows, all) of boxes of `all` rows of 128 bytes. By all of kGroups warpgroups.
template <int kGroups>
__device__ __forceinline__ void zero_rows(uint32_t boxes, int count, int rows, int all, const Thread& t) {
    const int thread = (t.group * 4 + t.warp) * 32 + t.lane;
    for (int box = 0; box < count; ++box) {
        for (int chunk = rows * 8 + thread; chunk < all * 8; chunk += kGroups * 128)
            ptx::store_shared(boxes + static_cast<uint32_t>((box * all * 8 + chunk) * 16), uint4{0, 0, 0, 0});
    }
}
constexpr int kZeroBarrier = 1;
template <int kGroups>
__device__ __forceinline__ void show_zeros() {
    ptx::fence_async_shared();
    ptx::named_barrier_wait(kZeroBarrier, kGroups * 128);  // partner: the other warpgroups
}

}  // namespace moebius::ops::sm90::detail
