// What the warps of attention's forward on Hopper share: its arguments, shared memory, items of work, and the
// warp that loads.
#pragma once

#include "moebius/ops/attention/sm90_items.cuh"
#include "moebius/ops/attention/sm90_units.h"
#include "moebius/ops/attention/sm90_views.cuh"
#include "moebius/ptx/tma.h"

namespace moebius::ops::sm90 {

static_assert(UnitPlan::kKeys == kKeys);

struct ForwardProblem {
    CUtensorMap q;     // (heads, T, head_dim) in boxes of 64 columns and a unit's queries
    CUtensorMap k, v;  // the same of a tile's keys
    Rows<__nv_bfloat16> out;
    float* lse;  // (heads, T)
    int64_t lse_stride;
    Sequences sequences;
    int heads, kv_heads;
    int window;        // 0: none
    float scale_log2;  // of scores whose exponent is one of 2
    uint32_t* next;    // item
};

namespace detail {

template <int kHeadDim>
struct ForwardLayout {
    static constexpr int kGroups = static_cast<int>(forward_groups(kHeadDim));
    static constexpr int kThreads = (1 + kGroups) * 128;
    // A thread's: all of an SM's, when the loader's warpgroup has given away what it does not need.
    static constexpr int kRegisters = kGroups == 3 ? 160 : 240, kLoaderRegisters = kGroups == 3 ? 32 : 24;
    static constexpr int kStages = kHeadDim == 64 ? 4 : 2;  // of keys, and of values
    static constexpr int kBoxes = kHeadDim / 64;
    static constexpr uint32_t kUnitBox = UnitPlan::kQueries * 128, kKeyBox = kKeys * 128;
    static constexpr uint32_t kUnitBytes = kBoxes * kUnitBox, kKeyBytes = kBoxes * kKeyBox;

    static constexpr uint32_t kKAt = 2 * kGroups * kUnitBytes;
    static constexpr uint32_t kVAt = kKAt + kStages * kKeyBytes;
    static constexpr uint32_t kBarriersAt = kVAt + kStages * kKeyBytes;
    static constexpr uint32_t kItemsAt = kBarriersAt + 8 * (4 + 4 * kStages);
    static constexpr uint32_t kBytes = kItemsAt + 2 * 16;
    static_assert(kBytes <= 227 * 1024);
};

// A block's shared memory. An item's queries have one of two slots, and its output the same place when all
// scores are known.
template <int kHeadDim>
struct ForwardShared {
    using L = ForwardLayout<kHeadDim>;
    unsigned char* data;
    uint32_t base;

    __device__ uint32_t unit(uint32_t slot, int group) const {
        return base + (slot * L::kGroups + static_cast<uint32_t>(group)) * L::kUnitBytes;
    }
    __device__ uint32_t k(uint32_t stage) const { return base + L::kKAt + stage * L::kKeyBytes; }
    __device__ uint32_t v(uint32_t stage) const { return base + L::kVAt + stage * L::kKeyBytes; }
    __device__ volatile int* item(uint32_t slot) const {
        return reinterpret_cast<int*>(data + L::kItemsAt) + slot * 4;
    }

