// Attention in plain fp32: the same walks as in bf16, on tiles of 16·kEach rows; threads stand 16 × 16,
// thread (y, x) has rows y + 16·i and, of scores, columns x + 16·j.
#include <cmath>

#include "moebius/ops/attention/any_args.cuh"

namespace moebius::ops::cuda {
namespace {

using Problem = AttentionProblem<float>;

constexpr int kThreads = 256;

__device__ inline int thread_row() {
    return static_cast<int>(threadIdx.x / 16);
}
__device__ inline int thread_column() {
    return static_cast<int>(threadIdx.x % 16);
}

// A head's rows, zeros past head_dim; four floats more a row, against bank conflicts.
template <int kWidth, int kEach>
struct Tile {
    float at[16 * kEach][kWidth + 4];

    // Rows past `count` are zeros and not read.
    __device__ void load(const Heads<const float>& from, int64_t first, int64_t head, int64_t count,
                         int head_dim) {
        const float* base = from.at(first, head);
        for (int i = static_cast<int>(threadIdx.x); i < 16 * kEach * kWidth / 4; i += kThreads) {
            const int row = i / (kWidth / 4), column = i % (kWidth / 4) * 4;
            const int left = row < count ? head_dim - column : 0;
            const float* source = base + row * from.token + column;
            float4 value{0.0f, 0.0f, 0.0f, 0.0f};
            if (left >= 4 && from.aligned) {
                value = *reinterpret_cast<const float4*>(source);
            } else {
                if (left > 0) value.x = source[0];
                if (left > 1) value.y = source[1];
                if (left > 2) value.z = source[2];
                if (left > 3) value.w = source[3];
            }
            *reinterpret_cast<float4*>(&at[row][column]) = value;
        }
    }
};

template <int kEach>
struct Scores {
    float at[16 * kEach][16 * kEach + 4];
};

// Rows of one tile times rows of the other, summed from the first column to the last.
template <int kWidth, int kEach>
__device__ inline void multiply_rows(float (&sums)[kEach][kEach], const Tile<kWidth, kEach>& left,
                                     const Tile<kWidth, kEach>& right) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] = 0.0f;
#pragma unroll 4
    for (int p = 0; p < kWidth; p += 4) {
        float4 a[kEach], b[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            a[i] = *reinterpret_cast<const float4*>(&left.at[thread_row() + 16 * i][p]);
            b[i] = *reinterpret_cast<const float4*>(&right.at[thread_column() + 16 * i][p]);
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                float sum = fmaf(a[i].x, b[j].x, sums[i][j]);
                sum = fmaf(a[i].y, b[j].y, sum);
                sum = fmaf(a[i].z, b[j].z, sum);
                sums[i][j] = fmaf(a[i].w, b[j].w, sum);
            }
        }
    }
}

// A thread's sums: its rows, columns 4·x … and every 64 after.
template <int kWidth, int kEach>
struct Sums {
    float at[kEach][kWidth / 16];

    __device__ void clear() {
        for (auto& row : at)
            for (float& x : row) x = 0.0f;
    }
    // += weights (16·kEach, 16·kEach) · rows of a tile
    __device__ void add(const Scores<kEach>& weights, const Tile<kWidth, kEach>& values) {
#pragma unroll 4
        for (int p = 0; p < 16 * kEach; ++p) {
            float weight[kEach];
#pragma unroll
            for (int i = 0; i < kEach; ++i) weight[i] = weights.at[thread_row() + 16 * i][p];
#pragma unroll
            for (int j = 0; j < kWidth / 16; j += 4) {
                const float4 value =
                    *reinterpret_cast<const float4*>(&values.at[p][thread_column() * 4 + j * 16]);
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    at[i][j] = fmaf(weight[i], value.x, at[i][j]);
                    at[i][j + 1] = fmaf(weight[i], value.y, at[i][j + 1]);
                    at[i][j + 2] = fmaf(weight[i], value.z, at[i][j + 2]);
                    at[i][j + 3] = fmaf(weight[i], value.w, at[i][j + 3]);
                }
            }
        }
    }
    __device__ void store(const Heads<float>& to, const SequenceTile& tile, int64_t head, int head_dim,
                          float factor) const {
        for (int i = 0; i < kEach; ++i) {
            const int64_t row = tile.first + thread_row() + 16 * i;
            if (row >= tile.length) continue;
            float* base = to.at(tile.begin + row, head);
#pragma unroll
            for (int j = 0; j < kWidth / 16; ++j) {
                const int column = thread_column() * 4 + j / 4 * 64 + j % 4;
                if (column < head_dim) base[column] = at[i][j] * factor;
            }
        }
    }
};

