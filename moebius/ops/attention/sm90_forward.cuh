// Attention's forward on Hopper: online softmax (Milakov and Gimelshein 2018) over tiles of keys, its
// products arranged as in FlashAttention-3 (Shah et al. 2024).
//
// A warpgroup computes a unit, 64 queries under one head; the two or three of a block read the same tiles of
// 128 keys. It goes through them downwards, so that the first are those that are masked, and of each computes
//   S = Q K^T, P = exp2(scale · S − m), O += P V, l += the sums of P's rows.
// P V of a tile is in flight while the exponents of the next are computed; while a warpgroup waits for its
// scores, the others compute exponents.
//
// m is the largest score of the first tile, and stays: a larger one makes P larger than 1, which rounds as
// well, and O and l have room up to 2^127. So no tile but the first looks for its largest score. A sum of P
// that is above 2^40, or no number, shows that m is too low. The warp, which has no scores any more, then
// computes them again, finds the largest, and O and l are rescaled.
#pragma once

#include "moebius/ops/attention/sm90_forward_memory.cuh"
#include "moebius/ops/attention/sm90_fragments.cuh"
#include "moebius/ptx/mma.h"

namespace moebius::ops::sm90 {

namespace detail {

constexpr int kGroupBarrier = kZeroBarrier + 1;  // the first of a warpgroup's each

template <int kHeadDim>
class ForwardProducts {
  public:
    using L = ForwardLayout<kHeadDim>;

    __device__ __forceinline__ ForwardProducts(const ForwardProblem& p, const ForwardShared<kHeadDim>& shared,
                                               Thread thread)
        : p_(p), shared_(shared), t_(thread) {}

    __device__ __forceinline__ void run() {
        for (uint32_t count = 0;; ++count) {
            const uint32_t slot = count & 1;
            ptx::barrier_wait(shared_.item_full(slot), (count >> 1) & 1);  // partner: load
            const volatile int* from = shared_.item(slot);
            const ForwardItem item{from[0], from[1], from[2], from[3]};
            if (item.length == 0) return;
            queries_ = shared_.unit(slot, t_.group);
            compute(item);
            // What was read and written here comes before the copies that fill the slot again.
            ptx::fence_async_shared();
            release(shared_.item_free(slot));  // partner: load
        }
    }

  private:
    __device__ __forceinline__ void release(uint32_t barrier) const {
        __syncwarp();
        if (t_.lane == 0) ptx::barrier_arrive(barrier);
    }
    __device__ __forceinline__ void await_keys() const {
        ptx::barrier_wait(shared_.k_full(k_.stage), k_.round & 1);  // partner: TMA
    }
    __device__ __forceinline__ void await_values() const {
        ptx::barrier_wait(shared_.v_full(v_.stage), v_.round & 1);  // partner: TMA
    }
    __device__ __forceinline__ void release_keys() {
        release(shared_.k_free(k_.stage));  // partner: load
        k_.advance();
    }
    __device__ __forceinline__ void release_values() {
        release(shared_.v_free(v_.stage));  // partner: load
        v_.advance();
    }

    __device__ __forceinline__ void compute(const ForwardItem& item) {
        const UnitPlan plan{item.length, p_.window, p_.heads / p_.kv_heads};
        const KeyRange all = plan.keys_of_all(item.first, L::kGroups);
        const int unit = item.first + t_.group;
        const bool idle = unit >= plan.units();
        const KeyRange mine = idle ? KeyRange{all.begin, all.begin} : plan.keys(unit);
        const int keys = item.length - (all.end - 1) * kKeys;
        if (keys < kKeys) {
            // Probabilities of keys past the end are zeros, which NaN would not heed.
            await_values();
            zero_rows<L::kGroups>(shared_.v(v_.stage), L::kBoxes, keys, kKeys, t_);
            show_zeros<L::kGroups>();
        }
        skip(all.end - mine.end);
        if (!idle) {
            first_query_ = plan.first_query(unit);
            begin(mine.end - 1);
            for (int tile = mine.end - 2; tile >= mine.begin; --tile) step(tile);
            await_values();
            multiply_values();
            ptx::wgmma_wait<0>();
            ptx::wgmma_hold(out_);
            release_values();
            store(item, item.kv_head * (p_.heads / p_.kv_heads) + plan.head(unit));
        }
        skip(mine.begin - all.begin);
    }

