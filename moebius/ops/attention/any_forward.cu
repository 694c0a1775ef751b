// Forward in bf16: a block has 64 queries of one head, a warp 16 of them, and walks over tiles of keys with
// the online softmax (Milakov and Gimelshein 2018; Dao et al., FlashAttention, 2022).
#include <cmath>

#include "moebius/ops/attention/any_tile.cuh"

namespace moebius::ops::cuda {
namespace {

using Problem = AttentionProblem<__nv_bfloat16>;

template <int kWidth>
constexpr int kForwardKeys = kWidth >= 256 ? 32 : 64;
// Queries, then two stages of keys and values.
template <int kWidth>
constexpr size_t kForwardBytes = size_t{kWidth} * 2 * (kBlockRows + 4 * kForwardKeys<kWidth>);

// A thread's two queries (lane / 4 and 8 after): statistics in units of log 2.
struct OnlineSoftmax {
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.0f, 0.0f};  // this thread's columns alone

    // Scaled scores → exponentials; `rescale`: what the sums so far are to be multiplied by.
    template <int kCount>
    __device__ void add(float (&scores)[kCount][4], float (&rescale)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = maximum[half];
#pragma unroll
            for (int j = 0; j < kCount; ++j)
                most = fmaxf(most, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const float base = most == -INFINITY ? 0.0f : most;  // no key yet
            rescale[half] = exp2f(maximum[half] - base);
            maximum[half] = most;
            float total = sum[half] * rescale[half];
#pragma unroll
            for (int j = 0; j < kCount; ++j) {
#pragma unroll
                for (int x = 2 * half; x < 2 * half + 2; ++x) {
                    scores[j][x] = exp2f(scores[j][x] - base);
                    total += scores[j][x];
                }
            }
            sum[half] = total;
        }
    }
};

// kRest: probabilities in two bf16 parts, so that the output is exact to more than bf16's bits.
template <int kWidth, bool kRest>
__global__ void __launch_bounds__(kMmaThreads) attention_forward_mma_any(Problem p) {
    constexpr int kKeys = kForwardKeys<kWidth>;
    extern __shared__ __align__(128) unsigned char attention_shared[];
    const int64_t tiles = gridDim.x / p.heads, head = blockIdx.x % p.heads;
    const SequenceTile tile = find_tile(p.sequences, kBlockRows, tiles - 1 - blockIdx.x / p.heads);
    if (tile.length == 0) return;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t q_tile = ptx::shared_address(attention_shared);
    const uint32_t stages = q_tile + kBlockRows * kWidth * 2;
    const auto k_tile = [&](int64_t step) {
        return stages + static_cast<uint32_t>(step % 2) * (2 * kKeys * kWidth * 2);
    };
    const auto v_tile = [&](int64_t step) { return k_tile(step) + kKeys * kWidth * 2; };

    const int64_t last_query = tile.first + kBlockRows < tile.length ? tile.first + kBlockRows : tile.length;
    const int64_t keys_begin = first_key_of(p.window, tile.first), keys_end = last_query;
    const int64_t steps = (keys_end - keys_begin + kKeys - 1) / kKeys;
    const auto load_stage = [&](int64_t step) {
        const int64_t key = keys_begin + step * kKeys;
        load_tile<kWidth, kKeys>(k_tile(step), p.k, tile.begin + key, kv_head, keys_end - key, p.head_dim);
        load_tile<kWidth, kKeys>(v_tile(step), p.v, tile.begin + key, kv_head, keys_end - key, p.head_dim);
    };
    load_tile<kWidth, kBlockRows>(q_tile, p.q, tile.begin + tile.first, head, tile.length - tile.first,
                                  p.head_dim);
    load_stage(0);
    ptx::cp_async_commit();

    const float scale = p.scale * kLog2E;
    const int64_t first_query = tile.first + warp * kWarpRows;
    OnlineSoftmax softmax;
    float out[kWidth / 8][4];
    clear(out);
    for (int64_t step = 0; step < steps; ++step) {
        if (step + 1 < steps) load_stage(step + 1);
        ptx::cp_async_commit();
        ptx::cp_async_wait<1>();
        __syncthreads();  // the stage is whole
        const int64_t key = keys_begin + step * kKeys;
        const Seen some = seen(first_query, first_query + kWarpRows, key, key + kKeys, p.window);
        if (some != Seen::None) {
            float scores[kKeys / 8][4];
            multiply_rows<kWidth, kKeys>(scores, q_tile, warp * kWarpRows, k_tile(step));
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    const int64_t query = first_query + x / 2 * 8 + lane / 4;
                    const bool is_seen =
                        some == Seen::All || visible(query, key + j * 8 + lane % 4 * 2 + x % 2, p.window);
                    scores[j][x] = is_seen ? __fmul_rn(scores[j][x], scale) : -INFINITY;
                }
            }
            float rescale[2];
            softmax.add(scores, rescale);
#pragma unroll
            for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
                for (int x = 0; x < 4; ++x) out[j][x] *= rescale[x / 2];
            }
            uint32_t probabilities[kKeys / 16][4];
            as_left(probabilities, scores);
            add_product<kWidth, kWidth>(out, probabilities, v_tile(step), 0);
            if constexpr (kRest) {
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                    for (int x = 0; x < 4; ++x)
                        scores[j][x] -= __bfloat162float(__float2bfloat16_rn(scores[j][x]));
                }
                as_left(probabilities, scores);
                add_product<kWidth, kWidth>(out, probabilities, v_tile(step), 0);
            }
        }
        __syncthreads();  // all are through with the stage; it is loaded next
    }
    ptx::cp_async_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = softmax.sum[half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int64_t query = first_query + half * 8 + lane / 4;
        if (query >= tile.length) continue;
        if (lane % 4 == 0) {
            p.lse[head * p.lse_stride + tile.begin + query] = (softmax.maximum[half] + log2f(sum)) * kLn2;
        }
        __nv_bfloat16* to = p.out.at(tile.begin + query, head);
        __nv_bfloat16* rest = kRest ? p.rest.at(tile.begin + query, head) : nullptr;
#pragma unroll
        for (int j = 0; j < kWidth / 8; ++j) {
            const int column = j * 8 + lane % 4 * 2;
            const float x = out[j][2 * half] / sum, y = out[j][2 * half + 1] / sum;
            store_pair(to, column, p.head_dim, p.out.paired, x, y);
            if constexpr (kRest) {
                store_pair(rest, column, p.head_dim, p.rest.paired,
                           x - __bfloat162float(__float2bfloat16_rn(x)),
                           y - __bfloat162float(__float2bfloat16_rn(y)));
            }
        }
    }
}

template <int kWidth>
void run_forward(const Problem& p, const Exec& exec) {
    const auto kernel =
        p.rest.data ? attention_forward_mma_any<kWidth, true> : attention_forward_mma_any<kWidth, false>;
    launch("attention", kernel,
           {grid_for(most_tiles(p, kBlockRows) * p.heads, 1), dim3(kMmaThreads), kForwardBytes<kWidth>}, exec,
           p);
}

}  // namespace

void run_attention(const Problem& p, const Exec& exec) {
    if (p.head_dim <= 32) return run_forward<32>(p, exec);
    if (p.head_dim <= 64) return run_forward<64>(p, exec);
    if (p.head_dim <= 128) return run_forward<128>(p, exec);
    run_forward<256>(p, exec);
}

}  // namespace moebius::ops::cuda