// ---- forward ----

template <int kWidth, int kEach>
struct ForwardShared {
    Tile<kWidth, kEach> q, keys;  // keys, then their values
    Scores<kEach> scores;
};

template <int kWidth, int kEach>
__global__ void __launch_bounds__(kThreads) attention_forward_fp32_any(Problem p) {
    constexpr int kRows = 16 * kEach;
    extern __shared__ __align__(128) unsigned char attention_shared[];
    auto& shared = *reinterpret_cast<ForwardShared<kWidth, kEach>*>(attention_shared);
    const int64_t tiles = gridDim.x / p.heads, head = blockIdx.x % p.heads;
    const SequenceTile tile = find_tile(p.sequences, kRows, tiles - 1 - blockIdx.x / p.heads);
    if (tile.length == 0) return;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const int64_t keys_end = tile.first + kRows < tile.length ? tile.first + kRows : tile.length;
    shared.q.load(p.q, tile.begin + tile.first, head, tile.length - tile.first, p.head_dim);

    Sums<kWidth, kEach> out;
    out.clear();
    float maximum[kEach], sum[kEach];  // of a row; the sum of this thread's columns
    for (int i = 0; i < kEach; ++i) maximum[i] = -INFINITY, sum[i] = 0.0f;
    for (int64_t key = first_key_of(p.window, tile.first); key < keys_end; key += kRows) {
        __syncthreads();  // the values of the step before have been read
        shared.keys.load(p.k, tile.begin + key, kv_head, keys_end - key, p.head_dim);
        __syncthreads();  // the keys are there
        float scores[kEach][kEach];
        multiply_rows(scores, shared.q, shared.keys);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t query = tile.first + thread_row() + 16 * i;
            float most = maximum[i];
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const bool is_seen = visible(query, key + thread_column() + 16 * j, p.window);
                scores[i][j] = is_seen ? __fmul_rn(scores[i][j], p.scale) : -INFINITY;
                most = fmaxf(most, scores[i][j]);
            }
            for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
            const float base = most == -INFINITY ? 0.0f : most;  // no key yet
            const float rescale = expf(maximum[i] - base);
            maximum[i] = most;
            sum[i] *= rescale;
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const float probability = expf(scores[i][j] - base);
                sum[i] += probability;
                shared.scores.at[thread_row() + 16 * i][thread_column() + 16 * j] = probability;
            }
#pragma unroll
            for (int j = 0; j < kWidth / 16; ++j) out.at[i][j] *= rescale;
        }
        __syncthreads();  // the probabilities are there, the keys have been read
        shared.keys.load(p.v, tile.begin + key, kv_head, keys_end - key, p.head_dim);
        __syncthreads();  // the values are there
        out.add(shared.scores, shared.keys);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        for (int step = 8; step > 0; step /= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
        const int64_t query = tile.first + thread_row() + 16 * i;
        if (thread_column() == 0 && query < tile.length)
            p.lse[head * p.lse_stride + tile.begin + query] = maximum[i] + logf(sum[i]);
#pragma unroll
        for (int j = 0; j < kWidth / 16; ++j) out.at[i][j] /= sum[i];
    }
    out.store(p.out, tile, head, p.head_dim, 1.0f);
    if (p.rest.data) {
        // fp32 takes nothing away.
        out.clear();
        out.store(p.rest, tile, head, p.head_dim, 1.0f);
    }
}