    // Tiles that other warpgroups need.
    __device__ __forceinline__ void skip(int tiles) {
#pragma unroll 1
        for (; tiles > 0; --tiles) {
            await_keys();
            release_keys();
            await_values();
            release_values();
        }
    }

    // The first tile.
    __device__ __forceinline__ void begin(int tile) {
        await_keys();
        multiply_scores();
        clear(out_);
        ptx::wgmma_wait<0>();
        ptx::wgmma_hold(scores_);
        release_keys();
        mask(tile);
        most_[0] = most_[1] = __int_as_float(0xff800000);
        sums_[0] = sums_[1] = 0.0f;
        float factor[2], sums[2];
        raise(factor);
        exponents(sums);
        sums_[0] = sums[0];
        sums_[1] = sums[1];
        pack(left_, scores_);
    }

    // Every other: its scores, then its probabilities while the values of the tile before are multiplied.
    __device__ __forceinline__ void step(int tile) {
        await_keys();
        await_values();
        multiply_scores();
        multiply_values();
        ptx::wgmma_wait<1>();
        ptx::wgmma_hold(scores_);
        mask(tile);
        float sums[2];
        exponents(sums);
        // Each branch waits by itself, or the exponents would be computed after the product.
        if (__any_sync(~0u, !(sums[0] + sums[1] <= kTooLarge))) {
            ptx::wgmma_wait_in_branch();
            ptx::wgmma_hold(out_);
            scores_again();
            mask(tile);
            float factor[2];
            raise(factor);
            exponents(sums);
#pragma unroll
            for (int i = 0; i < kHeadDim / 2; ++i) out_[i] *= factor[i / 2 % 2];
            pack(left_, scores_);
        } else {
            ptx::wgmma_wait<0>();
            ptx::wgmma_hold(out_);
            pack(left_, scores_);
        }
        release_keys();
        sums_[0] += sums[0];
        sums_[1] += sums[1];
        release_values();
    }

    __device__ __forceinline__ void multiply_scores() {
        const uint32_t keys = shared_.k(k_.stage);
        ptx::wgmma_fence();
#pragma unroll
        for (int box = 0; box < L::kBoxes; ++box) {
            const uint64_t a = ptx::k_major_descriptor(here(queries_ + box * L::kUnitBox));
            const uint64_t b = ptx::k_major_descriptor(here(keys + box * L::kKeyBox));
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (box + k == 0) {
                    ptx::wgmma_x16<false, false>(scores_, a, b);
                } else {
                    ptx::wgmma_add_x16<false, false>(scores_, ptx::advance(a, k * 32),
                                                     ptx::advance(b, k * 32));
                }
            }
        }
        ptx::wgmma_commit();
    }

    __device__ __forceinline__ void multiply_values() {
        const uint64_t b = ptx::mn_major_descriptor(here(shared_.v(v_.stage)), L::kKeyBox);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k)
            ptx::wgmma_add_x16<true>(out_, left_[k], ptx::advance(b, k * 2048));
        ptx::wgmma_commit();
    }

