// Attention's backward on Hopper, by tiles of keys, with sums of dq in an order that never changes.
//
// An item of work is a tile of 128 keys of one sequence and one query head that reads it. Its block goes
// through the tiles of queries that see the keys, in ascending order, and computes of each
//   S^T = K Q^T, dP^T = V dO^T, P^T = exp2(scale · S^T − lse), dS^T = P^T (dP^T − delta),
//   dV += P^T dO, dK += dS^T Q, both kept in registers, and dQ = dS K, which other blocks add to as well.
// One warp loads by TMA; two warpgroups multiply, each for 64 of the keys; for dQ they exchange dS through
// shared memory, and each computes half of the tile: 64 queries, or 64 columns.
//
// Order without waiting: blocks take items as they are free, a sequence's last keys first. So when all of a
// head's blocks run side by side, each is about a tile of queries behind the block that has the keys after
// its own, and sums for a tile of queries arrive in the order of descending keys by themselves. A flag a sum
// makes sure: a warp beside the loader copies a tile to global memory (the first stores, the others add
// in L2) when its turn has come. What an item waits for has been taken before it: nothing can lock up.
// dk and dv of the query heads that share a kv head are added in the order of heads in the same way.
//
// The unrounded sums are rows of 64 floats, (heads, head_dim / 64, T, 64). Eight floats j of a token's row
// lie at place j ^ (token % 8), so that warps write tiles to shared memory without bank conflicts.
#pragma once

#include "moebius/ops/attention/sm90_copies.cuh"
#include "moebius/ops/attention/sm90_fragments.cuh"

namespace moebius::ops::sm90 {

namespace detail {

// ---- the products: two warpgroups ----

// (64, 64) sums to the staging, for write(). `token` of the first row.
__device__ __forceinline__ void stage_sums(const float* sums, const Sums& to, int token, const Thread& t) {
    const int row = t.warp * 16 + t.lane / 4;
    const auto turned = static_cast<uint32_t>((token + row) % 8);
    const uint32_t at = to.staging + static_cast<uint32_t>(row * 256 + t.lane % 4 * 8);
    ptx::barrier_wait(to.taken, (to.count & 1) ^ 1);  // partner: write
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
        ptx::store_shared(at + (j ^ turned) * 32, sums[4 * j], sums[4 * j + 1]);
        ptx::store_shared(at + (j ^ turned) * 32 + 8 * 256, sums[4 * j + 2], sums[4 * j + 3]);
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (t.lane == 0) ptx::barrier_arrive(to.staged);  // partner: write
}

template <int kHeadDim>
class Products {
  public:
    using L = Layout<kHeadDim>;

    __device__ __forceinline__ Products(const BackwardProblem& p, const Shared<kHeadDim>& shared,
                                        Thread thread)
        : p_(p),
          shared_(shared),
          t_(thread),
          sums_{shared.sums(thread.group), shared.staged(thread.group), shared.taken(thread.group)} {}

    __device__ __forceinline__ void run() {
        for (uint32_t count = 0;; ++count) {
            const Item item = take_item(shared_, count);
            if (item.length == 0) return;
            ptx::barrier_wait(shared_.keys_full(), count & 1);  // partner: TMA
            const int keys = item.length - item.first_key();
            if (keys < kKeys) {
                zero_rows<kGroups>(shared_.k(), 2 * L::kBoxes, keys, kKeys, t_);
                show_zeros<kGroups>();
            }
            clear(dk_);
            clear(dv_);
            const int begin = item.first_step<L::kQueries>(), end = item.end_step<L::kQueries>(p_.window);
            multiply_scores<false>(item, begin);
            if (end - begin > 1) {
                add_keys<false>();
                multiply_scores<false>(item, begin + 1);
                for (int i = begin + 2; i < end; ++i) {
                    add_keys<true>();
                    multiply_scores<true>(item, i);
                }
                add_keys<true>();
                ptx::wgmma_wait<0>();
                stage_dq(item, end - 2, tile_ - 2);
            } else {
                add_keys<false>();
            }
            finish(item, end - 1);
        }
    }

