// Attention's backward on Hopper: the kernels before and after that of sm90_backward.cuh, and the launches.
#include <algorithm>

#include "moebius/ops/attention/sm90_backward.cuh"
#include "moebius/ops/attention/sm90_views.cuh"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::sm90 {
namespace {

constexpr int kRowThreads = 256;

struct PrepareArgs {
    Rows<const __nv_bfloat16> out, dout;
    const float* lse;
    int64_t lse_stride, tokens, heads;
    const int32_t* tokens_end;  // past the last token of a sequence
    float2* stats;
    uint32_t* flags;
    int64_t flag_count;
};

// kLanes threads a query: its lse and Σ dout · out. And zeros to the flags.
template <int kLanes>
__global__ void __launch_bounds__(kRowThreads) attention_prepare_sm90(PrepareArgs a) {
    const int64_t index = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
    if (index < a.flag_count) a.flags[index] = 0;
    const int64_t row = index / kLanes, token = row / a.heads, head = row % a.heads;
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    const bool used = token < a.tokens && token < *a.tokens_end;
    float sum = 0.0f;
    if (used) {
        float x[8], y[8];
        ptx::load_floats<8>(a.out.at(token, head) + 8 * lane, x);
        ptx::load_floats<8>(a.dout.at(token, head) + 8 * lane, y);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (used && lane == 0)
        a.stats[head * a.tokens + token] = make_float2(a.lse[head * a.lse_stride + token] * kLog2E, sum);
}

struct RoundArgs {
    const float* sums;  // (heads, boxes, T, 64), as sm90_backward.cuh says
    Rows<__nv_bfloat16> to;
    int64_t tokens;
    const int32_t* tokens_end;
    int boxes;
    float factor;
};

struct RoundAll {
    RoundArgs part[3];  // dq, dk, dv
    int rows[2];        // heads · boxes of dq, of dk
};

// A thread eight columns; blockIdx.y: head and box.
__global__ void __launch_bounds__(kRowThreads) attention_round_sm90(const __grid_constant__ RoundAll all) {
    int y = static_cast<int>(blockIdx.y), which = 0;
    while (which < 2 && y >= all.rows[which]) y -= all.rows[which++];
    const RoundArgs& a = all.part[which];
    const int64_t index = int64_t{blockIdx.x} * kRowThreads + threadIdx.x, token = index / 8;
    const int j = static_cast<int>(index % 8);
    if (token >= a.tokens || token >= *a.tokens_end) return;
    float x[8];
    ptx::load_floats<8>(a.sums + (y * a.tokens + token) * 64 + (j ^ static_cast<int>(token % 8)) * 8, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= a.factor;
    ptx::store_floats<8>(a.to.at(token, y / a.boxes) + y % a.boxes * 64 + j * 8, x);
}

template <int kHeadDim>
void backward(const AttentionBackwardArgs& a, const Exec& exec) {
    using L = detail::Layout<kHeadDim>;
    const int64_t tokens = a.q.size(0), heads = a.q.size(1), kv_heads = a.k.size(1);
    const int64_t sequences = a.shape.cu_seqlens.size(0) - 1;
    const BackwardSizes sizes = backward_sizes(a);
    const Scratch stats("attention_backward.stats", static_cast<size_t>(heads * tokens) * sizeof(float2),
                        exec);
    const Scratch flags("attention_backward.turns", static_cast<size_t>(sizes.flags) * sizeof(uint32_t),
                        exec);
    const Scratch sums("attention_backward.sums", static_cast<size_t>(sizes.sums) * sizeof(float), exec);
    const int32_t* cu_seqlens = a.shape.cu_seqlens.as<int32_t>();

    constexpr int kLanes = kHeadDim / 8;
    const PrepareArgs prepare{rows_of_view<const __nv_bfloat16>(a.out),
                              rows_of_view<const __nv_bfloat16>(a.dout),
                              a.lse.as<float>(),
                              a.lse.stride[0],
                              tokens,
                              heads,
                              cu_seqlens + sequences,
                              stats.as<float2>(),
                              flags.as<uint32_t>(),
                              sizes.flags};
    launch("attention_backward.prepare", attention_prepare_sm90<kLanes>,
           {grid_for(std::max(tokens * heads * kLanes, sizes.flags), kRowThreads), dim3(kRowThreads)}, exec,
           prepare);

    BackwardProblem p{};
    p.q = heads_map(a.q, L::kQueries);
    p.dout = heads_map(a.dout, L::kQueries);
    p.k = heads_map(a.k, kKeys);
    p.v = heads_map(a.v, kKeys);
    p.sequences = {cu_seqlens, static_cast<int>(sequences), static_cast<int>(tokens)};
    p.heads = static_cast<int>(heads);
    p.kv_heads = static_cast<int>(kv_heads);
    p.window = static_cast<int>(std::min(a.shape.window, tokens));
    p.scale_log2 = a.shape.scale * kLog2E;
    p.stats = stats.as<float2>();
    p.dq = sums.as<float>();
    p.dk = p.dq + tokens * heads * kHeadDim;
    p.dv = p.dk + tokens * kv_heads * kHeadDim;
    p.next = flags.as<uint32_t>();
    p.dq_turns = p.next + 1;
    p.dkv_turns = p.dq_turns + 2 * sizes.query_tiles * heads;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(sizes.items, exec.device->sm_count()));
    launch("attention_backward.tiles", attention_backward_sm90<kHeadDim>,
           {dim3(blocks), dim3(kThreads), L::kBytes}, exec, p);

    const auto rounding = [&](const float* from, const View& to, float factor) {
        return RoundArgs{from,  rows_of_view<__nv_bfloat16>(to), tokens, cu_seqlens + sequences, L::kBoxes,
                         factor};
    };
    const int dq_rows = static_cast<int>(heads) * L::kBoxes, dk_rows = static_cast<int>(kv_heads) * L::kBoxes;
    const RoundAll all{{rounding(p.dq, a.dq, a.shape.scale), rounding(p.dk, a.dk, a.shape.scale),
                        rounding(p.dv, a.dv, 1.0f)},
                       {dq_rows, dk_rows}};
    dim3 grid = grid_for(tokens * 8, kRowThreads);
    grid.y = static_cast<unsigned>(dq_rows + 2 * dk_rows);
    launch("attention_backward.round", attention_round_sm90, {grid, dim3(kRowThreads)}, exec, all);
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& a, const Exec& exec) {
    if (a.q.size(0) == 0 || a.shape.cu_seqlens.size(0) <= 1) return;
    if (a.q.size(2) == 64) {
        backward<64>(a, exec);
    } else {
        backward<128>(a, exec);
    }
}

}  // namespace moebius::ops::sm90
