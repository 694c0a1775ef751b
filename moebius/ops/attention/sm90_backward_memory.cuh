// What the warps of attention's backward on Hopper share: its arguments, shared memory, items of work.
#pragma once

#include "moebius/ops/attention/sm90_items.cuh"

namespace moebius::ops::sm90 {

inline constexpr int kGroups = 2, kThreads = (1 + kGroups) * 128;
inline constexpr int kStages = 2;  // of queries and dout
static_assert(kStages == 2, "a stage is the other one of the stage before");

struct BackwardProblem {
    CUtensorMap q, dout, k, v;  // (heads, T, head_dim) in boxes of 64 columns and a tile's rows
    Sequences sequences;
    int heads, kv_heads;
    int window;                      // 0: none
    float scale_log2;                // of scores whose exponent is one of 2
    const float2* stats;             // (Hq, T): lse · log2(e), delta
    float *dq, *dk, *dv;             // unrounded and, dq and dk, unscaled
    uint32_t *dq_turns, *dkv_turns;  // (query tiles, Hq, 2), (key tiles, Hkv, 2): how many have added
    uint32_t* next;                  // item
};

namespace detail {

template <int kHeadDim>
struct Layout {
    static constexpr int kBoxes = kHeadDim / 64;
    static constexpr int kQueries = kKeys / kBoxes;
    static constexpr uint32_t kKeyBox = kKeys * 128, kQueryBox = kQueries * 128, kScoreBox = kKeys * 128;
    static constexpr uint32_t kKeyBytes = kBoxes * kKeyBox, kQueryBytes = kBoxes * kQueryBox;
    static constexpr uint32_t kScoreBytes =
        kQueries / 64 * kScoreBox;  // boxes of 64 queries, (keys, queries)
    static constexpr uint32_t kSumBytes = 64 * 64 * 4;

    static constexpr uint32_t kVAt = kKeyBytes;
    static constexpr uint32_t kStagesAt = 2 * kKeyBytes;
    static constexpr uint32_t kScoresAt = kStagesAt + kStages * 2 * kQueryBytes;
    static constexpr uint32_t kSumsAt = kScoresAt + 2 * kScoreBytes;
    static constexpr uint32_t kStatsAt = kSumsAt + kGroups * kSumBytes;
    static constexpr uint32_t kBarriersAt = kStatsAt + kStages * 2 * kQueries * 4;
    static constexpr uint32_t kItemsAt = kBarriersAt + 8 * (2 * kStages + 14);
    static constexpr uint32_t kBytes = kItemsAt + 2 * 32;
    static_assert(kBytes <= 227 * 1024);
};

// A block's shared memory.
template <int kHeadDim>
struct Shared {
    using L = Layout<kHeadDim>;
    unsigned char* data;
    uint32_t base;

    __device__ uint32_t k() const { return base; }
    __device__ uint32_t v() const { return base + L::kVAt; }
    __device__ uint32_t q(uint32_t stage) const { return base + L::kStagesAt + stage * 2 * L::kQueryBytes; }
    __device__ uint32_t dout(uint32_t stage) const { return q(stage) + L::kQueryBytes; }
    __device__ uint32_t scores(uint32_t tile) const {
        return base + L::kScoresAt + (tile & 1) * L::kScoreBytes;
    }
    __device__ uint32_t sums(int group) const {
        return base + L::kSumsAt + static_cast<uint32_t>(group) * L::kSumBytes;
    }
    __device__ uint32_t lse(uint32_t stage) const { return base + L::kStatsAt + stage * 2 * L::kQueries * 4; }
    __device__ uint32_t delta(uint32_t stage) const { return lse(stage) + L::kQueries * 4; }
    __device__ float* stats(uint32_t stage) const {
        return reinterpret_cast<float*>(data + L::kStatsAt) + stage * 2 * L::kQueries;
    }
    __device__ volatile int* item(uint32_t slot) const {
        return reinterpret_cast<int*>(data + L::kItemsAt) + slot * 8;
    }

    __device__ uint32_t barrier(uint32_t index) const { return base + L::kBarriersAt + index * 8; }
    __device__ uint32_t full(uint32_t stage) const { return barrier(stage); }
    __device__ uint32_t free(uint32_t stage) const { return barrier(kStages + stage); }
    __device__ uint32_t keys_full() const { return barrier(2 * kStages); }
    __device__ uint32_t keys_free() const { return barrier(2 * kStages + 1); }
    __device__ uint32_t item_full(uint32_t slot) const { return barrier(2 * kStages + 2 + slot); }
    __device__ uint32_t item_free(uint32_t slot) const { return barrier(2 * kStages + 4 + slot); }
    __device__ uint32_t staged(int group) const {
        return barrier(2 * kStages + 6 + static_cast<uint32_t>(group));
    }
    __device__ uint32_t taken(int group) const {
        return barrier(2 * kStages + 8 + static_cast<uint32_t>(group));
    }
    __device__ uint32_t scores_full(uint32_t tile) const { return barrier(2 * kStages + 10 + (tile & 1)); }
    __device__ uint32_t scores_free(uint32_t tile) const { return barrier(2 * kStages + 12 + (tile & 1)); }
};

// A tile of keys and a query head.
struct Item {
    int begin, length;  // of the sequence, in tokens; length 0: there is no more
    int tile;           // of keys, in the sequence
    int head;
    int tiles_before;  // of keys, in the sequences before

    __device__ int first_key() const { return tile * kKeys; }
    template <int kQueries>
    __device__ int first_step() const {
        return tile * (kKeys / kQueries);
    }
    // Past the last tile of queries that sees a key.
    template <int kQueries>
    __device__ int end_step(int window) const {
        const int past = first_key() + kKeys < length ? first_key() + kKeys : length;
        const int end = window > 0 && window < length - past + 1 ? past - 1 + window : length;
        return (end + kQueries - 1) / kQueries;
    }
};

// The item at an index, where items are counted by sequence, kv head, descending tile and head. By a whole
// warp.
__device__ __forceinline__ Item find_item(Cursor& cursor, const BackwardProblem& p, int index) {
    const Place place = cursor.find(index, p.heads, [](int length) { return (length + kKeys - 1) / kKeys; });
    const int group = p.heads / p.kv_heads, rest = index - place.before * p.heads;
    const int of_kv_head = max(place.count, 1) * group;
    Item item;
    item.begin = place.begin;
    item.length = place.length;
    item.tiles_before = place.before;
    item.tile = place.count - 1 - rest % of_kv_head / group;
    item.head = rest / of_kv_head * group + rest % group;
    return item;
}

// An item that the loader has found. By a whole warp.
template <int kHeadDim>
__device__ __forceinline__ Item take_item(const Shared<kHeadDim>& shared, uint32_t count) {
    const uint32_t slot = count & 1;
    ptx::barrier_wait(shared.item_full(slot), (count >> 1) & 1);  // partner: load
    const volatile int* from = shared.item(slot);
    const Item item{from[0], from[1], from[2], from[3], from[4]};
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(shared.item_free(slot));  // partner: load
    return item;
}

}  // namespace detail
}  // namespace moebius::ops::sm90