  private:
    static constexpr bool kRoundedTwice = L::kQueries == 128;

    __device__ __forceinline__ void release(uint32_t barrier) const {
        __syncwarp();
        if (t_.lane == 0) ptx::barrier_arrive(barrier);
    }

    // (64 of the keys, queries) = rows of k or v · rows of q or dout.
    __device__ __forceinline__ void multiply_rows(float (&out)[L::kQueries / 2], uint32_t keys,
                                                  uint32_t queries) const {
        ptx::wgmma_fence();
#pragma unroll
        for (int box = 0; box < L::kBoxes; ++box) {
            const uint64_t a = ptx::k_major_descriptor(here(keys + box * L::kKeyBox + t_.group * 64 * 128));
            const uint64_t b = ptx::k_major_descriptor(here(queries + box * L::kQueryBox));
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (box + k == 0) {
                    ptx::wgmma_x16<false, false>(out, a, b);
                } else {
                    ptx::wgmma_add_x16<false, false>(out, ptx::advance(a, k * 32), ptx::advance(b, k * 32));
                }
            }
        }
        ptx::wgmma_commit();
    }

    // sums (64 of the keys, head_dim) += left (those keys, queries) · rows of q or dout.
    __device__ __forceinline__ void add_rows(float (&sums)[kHeadDim / 2],
                                             const uint32_t (&left)[L::kQueries / 16][4],
                                             uint32_t queries) const {
        const uint64_t b = ptx::mn_major_descriptor(here(queries), L::kQueryBox);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < L::kQueries / 16; ++k)
            ptx::wgmma_add_x16<true>(sums, left[k], ptx::advance(b, k * 2048));
        ptx::wgmma_commit();
    }

    // The group's half of dq, from both groups' dS of a tile.
    __device__ __forceinline__ void multiply_dq(uint32_t tile) {
        const uint32_t scores = shared_.scores(tile);
        ptx::barrier_wait(shared_.scores_full(tile), (tile >> 1) & 1);  // partner: show_scores
        const uint64_t a = ptx::mn_major_descriptor(
            here(scores + (L::kBoxes == 1 ? t_.group : 0) * L::kScoreBox), L::kScoreBox);
        const uint64_t b = ptx::mn_major_descriptor(
            here(shared_.k() + (L::kBoxes == 1 ? 0 : t_.group) * L::kKeyBox), L::kKeyBox);
        ptx::wgmma_fence();
        ptx::wgmma_x16<true, true>(dq_, a, b);
#pragma unroll
        for (int k = 1; k < kKeys / 16; ++k)
            ptx::wgmma_add_x16<true, true>(dq_, ptx::advance(a, k * 2048), ptx::advance(b, k * 2048));
        ptx::wgmma_commit();
    }
    // The product is done.
    __device__ __forceinline__ void stage_dq(const Item& item, int step, uint32_t tile) {
        ptx::wgmma_hold(dq_);
        release(shared_.scores_free(tile));
        const int row = step * L::kQueries + (L::kBoxes == 1 ? 64 * t_.group : 0);
        stage_sums(dq_, sums_, item.begin + row, t_);
        ++sums_.count;
    }