    __device__ uint32_t barrier(uint32_t index) const { return base + L::kBarriersAt + index * 8; }
    __device__ uint32_t item_full(uint32_t slot) const { return barrier(slot); }
    __device__ uint32_t item_free(uint32_t slot) const { return barrier(2 + slot); }
    __device__ uint32_t k_full(uint32_t stage) const { return barrier(4 + stage); }
    __device__ uint32_t k_free(uint32_t stage) const { return barrier(4 + L::kStages + stage); }
    __device__ uint32_t v_full(uint32_t stage) const { return barrier(4 + 2 * L::kStages + stage); }
    __device__ uint32_t v_free(uint32_t stage) const { return barrier(4 + 3 * L::kStages + stage); }
};

// Units in a row, one a warpgroup.
struct ForwardItem {
    int begin, length;  // of the sequence, in tokens; length 0: there is no more
    int kv_head;
    int first;  // unit
};

// The item at an index, where items are counted by sequence, kv head and unit. By a whole warp.
template <int kGroups>
__device__ __forceinline__ ForwardItem find_item(Cursor& cursor, const ForwardProblem& p, int index) {
    const int group = p.heads / p.kv_heads;
    const Place place = cursor.find(index, p.kv_heads, [&](int length) {
        return (UnitPlan{length, 0, group}.units() + kGroups - 1) / kGroups;
    });
    const int rest = index - place.before * p.kv_heads, count = max(place.count, 1);
    return {place.begin, place.length, rest / count, rest % count * kGroups};
}

// ---- the loader: one warp ----

template <int kHeadDim>
__device__ __forceinline__ void load(const ForwardProblem& p, const ForwardShared<kHeadDim>& shared) {
    using L = ForwardLayout<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x % 32), group = p.heads / p.kv_heads;
    Cursor cursor(p.sequences);
    Ring<L::kStages> k, v;
    for (uint32_t count = 0;; ++count) {
        int index = 0;
        if (lane == 0) index = static_cast<int>(atomicAdd(p.next, 1u));
        const ForwardItem item = find_item<L::kGroups>(cursor, p, __shfl_sync(~0u, index, 0));
        const UnitPlan plan{item.length, p.window, group};
        const uint32_t slot = count & 1, full = shared.item_full(slot);
        ptx::barrier_wait(shared.item_free(slot), ((count >> 1) & 1) ^ 1);  // partner: run
        if (lane == 0) {
            volatile int* to = shared.item(slot);
            to[0] = item.begin;
            to[1] = item.length;
            to[2] = item.kv_head;
            to[3] = item.first;
            const int units = max(0, min(L::kGroups, plan.units() - item.first));
            ptx::barrier_arrive_expect(full, static_cast<uint32_t>(units) * L::kUnitBytes);
            for (int unit = 0; unit < units; ++unit) {
                const int row = item.begin + plan.first_query(item.first + unit);
                const int head = item.kv_head * group + plan.head(item.first + unit);
                for (int box = 0; box < L::kBoxes; ++box)
                    ptx::tma_load(shared.unit(slot, unit) + box * L::kUnitBox, &p.q, full, 64 * box, row,
                                  head);
            }
        }
        if (item.length == 0) return;
        const KeyRange keys = plan.keys_of_all(item.first, L::kGroups);
        // A tile's values are needed while the next tile's scores are computed.
        for (int tile = keys.end - 1; tile >= keys.begin - 1; --tile) {
            if (tile >= keys.begin) {
                ptx::barrier_wait(shared.k_free(k.stage), (k.round & 1) ^ 1);  // partner: release_keys
                if (lane == 0) {
                    ptx::barrier_arrive_expect(shared.k_full(k.stage), L::kKeyBytes);
                    for (int box = 0; box < L::kBoxes; ++box) {
                        ptx::tma_load(shared.k(k.stage) + box * L::kKeyBox, &p.k, shared.k_full(k.stage),
                                      64 * box, item.begin + tile * kKeys, item.kv_head);
                    }
                }
                k.advance();
            }
            if (tile + 1 < keys.end) {
                ptx::barrier_wait(shared.v_free(v.stage), (v.round & 1) ^ 1);  // partner: release_values
                if (lane == 0) {
                    ptx::barrier_arrive_expect(shared.v_full(v.stage), L::kKeyBytes);
                    for (int box = 0; box < L::kBoxes; ++box) {
                        ptx::tma_load(shared.v(v.stage) + box * L::kKeyBox, &p.v, shared.v_full(v.stage),
                                      64 * box, item.begin + (tile + 1) * kKeys, item.kv_head);
                    }
                }
                v.advance();
            }
        }
    }
}

}  // namespace detail
}  // namespace moebius::ops::sm90
