// Backward in bf16, from the log-sums that forward left: one kernel walks over keys and has dq, one walks
// over queries and has dk and dv, so that every sum is one warp's, in one order.
#include "moebius/ops/attention/any_tile.cuh"

namespace moebius::ops::cuda {
namespace {

using Problem = AttentionProblem<__nv_bfloat16>;

// Stages of what a kernel walks over: one at the greatest width, to fit the smaller cards' shared memory.
template <int kWidth>
constexpr int kStages = kWidth >= 256 ? 1 : 2;

// Runs body(step) for every step when its stage has arrived; load(step) starts the copies into it.
template <int kCount, class Load, class Body>
__device__ inline void pipelined(int64_t steps, Load&& load, Body&& body) {
    if (steps > 0) load(0);
    ptx::cp_async_commit();
    for (int64_t step = 0; step < steps; ++step) {
        if (kCount == 2 && step + 1 < steps) load(step + 1);
        ptx::cp_async_commit();
        ptx::cp_async_wait<kCount - 1>();
        __syncthreads();  // the stage is whole
        body(step);
        __syncthreads();  // all are through with it; it is loaded next
        if (kCount == 1 && step + 1 < steps) load(step + 1);
    }
    ptx::cp_async_wait<0>();
}

// ---- dq ----

template <int kWidth>
constexpr int kDqKeys = kWidth >= 256 ? 32 : 64;
// Queries and dout, then stages of keys and values.
template <int kWidth>
constexpr size_t kDqBytes = size_t{kWidth} * 4 * (kBlockRows + kStages<kWidth> * kDqKeys<kWidth>);

template <int kWidth>
__global__ void __launch_bounds__(kMmaThreads) attention_dq_mma_any(Problem p) {
    constexpr int kKeys = kDqKeys<kWidth>;
    extern __shared__ __align__(128) unsigned char attention_shared[];
    const int64_t tiles = gridDim.x / p.heads, head = blockIdx.x % p.heads;
    const SequenceTile tile = find_tile(p.sequences, kBlockRows, tiles - 1 - blockIdx.x / p.heads);
    if (tile.length == 0) return;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const int row = static_cast<int>(threadIdx.x / 32) * kWarpRows, lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t q_tile = ptx::shared_address(attention_shared);
    const uint32_t dout_tile = q_tile + kBlockRows * kWidth * 2;
    const uint32_t stages = dout_tile + kBlockRows * kWidth * 2;
    const auto k_tile = [&](int64_t step) {
        return stages + static_cast<uint32_t>(step % kStages<kWidth>) * (2 * kKeys * kWidth * 2);
    };
    const auto v_tile = [&](int64_t step) { return k_tile(step) + kKeys * kWidth * 2; };

    const int64_t queries = tile.length - tile.first;
    const int64_t keys_end = tile.first + (queries < kBlockRows ? queries : kBlockRows);
    const int64_t keys_begin = first_key_of(p.window, tile.first);
    const int64_t first_query = tile.first + row;
    load_tile<kWidth, kBlockRows>(q_tile, p.q, tile.begin + tile.first, head, queries, p.head_dim);
    load_tile<kWidth, kBlockRows>(dout_tile, p.dout, tile.begin + tile.first, head, queries, p.head_dim);
    float log_sum[2] = {}, delta[2] = {};  // of the thread's two queries
    for (int half = 0; half < 2; ++half) {
        const int64_t query = first_query + half * 8 + lane / 4;
        if (query >= tile.length) continue;
        log_sum[half] = p.lse[head * p.lse_stride + tile.begin + query] * kLog2E;
        delta[half] = p.delta[head * p.tokens + tile.begin + query];
    }

    const float scale = p.scale * kLog2E;
    float dq[kWidth / 8][4];
    clear(dq);
    const auto load_stage = [&](int64_t step) {
        const int64_t key = keys_begin + step * kKeys;
        load_tile<kWidth, kKeys>(k_tile(step), p.k, tile.begin + key, kv_head, keys_end - key, p.head_dim);
        load_tile<kWidth, kKeys>(v_tile(step), p.v, tile.begin + key, kv_head, keys_end - key, p.head_dim);
    };
    pipelined<kStages<kWidth>>((keys_end - keys_begin + kKeys - 1) / kKeys, load_stage, [&](int64_t step) {
        const int64_t key = keys_begin + step * kKeys;
        const Seen some = seen(first_query, first_query + kWarpRows, key, key + kKeys, p.window);
        if (some == Seen::None) return;
        float scores[kKeys / 8][4], gradients[kKeys / 8][4];
        multiply_rows<kWidth, kKeys>(scores, q_tile, row, k_tile(step));
        multiply_rows<kWidth, kKeys>(gradients, dout_tile, row, v_tile(step));
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const int64_t query = first_query + x / 2 * 8 + lane / 4;
                const bool is_seen =
                    some == Seen::All || visible(query, key + j * 8 + lane % 4 * 2 + x % 2, p.window);
                const float probability = exp2f(__fmul_rn(scores[j][x], scale) - log_sum[x / 2]);
                gradients[j][x] = is_seen ? probability * (gradients[j][x] - delta[x / 2]) : 0.0f;
            }
        }
        uint32_t left[kKeys / 16][4];
        as_left(left, gradients);
        add_product<kWidth, kWidth>(dq, left, k_tile(step), 0);
    });
    store_rows<kWidth>(dq, p.dq, tile, first_query, head, 0, p.head_dim, p.scale);
}