    // dS^T of the group's keys, for both groups' dq.
    __device__ __forceinline__ void show_scores(const uint32_t (&left)[L::kQueries / 16][4]) {
        const int matrix = t_.lane / 8, row = t_.group * 64 + t_.warp * 16 + matrix % 2 * 8 + t_.lane % 8;
        const uint32_t at = shared_.scores(tile_) + static_cast<uint32_t>(row) * 128;
        ptx::barrier_wait(shared_.scores_free(tile_), ((tile_ >> 1) & 1) ^ 1);  // partner: stage_dq
#pragma unroll
        for (int k = 0; k < L::kQueries / 16; ++k) {
            const auto chunk = static_cast<uint32_t>((k % 4 * 2 + matrix / 2) ^ (t_.lane % 8));
            ptx::store_matrices(at + k / 4 * L::kScoreBox + chunk * 16, left[k][0], left[k][1], left[k][2],
                                left[k][3]);
        }
        ptx::fence_async_shared();
        __syncwarp();
        if (t_.lane == 0) ptx::barrier_arrive(shared_.scores_full(tile_));  // partner: multiply_dq
    }

    // Pairs that don't see each other.
    __device__ __forceinline__ void mask(float (&scores)[L::kQueries / 2], const Item& item, int step) const {
        const int key = item.first_key() + t_.group * 64, query = step * L::kQueries;
        const bool all = query >= key + 63 && (p_.window == 0 || query + L::kQueries - 1 - key < p_.window);
        if (all) return;
        const unsigned window = p_.window > 0 ? static_cast<unsigned>(p_.window) : 0x7fffffffu;
        const int distance = query + t_.lane % 4 * 2 - (key + t_.warp * 16 + t_.lane / 4);
#pragma unroll
        for (int i = 0; i < L::kQueries / 2; ++i) {
            const auto behind = static_cast<unsigned>(distance + i / 4 * 8 - i / 2 % 2 * 8 + i % 2);
            if (behind >= window) scores[i] = __int_as_float(0xff800000);
        }
    }

    // A tile of queries goes through multiply_scores and add_keys; dq of the one before is computed between
    // the two. So the groups, which need one another's gradients for dq, may be most of a tile apart, one
    // computing exponents while the other multiplies. Nothing is in flight where the loop closes: the
    // compiler would put all products one after the other.

