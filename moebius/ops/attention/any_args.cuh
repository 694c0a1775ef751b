// What attention's kernels for every card are given, and where a block finds its work.
#pragma once

#include <cuda_bf16.h>

#include "moebius/ops/attention/attention.h"
#include "moebius/ptx/split_sizes.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {

// (T, heads, d) in memory.
template <class T>
struct Heads {
    T* data;
    int64_t token, head;   // strides in elements
    bool aligned, paired;  // every head's row begins on 16 bytes; on two elements

    __device__ T* at(int64_t t, int64_t h) const { return data + t * token + h * head; }
};

template <class T>
struct AttentionProblem {
    Heads<const T> q, k, v, dout, saved_out, saved_rest;  // the last three: backward
    Heads<T> out, rest, dq, dk, dv;
    float* lse;          // (Hq, T), rows lse_stride apart
    const float* delta;  // (Hq, T), dense; backward: Σ dout · out of a query
    int64_t lse_stride, tokens;
    ptx::SequenceSizes sequences;
    int64_t heads, kv_heads;  // query heads, kv heads
    int64_t window;           // 0: none
    int head_dim;
    float scale;
};

// A block's tile of queries or of keys: rows [first, first + count) of a sequence.
struct SequenceTile {
    int64_t begin, length;  // of the sequence, in tokens; length 0: there is no such tile
    int64_t first;          // of the tile, in the sequence
};

// Blocks: tiles × heads, a tile's heads side by side. The last tiles of a sequence see the most keys: they go
// first.
__device__ inline SequenceTile find_tile(const ptx::SequenceSizes& sequences, int64_t rows, int64_t index) {
    const ptx::ExpertTile found = ptx::find_expert_tile(sequences, rows, index);
    if (found.expert < 0) return {0, 0, 0};
    return {found.first, found.rows, found.tile * rows};
}

// Tiles of so many rows that the sequences make at most.
template <class T>
int64_t most_tiles(const AttentionProblem<T>& p, int64_t rows) {
    const int64_t count = p.sequences.experts < p.tokens ? p.sequences.experts : p.tokens;
    return (p.tokens + (rows - 1) * count) / rows;
}

// Keys that queries [first, end) of a sequence see: [begin, end).
__device__ inline int64_t first_key_of(int64_t window, int64_t first_query) {
    return window > 0 && first_query + 1 > window ? first_query + 1 - window : 0;
}
// One past the last query that sees any key before `end`.
__device__ inline int64_t end_of_queries(int64_t window, int64_t end, int64_t length) {
    return window > 0 && end - 1 + window < length ? end - 1 + window : length;
}
__device__ inline bool visible(int64_t query, int64_t key, int64_t window) {
    return key <= query && (window == 0 || key > query - window);
}

// Which of a tile's pairs of queries [q0, q1) and keys [k0, k1) see each other.
enum class Seen { None, Some, All };
__device__ inline Seen seen(int64_t q0, int64_t q1, int64_t k0, int64_t k1, int64_t window) {
    if (k0 > q1 - 1 || (window > 0 && k1 - 1 <= q0 - window)) return Seen::None;
    return k1 - 1 <= q0 && (window == 0 || k0 > q1 - 1 - window) ? Seen::All : Seen::Some;
}

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

void run_attention(const AttentionProblem<__nv_bfloat16>& p, const Exec& exec);
void run_attention(const AttentionProblem<float>& p, const Exec& exec);
void run_attention_backward(const AttentionProblem<__nv_bfloat16>& p, const Exec& exec);
void run_attention_backward(const AttentionProblem<float>& p, const Exec& exec);

}  // namespace moebius::ops::cuda
