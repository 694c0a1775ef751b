// The warps beside those that multiply, in attention's backward on Hopper: one loads by TMA, two take sums to
// global memory, each in its turn.
#pragma once

#include "moebius/ops/attention/sm90_backward_memory.cuh"
#include "moebius/ptx/bulk.h"
#include "moebius/ptx/tma.h"

namespace moebius::ops::sm90 {

namespace detail {

// ---- the loader: one warp ----

template <int kHeadDim>
__device__ __forceinline__ void load(const BackwardProblem& p, const Shared<kHeadDim>& shared) {
    using L = Layout<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x % 32);
    Cursor cursor(p.sequences);
    Ring<kStages> ring;
    for (uint32_t count = 0;; ++count) {
        int index = 0;
        if (lane == 0) index = static_cast<int>(atomicAdd(p.next, 1u));
        const Item item = find_item(cursor, p, __shfl_sync(~0u, index, 0));
        const uint32_t slot = count & 1;
        ptx::barrier_wait(shared.item_free(slot), ((count >> 1) & 1) ^ 1);  // partner: take_item
        if (lane == 0) {
            volatile int* to = shared.item(slot);
            to[0] = item.begin;
            to[1] = item.length;
            to[2] = item.tile;
            to[3] = item.head;
            to[4] = item.tiles_before;
            ptx::barrier_arrive(shared.item_full(slot));  // partner: take_item
        }
        if (item.length == 0) return;
        ptx::barrier_wait(shared.keys_free(), (count & 1) ^ 1);  // partner: finish
        if (lane == 0) {
            const int kv_head = item.head / (p.heads / p.kv_heads), row = item.begin + item.first_key();
            ptx::barrier_arrive_expect(shared.keys_full(), 2 * L::kKeyBytes);
            for (int box = 0; box < L::kBoxes; ++box) {
                ptx::tma_load(shared.k() + box * L::kKeyBox, &p.k, shared.keys_full(), 64 * box, row,
                              kv_head);
                ptx::tma_load(shared.v() + box * L::kKeyBox, &p.v, shared.keys_full(), 64 * box, row,
                              kv_head);
            }
        }
        const int end = item.end_step<L::kQueries>(p.window);
        for (int step = item.first_step<L::kQueries>(); step < end; ++step, ring.advance()) {
            const int first = step * L::kQueries, row = item.begin + first;
            ptx::barrier_wait(shared.free(ring.stage), (ring.round & 1) ^ 1);  // partner: add_keys
            if (lane == 0) {
                const uint32_t full = shared.full(ring.stage);
                ptx::barrier_arrive_expect(full, 2 * L::kQueryBytes);
                for (int box = 0; box < L::kBoxes; ++box) {
                    ptx::tma_load(shared.q(ring.stage) + box * L::kQueryBox, &p.q, full, 64 * box, row,
                                  item.head);
                    ptx::tma_load(shared.dout(ring.stage) + box * L::kQueryBox, &p.dout, full, 64 * box, row,
                                  item.head);
                }
            }
            __syncwarp();
            const float2* from = p.stats + int64_t{item.head} * p.sequences.tokens + row;
            float* to = shared.stats(ring.stage);
#pragma unroll
            for (int i = lane; i < L::kQueries; i += 32) {
                // Queries that don't exist have no probabilities.
                const float2 both =
                    first + i < item.length ? from[i] : make_float2(__int_as_float(0x7f800000), 0.0f);
                to[i] = both.x;
                to[L::kQueries + i] = both.y;
            }
            ptx::barrier_arrive(shared.full(ring.stage));  // partner: multiply_scores
        }
    }
}

// ---- the sums' way to global memory: one thread a warpgroup ----

struct Sums {
    uint32_t staging, staged, taken;
    uint32_t count = 0;

    // `rows` rows of 64 floats: stored, or added to what is there.
    __device__ __forceinline__ void copy(float* to, int rows, bool add) const {
        if (rows > 0) {
            const auto bytes = static_cast<uint32_t>(rows) * 256;
            if (add) {
                ptx::bulk_add(to, staging, bytes);
            } else {
                ptx::bulk_store(to, staging, bytes);
            }
        }
        ptx::tma_commit();
        ptx::tma_wait_read<0>();
        ptx::barrier_arrive(taken);  // partner: stage_sums
    }
    __device__ __forceinline__ void wait() {
        ptx::barrier_wait(staged, count++ & 1);  // partner: stage_sums
    }
};

__device__ __forceinline__ int rows_of(int first, int length) {
    return length - first < 64 ? length - first : 64;
}

// By one thread: the copies of all items' sums of one group.
template <int kHeadDim>
__device__ __forceinline__ void write_item(const BackwardProblem& p, const Item& item, Sums& sums,
                                           int group) {
    using L = Layout<kHeadDim>;
    const int end = item.end_step<L::kQueries>(p.window);
    // Half of the tile: 64 queries, or 64 columns.
    const int row = L::kBoxes == 1 ? 64 * group : 0, box = L::kBoxes == 1 ? 0 : group;
    float* dq = p.dq + (int64_t{item.head * L::kBoxes + box} * p.sequences.tokens + item.begin) * 64;
    for (int step = item.first_step<L::kQueries>(); step < end; ++step) {
        const int first = step * L::kQueries + row;
        // Tiles of keys after this one that these queries see.
        const auto turn = static_cast<uint32_t>(step * L::kQueries / kKeys - item.tile);
        uint32_t* flag =
            p.dq_turns + (int64_t{item.tiles_before * L::kBoxes + step} * p.heads + item.head) * 2 + group;
        sums.wait();
        if (turn > 0) ptx::flag_await(flag, turn);  // partner: the block with the next keys
        sums.copy(dq + int64_t{first} * 64, rows_of(first, item.length), turn > 0);
        ptx::bulk_wait_written();
        ptx::flag_release(flag, turn + 1);
    }
    const int of_group = p.heads / p.kv_heads, kv_head = item.head / of_group;
    const auto turn = static_cast<uint32_t>(item.head % of_group);
    uint32_t* flag =
        p.dkv_turns + (int64_t{item.tiles_before + item.tile} * p.kv_heads + kv_head) * 2 + group;
    const int first = item.first_key() + 64 * group, rows = rows_of(first, item.length);
    for (int part = 0; part < 2 * L::kBoxes; ++part) {
        float* to =
            (part < L::kBoxes ? p.dv : p.dk) +
            (int64_t{kv_head * L::kBoxes + part % L::kBoxes} * p.sequences.tokens + item.begin + first) * 64;
        sums.wait();
        if (part == 0 && turn > 0) ptx::flag_await(flag, turn);  // partner: the block with the head before
        sums.copy(to, rows, turn > 0);
    }
    ptx::bulk_wait_written();
    ptx::flag_release(flag, turn + 1);
}

template <int kHeadDim>
__device__ __forceinline__ void write(const BackwardProblem& p, const Shared<kHeadDim>& shared, int group) {
    Sums sums{shared.sums(group), shared.staged(group), shared.taken(group)};
    for (uint32_t count = 0;; ++count) {
        const Item item = take_item(shared, count);
        if (item.length == 0) return;
        if (threadIdx.x % 32 == 0) write_item<kHeadDim>(p, item, sums, group);
        __syncwarp();
    }
}

}  // namespace detail
}  // namespace moebius::ops::sm90