// ---- dk, dv ----

template <int kWidth>
constexpr int kDkvQueries = kWidth >= 128 ? 32 : 64;
// Columns of dk and dv that a block has: sums of more don't fit its registers.
template <int kWidth>
constexpr int kDkvColumns = kWidth < 128 ? kWidth : 128;
// Keys and values, then stages of queries and dout, then their log-sums and deltas.
template <int kWidth>
constexpr size_t kDkvBytes =
    size_t{kWidth} * 4 *
    (kBlockRows + kStages<kWidth> * kDkvQueries<kWidth>)+size_t{kStages<kWidth>} * kDkvQueries<kWidth> * 8;

// A warp has 16 keys. Scores are transposed, (keys, queries): as they lie in registers they are left
// operands.
template <int kWidth>
__global__ void __launch_bounds__(kMmaThreads) attention_dkv_mma_any(Problem p) {
    constexpr int kQueries = kDkvQueries<kWidth>, kColumns = kDkvColumns<kWidth>, kParts = kWidth / kColumns;
    extern __shared__ __align__(128) unsigned char attention_shared[];
    const int64_t kv_head = blockIdx.x / kParts % p.kv_heads;
    const int first_column = static_cast<int>(blockIdx.x % kParts) * kColumns;
    const SequenceTile tile = find_tile(p.sequences, kBlockRows, blockIdx.x / (kParts * p.kv_heads));
    if (tile.length == 0) return;
    const int64_t group = p.heads / p.kv_heads;
    const int row = static_cast<int>(threadIdx.x / 32) * kWarpRows, lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t k_tile = ptx::shared_address(attention_shared);
    const uint32_t v_tile = k_tile + kBlockRows * kWidth * 2;
    const uint32_t stages = v_tile + kBlockRows * kWidth * 2;
    const auto q_tile = [&](int64_t step) {
        return stages + static_cast<uint32_t>(step % kStages<kWidth>) * (2 * kQueries * kWidth * 2);
    };
    const auto dout_tile = [&](int64_t step) { return q_tile(step) + kQueries * kWidth * 2; };
    // (stage, log-sum or delta, query)
    auto* statistics = reinterpret_cast<float(*)[2][kQueries]>(
        attention_shared + kWidth * 4 * (kBlockRows + kStages<kWidth> * kQueries));

    const int64_t keys = tile.length - tile.first;
    const int64_t keys_end = tile.first + (keys < kBlockRows ? keys : kBlockRows);
    const int64_t first_key = tile.first + row;
    const int64_t queries_end = end_of_queries(p.window, keys_end, tile.length);
    const int64_t steps_of_head = (queries_end - tile.first + kQueries - 1) / kQueries;
    load_tile<kWidth, kBlockRows>(k_tile, p.k, tile.begin + tile.first, kv_head, keys, p.head_dim);
    load_tile<kWidth, kBlockRows>(v_tile, p.v, tile.begin + tile.first, kv_head, keys, p.head_dim);

    const float scale = p.scale * kLog2E;
    float dk[kColumns / 8][4], dv[kColumns / 8][4];
    clear(dk);
    clear(dv);
    const auto load_stage = [&](int64_t step) {
        const int64_t head = kv_head * group + step / steps_of_head;
        const int64_t query = tile.first + step % steps_of_head * kQueries, left = queries_end - query;
        load_tile<kWidth, kQueries>(q_tile(step), p.q, tile.begin + query, head, left, p.head_dim);
        load_tile<kWidth, kQueries>(dout_tile(step), p.dout, tile.begin + query, head, left, p.head_dim);
        const int i = static_cast<int>(threadIdx.x);
        if (i >= kQueries) return;
        auto& to = statistics[step % kStages<kWidth>];
        to[0][i] = i < left ? p.lse[head * p.lse_stride + tile.begin + query + i] * kLog2E : 0.0f;
        to[1][i] = i < left ? p.delta[head * p.tokens + tile.begin + query + i] : 0.0f;
    };
    pipelined<kStages<kWidth>>(steps_of_head * group, load_stage, [&](int64_t step) {
        const int64_t first_query = tile.first + step % steps_of_head * kQueries;
        const Seen some =
            seen(first_query, first_query + kQueries, first_key, first_key + kWarpRows, p.window);
        if (some == Seen::None) return;
        const auto& [log_sums, deltas] = statistics[step % kStages<kWidth>];
        float scores[kQueries / 8][4], gradients[kQueries / 8][4];
        multiply_rows<kWidth, kQueries>(scores, k_tile, row, q_tile(step));
        multiply_rows<kWidth, kQueries>(gradients, v_tile, row, dout_tile(step));
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const int i = j * 8 + lane % 4 * 2 + x % 2;
                const bool is_seen =
                    some == Seen::All || visible(first_query + i, first_key + x / 2 * 8 + lane / 4, p.window);
                const float probability = exp2f(__fmul_rn(scores[j][x], scale) - log_sums[i]);
                scores[j][x] = is_seen ? probability : 0.0f;
                gradients[j][x] = is_seen ? probability * (gradients[j][x] - deltas[i]) : 0.0f;
            }
        }
        uint32_t left[kQueries / 16][4];
        as_left(left, scores);
        add_product<kWidth, kColumns>(dv, left, dout_tile(step), first_column);
        as_left(left, gradients);
        add_product<kWidth, kColumns>(dk, left, q_tile(step), first_column);
    });
    store_rows<kColumns>(dk, p.dk, tile, first_key, kv_head, first_column, p.head_dim, p.scale);
    store_rows<kColumns>(dv, p.dv, tile, first_key, kv_head, first_column, p.head_dim, 1.0f);
}

template <int kWidth>
void run_backward(const Problem& p, const Exec& exec) {
    const int64_t tiles = most_tiles(p, kBlockRows);
    constexpr int64_t kParts = kWidth / kDkvColumns<kWidth>;
    launch("attention_backward.dkv", attention_dkv_mma_any<kWidth>,
           {grid_for(tiles * p.kv_heads * kParts, 1), dim3(kMmaThreads), kDkvBytes<kWidth>}, exec, p);
    launch("attention_backward.dq", attention_dq_mma_any<kWidth>,
           {grid_for(tiles * p.heads, 1), dim3(kMmaThreads), kDqBytes<kWidth>}, exec, p);
}

}  // namespace

void run_attention_backward(const Problem& p, const Exec& exec) {
    if (p.head_dim <= 32) return run_backward<32>(p, exec);
    if (p.head_dim <= 64) return run_backward<64>(p, exec);
    if (p.head_dim <= 128) return run_backward<128>(p, exec);
    run_backward<256>(p, exec);
}

}  // namespace moebius::ops::cuda