// ---- backward ----

template <int kWidth, int kEach>
struct DqShared {
    Tile<kWidth, kEach> q, dout, k, v;
    Scores<kEach> dscores;
};

template <int kWidth, int kEach>
__global__ void __launch_bounds__(kThreads) attention_dq_fp32_any(Problem p) {
    constexpr int kRows = 16 * kEach;
    extern __shared__ __align__(128) unsigned char attention_shared[];
    auto& shared = *reinterpret_cast<DqShared<kWidth, kEach>*>(attention_shared);
    const int64_t tiles = gridDim.x / p.heads, head = blockIdx.x % p.heads;
    const SequenceTile tile = find_tile(p.sequences, kRows, tiles - 1 - blockIdx.x / p.heads);
    if (tile.length == 0) return;
    const int64_t kv_head = head / (p.heads / p.kv_heads), queries = tile.length - tile.first;
    const int64_t keys_end = tile.first + (queries < kRows ? queries : kRows);
    shared.q.load(p.q, tile.begin + tile.first, head, queries, p.head_dim);
    shared.dout.load(p.dout, tile.begin + tile.first, head, queries, p.head_dim);
    float log_sum[kEach], delta[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int64_t query = tile.first + thread_row() + 16 * i;
        const bool is_there = query < tile.length;
        log_sum[i] = is_there ? p.lse[head * p.lse_stride + tile.begin + query] : 0.0f;
        delta[i] = is_there ? p.delta[head * p.tokens + tile.begin + query] : 0.0f;
    }
    Sums<kWidth, kEach> dq;
    dq.clear();
    for (int64_t key = first_key_of(p.window, tile.first); key < keys_end; key += kRows) {
        __syncthreads();  // the keys and gradients of the step before have been read
        shared.k.load(p.k, tile.begin + key, kv_head, keys_end - key, p.head_dim);
        shared.v.load(p.v, tile.begin + key, kv_head, keys_end - key, p.head_dim);
        __syncthreads();  // keys and values are there
        float scores[kEach][kEach], gradients[kEach][kEach];
        multiply_rows(scores, shared.q, shared.k);
        multiply_rows(gradients, shared.dout, shared.v);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const int64_t query = tile.first + thread_row() + 16 * i;
                const bool is_seen = visible(query, key + thread_column() + 16 * j, p.window);
                const float probability = expf(__fmul_rn(scores[i][j], p.scale) - log_sum[i]);
                shared.dscores.at[thread_row() + 16 * i][thread_column() + 16 * j] =
                    is_seen ? probability * (gradients[i][j] - delta[i]) : 0.0f;
            }
        }
        __syncthreads();  // the gradients of the scores are there
        dq.add(shared.dscores, shared.k);
    }
    dq.store(p.dq, tile, head, p.head_dim, p.scale);
}

template <int kWidth, int kEach>
struct DkvShared {
    Tile<kWidth, kEach> q, dout, k, v;
    Scores<kEach> scores, dscores;  // (keys, queries)
    float log_sum[16 * kEach], delta[16 * kEach];
};