    // What multiply_scores computes, by one warp for its rows.
    __device__ __forceinline__ void scores_again() {
        const int matrix = t_.lane / 8, in_matrix = t_.lane % 8;
        const auto query = static_cast<uint32_t>(t_.warp * 16 + matrix % 2 * 8 + in_matrix);
        const auto key = static_cast<uint32_t>(matrix / 2 * 8 + in_matrix);
        clear(scores_);
#pragma unroll 1
        for (int k = 0; k < kHeadDim / 16; ++k) {
            const auto q_chunk = static_cast<uint32_t>((k % 4 * 2 + matrix / 2) ^ in_matrix);
            const auto k_chunk = static_cast<uint32_t>((k % 4 * 2 + matrix % 2) ^ in_matrix);
            const auto box = static_cast<uint32_t>(k / 4);
            uint32_t a[4], b[4];
            ptx::load_matrices(queries_ + box * L::kUnitBox + query * 128 + q_chunk * 16, a[0], a[1], a[2],
                               a[3]);
            const uint32_t keys = shared_.k(k_.stage) + box * L::kKeyBox + key * 128 + k_chunk * 16;
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
                ptx::load_matrices(keys + static_cast<uint32_t>(j) * 16 * 128, b[0], b[1], b[2], b[3]);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float c[4];
#pragma unroll
                    for (int x = 0; x < 4; ++x) c[x] = scores_[8 * j + 4 * half + x];
                    ptx::mma_bf16(c, a, b[2 * half], b[2 * half + 1]);
#pragma unroll
                    for (int x = 0; x < 4; ++x) scores_[8 * j + 4 * half + x] = c[x];
                }
            }
        }
    }

    // Pairs that don't see each other.
    __device__ __forceinline__ void mask(int tile) {
        const int key = tile * kKeys;
        const bool all = first_query_ >= key + kKeys - 1 &&
                         (p_.window == 0 || first_query_ + UnitPlan::kQueries - 1 - key < p_.window);
        if (all) return;
        const unsigned window = p_.window > 0 ? static_cast<unsigned>(p_.window) : 0x7fffffffu;
        const int distance = first_query_ + t_.warp * 16 + t_.lane / 4 - (key + t_.lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            const auto behind = static_cast<unsigned>(distance - i / 4 * 8 + i / 2 % 2 * 8 - i % 2);
            if (behind >= window) scores_[i] = __int_as_float(0xff800000);
        }
    }

    // m becomes the largest score, if that is larger. `factor`: what sums so far are multiplied by.
    __device__ __forceinline__ void raise(float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float a = fmaxf(scores_[2 * r], scores_[2 * r + 1]);
            float b = fmaxf(scores_[4 + 2 * r], scores_[4 + 2 * r + 1]);
#pragma unroll
            for (int j = 2; j < kKeys / 8; j += 2) {
                a = fmaxf(fmaxf(a, scores_[4 * j + 2 * r]), scores_[4 * j + 2 * r + 1]);
                b = fmaxf(fmaxf(b, scores_[4 * j + 4 + 2 * r]), scores_[4 * j + 4 + 2 * r + 1]);
            }
            a = fmaxf(a, b);
            a = fmaxf(a, __shfl_xor_sync(~0u, a, 1));
            a = fmaxf(a, __shfl_xor_sync(~0u, a, 2));
            const float most = fmaxf(most_[r], a * p_.scale_log2);
            factor[r] = ptx::exp2_approximate(most_[r] - most);
            most_[r] = most;
            sums_[r] *= factor[r];
        }
    }

    // Scores become probabilities; `sums` over the thread's own columns.
    __device__ __forceinline__ void exponents(float (&sums)[2]) {
        float parts[4] = {};
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            const int r = i / 2 % 2;
            scores_[i] = ptx::exp2_approximate(fmaf(scores_[i], p_.scale_log2, -most_[r]));
            parts[2 * r + i % 2] += scores_[i];
        }
        sums[0] = parts[0] + parts[1];
        sums[1] = parts[2] + parts[3];
    }

    // The output over the sums, by way of the queries' place, 16 bytes a thread.
    __device__ __forceinline__ void store(const ForwardItem& item, int head) {
        const int first = first_query_ + t_.warp * 16, rows = item.length - first;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = sums_[r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const int row = t_.lane / 4 + 8 * r;
            if (t_.lane % 4 == 0 && row < rows)
                p_.lse[head * p_.lse_stride + item.begin + first + row] =
                    (most_[r] + log2f(sum)) * 0.69314718056f;
            const float inverse = 1.0f / sum;
#pragma unroll
            for (int j = 0; j < kHeadDim / 8; ++j) {
                out_[4 * j + 2 * r] *= inverse;
                out_[4 * j + 2 * r + 1] *= inverse;
            }
        }
        uint32_t rounded[kHeadDim / 16][4];
        pack(rounded, out_);
        const uint32_t place = queries_ + static_cast<uint32_t>(t_.warp) * 16 * 128;
        const int matrix = t_.lane / 8;
        const uint32_t at = place + static_cast<uint32_t>(matrix % 2 * 8 + t_.lane % 8) * 128;
        // All warps of the group are through with the queries.
        ptx::named_barrier_wait(kGroupBarrier + t_.group, 128);  // partner: the same, its other warps
#pragma unroll
        for (int k = 0; k < kHeadDim / 16; ++k) {
            const auto chunk = static_cast<uint32_t>((k % 4 * 2 + matrix / 2) ^ (t_.lane % 8));
            ptx::store_matrices(at + k / 4 * L::kUnitBox + chunk * 16, rounded[k][0], rounded[k][1],
                                rounded[k][2], rounded[k][3]);
        }
        __syncwarp();
        constexpr int kChunks = kHeadDim / 8;
        __nv_bfloat16* to = p_.out.at(item.begin + first, head);
#pragma unroll
        for (int i = 0; i < kChunks / 2; ++i) {
            const int row = (i * 32 + t_.lane) / kChunks, chunk = t_.lane % kChunks;
            const uint4 value =
                ptx::load_shared(place + static_cast<uint32_t>(chunk / 8) * L::kUnitBox +
                                 static_cast<uint32_t>(row * 128 + (chunk % 8 ^ row % 8) * 16));
            if (row < rows) *reinterpret_cast<uint4*>(to + row * p_.out.token + chunk * 8) = value;
        }
    }

    static constexpr float kTooLarge = 1099511627776.0f;  // 2^40

    const ForwardProblem& p_;
    const ForwardShared<kHeadDim>& shared_;
    const Thread t_;
    Ring<L::kStages> k_, v_;
    uint32_t queries_ = 0;     // where they lie
    int first_query_ = 0;      // in the sequence
    float most_[2], sums_[2];  // m, and the sums of P's rows over the thread's own columns
    float scores_[kKeys / 2], out_[kHeadDim / 2];
    uint32_t left_[kKeys / 16][4];  // probabilities, rounded
};

}  // namespace detail