    // Probabilities, and gradients before delta is taken away. kDq: dq of the tile two before is in flight.
    template <bool kDq>
    __device__ __forceinline__ void multiply_scores(const Item& item, int index) {
        const uint32_t stage = ring_.stage;
        ptx::barrier_wait(shared_.full(stage), ring_.round & 1);  // partner: TMA, load
        const int rows = item.length - index * L::kQueries;
        if (rows < L::kQueries) {
            zero_rows<kGroups>(shared_.q(stage), 2 * L::kBoxes, rows, L::kQueries, t_);
            show_zeros<kGroups>();
        }
        multiply_rows(scores_, shared_.k(), shared_.q(stage));
        if constexpr (kDq) {
            ptx::wgmma_wait<1>();
            stage_dq(item, index - 2, tile_ - 2);
        }
        multiply_rows(gradients_, shared_.v(), shared_.dout(stage));
        ptx::wgmma_wait<1>();
        ptx::wgmma_hold(scores_);
        mask(scores_, item, index);
        const uint32_t lse_at = shared_.lse(stage) + static_cast<uint32_t>(t_.lane % 4 * 8);
#pragma unroll
        for (int j = 0; j < L::kQueries / 8; ++j) {
            const float2 lse = ptx::load_shared_floats(lse_at + j * 32);
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                scores_[4 * j + x] = ptx::exp2_approximate(
                    fmaf(scores_[4 * j + x], p_.scale_log2, x % 2 == 0 ? -lse.x : -lse.y));
            }
        }
        pack(left_, scores_);
        ptx::wgmma_wait<0>();
        ptx::wgmma_hold(gradients_);
    }

    // Rounded where registers don't suffice for both, as dv has it.
    __device__ __forceinline__ float probability(int i) const {
        if constexpr (kRoundedTwice) {
            const uint32_t pair = left_[i / 8][i / 2 % 4];
            return i % 2 == 0 ? ptx::low_bf16(pair) : ptx::high_bf16(pair);
        } else {
            return scores_[i];
        }
    }

    // kDq: there is a tile before, whose dq is left in flight.
    template <bool kDq>
    __device__ __forceinline__ void add_keys() {
        const uint32_t stage = ring_.stage;
        add_rows(dv_, left_, shared_.dout(stage));
        const uint32_t delta_at = shared_.delta(stage) + static_cast<uint32_t>(t_.lane % 4 * 8);
#pragma unroll
        for (int j = 0; j < L::kQueries / 8; ++j) {
            const float2 delta = ptx::load_shared_floats(delta_at + j * 32);
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                gradients_[4 * j + x] =
                    probability(4 * j + x) * (gradients_[4 * j + x] - (x % 2 == 0 ? delta.x : delta.y));
            }
        }
        uint32_t left_gradients[L::kQueries / 16][4];
        pack(left_gradients, gradients_);
        add_rows(dk_, left_gradients, shared_.q(stage));
        show_scores(left_gradients);
        if constexpr (kDq) {
            multiply_dq(tile_ - 1);
            ptx::wgmma_wait<1>();
        } else {
            ptx::wgmma_wait<0>();
        }
        release(shared_.free(stage));  // partner: load
        ++tile_;
        ring_.advance();
    }

    __device__ __forceinline__ void finish(const Item& item, int last) {
        multiply_dq(tile_ - 1);
        ptx::wgmma_wait<0>();
        release(shared_.keys_free());  // partner: load
        ptx::wgmma_hold(dk_);
        ptx::wgmma_hold(dv_);
        stage_dq(item, last, tile_ - 1);
        const int token = item.begin + item.first_key() + 64 * t_.group;
#pragma unroll
        for (int box = 0; box < L::kBoxes; ++box, ++sums_.count) stage_sums(dv_ + 32 * box, sums_, token, t_);
#pragma unroll
        for (int box = 0; box < L::kBoxes; ++box, ++sums_.count) stage_sums(dk_ + 32 * box, sums_, token, t_);
    }

    const BackwardProblem& p_;
    const Shared<kHeadDim>& shared_;
    const Thread t_;
    Sums sums_;
    Ring<kStages> ring_;
    uint32_t tile_ = 0;  // of queries, so far
    float scores_[L::kQueries / 2], gradients_[L::kQueries / 2];
    uint32_t left_[L::kQueries / 16][4];  // scores_, rounded
    float dk_[kHeadDim / 2], dv_[kHeadDim / 2], dq_[32];
};

}  // namespace detail

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_sm90(const __grid_constant__ BackwardProblem p) {
    extern __shared__ __align__(1024) unsigned char moebius_tiles[];
    const detail::Shared<kHeadDim> shared{moebius_tiles, ptx::shared_address(moebius_tiles)};
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < 2; ++i) {
            const int group = static_cast<int>(i);
            ptx::barrier_init(shared.full(i), 1 + 32);
            ptx::barrier_init(shared.free(i), kGroups * 4);
            ptx::barrier_init(shared.item_full(i), 1);
            ptx::barrier_init(shared.item_free(i), kGroups * 5);
            ptx::barrier_init(shared.staged(group), 4);
            ptx::barrier_init(shared.taken(group), 1);
            ptx::barrier_init(shared.scores_full(i), kGroups * 4);
            ptx::barrier_init(shared.scores_free(i), kGroups * 4);
        }
        ptx::barrier_init(shared.keys_full(), 1);
        ptx::barrier_init(shared.keys_free(), kGroups * 4);
        ptx::fence_barrier_init();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (warp < 4) {
        ptx::give_registers<24>();
        if (warp == 0) detail::load(p, shared);
        if (warp == 1 || warp == 2) detail::write(p, shared, warp - 1);
    } else {
        ptx::take_registers<240>();
        detail::Products<kHeadDim>(p, shared, {warp / 4 - 1, warp % 4, static_cast<int>(threadIdx.x % 32)})
            .run();
    }
}

}  // namespace moebius::ops::sm90
