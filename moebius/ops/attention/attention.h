// Causal grouped-query attention over packed sequences, tiled: scores are never held for a whole sequence.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

struct AttentionShape {
    View cu_seqlens;         // (B+1) i32, ascending from 0; tokens past the last are neither read nor written
    int64_t max_seqlen = 0;  // upper bound of a sequence's length
    int64_t window = 0;      // query i sees keys i−window < j ≤ i; 0: all j ≤ i
    float scale = 1;         // of the scores; usually head_dim^−½
    bool none_empty = false;  // true promises that every sequence has a token
};

struct AttentionArgs {
    AttentionShape shape;
    View q;     // (T, Hq, d); token stride may be larger than Hq·d (a slice of a fused projection)
    View k, v;  // (T, Hkv, d), Hkv divides Hq: query head h reads kv head h / (Hq / Hkv)
    View out;   // (T, Hq, d)
    View lse;   // (Hq, T) f32 out: log Σ exp of the scaled scores
    // (T, Hq, d), optional: what rounding to out's type took away. Backward subtracts Σ dout · out from
    // products that are as large; without the rest, an error of out's rounding is common to all keys of a
    // query.
    View out_rest;
};
void attention(const AttentionArgs& args, const Exec& exec);
// Whether a caller that trains in bf16 should ask for out_rest: on the CPU. A GPU's fastest variant has no
// such output, and its memory is dearer.
bool attention_keeps_rest(const Exec& exec);
Cost cost(const AttentionArgs& args);  // of sequences of max_seqlen
std::vector<VariantInfo> attention_variants();

struct AttentionBackwardArgs {
    AttentionShape shape;
    View q, k, v, out, lse;  // as forward left them
    View dout;               // (T, Hq, d)
    View dq, dk, dv;         // shapes of q, k, v; may be strided like them
    View out_rest;           // as forward left it, or nothing
};
void attention_backward(const AttentionBackwardArgs& args, const Exec& exec);
Cost cost(const AttentionBackwardArgs& args);
std::vector<VariantInfo> attention_backward_variants();

}  // namespace moebius::ops