template <int kHeadDim>
__global__ void __launch_bounds__(detail::ForwardLayout<kHeadDim>::kThreads, 1)
    attention_forward_sm90(const __grid_constant__ ForwardProblem p) {
    using L = detail::ForwardLayout<kHeadDim>;
    extern __shared__ __align__(1024) unsigned char moebius_tiles[];
    const detail::ForwardShared<kHeadDim> shared{moebius_tiles, ptx::shared_address(moebius_tiles)};
    if (threadIdx.x == 0) {
        for (uint32_t slot = 0; slot < 2; ++slot) {
            ptx::barrier_init(shared.item_full(slot), 1);
            ptx::barrier_init(shared.item_free(slot), L::kGroups * 4);
        }
        for (uint32_t stage = 0; stage < L::kStages; ++stage) {
            ptx::barrier_init(shared.k_full(stage), 1);
            ptx::barrier_init(shared.v_full(stage), 1);
            ptx::barrier_init(shared.k_free(stage), L::kGroups * 4);
            ptx::barrier_init(shared.v_free(stage), L::kGroups * 4);
        }
        ptx::fence_barrier_init();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (warp < 4) {
        ptx::give_registers<L::kLoaderRegisters>();
        if (warp == 0) detail::load(p, shared);
    } else {
        ptx::take_registers<L::kRegisters>();
        detail::ForwardProducts<kHeadDim>(p, shared,
                                          {warp / 4 - 1, warp % 4, static_cast<int>(threadIdx.x % 32)})
            .run();
    }
}

}  // namespace moebius::ops::sm90