template <int kWidth, int kEach>
__global__ void __launch_bounds__(kThreads) attention_dkv_fp32_any(Problem p) {
    constexpr int kRows = 16 * kEach;
    extern __shared__ __align__(128) unsigned char attention_shared[];
    auto& shared = *reinterpret_cast<DkvShared<kWidth, kEach>*>(attention_shared);
    const int64_t kv_head = blockIdx.x % p.kv_heads, group = p.heads / p.kv_heads;
    const SequenceTile tile = find_tile(p.sequences, kRows, blockIdx.x / p.kv_heads);
    if (tile.length == 0) return;
    const int64_t keys = tile.length - tile.first;
    const int64_t keys_end = tile.first + (keys < kRows ? keys : kRows);
    const int64_t queries_end = end_of_queries(p.window, keys_end, tile.length);
    shared.k.load(p.k, tile.begin + tile.first, kv_head, keys, p.head_dim);
    shared.v.load(p.v, tile.begin + tile.first, kv_head, keys, p.head_dim);
    Sums<kWidth, kEach> dk, dv;
    dk.clear();
    dv.clear();
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int64_t query = tile.first; query < queries_end; query += kRows) {
            const int64_t left = queries_end - query;
            __syncthreads();  // queries, dout and scores of the step before have been read
            shared.q.load(p.q, tile.begin + query, head, left, p.head_dim);
            shared.dout.load(p.dout, tile.begin + query, head, left, p.head_dim);
            const int at = static_cast<int>(threadIdx.x);
            if (at < kRows) {
                const bool is_there = at < left;
                const int64_t token = tile.begin + query + at;
                shared.log_sum[at] = is_there ? p.lse[head * p.lse_stride + token] : 0.0f;
                shared.delta[at] = is_there ? p.delta[head * p.tokens + token] : 0.0f;
            }
            __syncthreads();  // all of them are there
            float scores[kEach][kEach], gradients[kEach][kEach];
            multiply_rows(scores, shared.k, shared.q);
            multiply_rows(gradients, shared.v, shared.dout);
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    const int row = thread_row() + 16 * i, column = thread_column() + 16 * j;
                    const bool is_seen = visible(query + column, tile.first + row, p.window);
                    const float probability = expf(__fmul_rn(scores[i][j], p.scale) - shared.log_sum[column]);
                    shared.scores.at[row][column] = is_seen ? probability : 0.0f;
                    shared.dscores.at[row][column] =
                        is_seen ? probability * (gradients[i][j] - shared.delta[column]) : 0.0f;
                }
            }
            __syncthreads();  // scores and their gradients are there
            dv.add(shared.scores, shared.dout);
            dk.add(shared.dscores, shared.q);
        }
    }
    dk.store(p.dk, tile, kv_head, p.head_dim, p.scale);
    dv.store(p.dv, tile, kv_head, p.head_dim, 1.0f);
}

template <int kWidth, int kEach>
void run_forward(const Problem& p, const Exec& exec) {
    launch("attention", attention_forward_fp32_any<kWidth, kEach>,
           {grid_for(most_tiles(p, 16 * kEach) * p.heads, 1), dim3(kThreads),
            sizeof(ForwardShared<kWidth, kEach>)},
           exec, p);
}
template <int kWidth, int kEach>
void run_backward(const Problem& p, const Exec& exec) {
    const int64_t tiles = most_tiles(p, 16 * kEach);
    launch("attention_backward.dkv", attention_dkv_fp32_any<kWidth, kEach>,
           {grid_for(tiles * p.kv_heads, 1), dim3(kThreads), sizeof(DkvShared<kWidth, kEach>)}, exec, p);
    launch("attention_backward.dq", attention_dq_fp32_any<kWidth, kEach>,
           {grid_for(tiles * p.heads, 1), dim3(kThreads), sizeof(DqShared<kWidth, kEach>)}, exec, p);
}

}  // namespace

// Tiles such that shared memory stays below the 99 KiB of the smaller cards.
void run_attention(const Problem& p, const Exec& exec) {
    if (p.head_dim <= 64) return run_forward<64, 4>(p, exec);
    if (p.head_dim <= 128) return run_forward<128, 4>(p, exec);
    run_forward<256, 2>(p, exec);
}
void run_attention_backward(const Problem& p, const Exec& exec) {
    if (p.head_dim <= 64) return run_backward<64, 2>(p, exec);
    if (p.head_dim <= 128) return run_backward<128, 2>(p, exec);
    run_backward<256, 1>(p, exec);
}

}  // namespace moebius::ops::cuda
