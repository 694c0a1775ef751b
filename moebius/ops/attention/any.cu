// Attention on every card from sm_80: what its kernels in any_forward.cu, any_backward.cu and any_fp32.cu are
// given, and the deltas of backward.
#include "moebius/ops/attention/any_args.cuh"
#include "moebius/ops/attention/cuda.h"
#include "moebius/ptx/vector.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kDeltaThreads = 128;

// Every head's row begins on a multiple of `bytes`.
bool rows_begin_on(const View& view, int64_t bytes) {
    const int64_t element = bytes_of(view.dtype, 1);
    return reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) == 0 &&
           view.stride[0] * element % bytes == 0 && view.stride[1] * element % bytes == 0;
}

template <class T>
Heads<T> heads_of(const View& view) {
    if (!view.data) return {};
    return {static_cast<T*>(view.data), view.stride[0], view.stride[1], rows_begin_on(view, 16),
            rows_begin_on(view, 2 * bytes_of(view.dtype, 1))};
}

// What both directions share.
template <class T, class Args>
AttentionProblem<T> problem_of(const Args& a) {
    AttentionProblem<T> p{};
    p.q = heads_of<const T>(a.q);
    p.k = heads_of<const T>(a.k);
    p.v = heads_of<const T>(a.v);
    p.lse = a.lse.template as<float>();
    p.lse_stride = a.lse.stride[0];
    p.tokens = a.q.size(0);
    p.sequences = {a.shape.cu_seqlens.template as<int32_t>(), a.shape.cu_seqlens.size(0) - 1, a.q.size(0)};
    p.heads = a.q.size(1);
    p.kv_heads = a.k.size(1);
    p.window = a.shape.window;
    p.head_dim = static_cast<int>(a.q.size(2));
    p.scale = a.shape.scale;
    return p;
}

// delta (Hq, T) = Σ dout · (out + its rest). In fp32 a thread sums a query's in the order of the products
// dout · v: where a query sees one key, the two are equal, and their difference, a gradient, is zero. In bf16
// a warp does.
template <class T, int kLanes>
__global__ void __launch_bounds__(kDeltaThreads) attention_delta_any(AttentionProblem<T> p, float* delta) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int64_t index = int64_t{blockIdx.x} * (kDeltaThreads / kLanes) + threadIdx.x / kLanes;
    const int64_t token = index / p.heads, head = index % p.heads;
    // Tokens past the last sequence are not read.
    if (token >= p.tokens || token >= p.sequences.cu_seqlens[p.sequences.experts]) return;
    const T *dout = p.dout.at(token, head), *out = p.saved_out.at(token, head);
    float sum = 0.0f;
    for (int c = lane; c < p.head_dim; c += kLanes)
        sum = fmaf(ptx::load_float(dout + c), ptx::load_float(out + c), sum);
    if (p.saved_rest.data) {
        const T* rest = p.saved_rest.at(token, head);
        float small = 0.0f;
        for (int c = lane; c < p.head_dim; c += kLanes)
            small = fmaf(ptx::load_float(dout + c), ptx::load_float(rest + c), small);
        sum += small;
    }
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) delta[head * p.tokens + token] = sum;
}

template <class T>
void forward(const AttentionArgs& a, const Exec& exec) {
    AttentionProblem<T> p = problem_of<T>(a);
    p.out = heads_of<T>(a.out);
    p.rest = heads_of<T>(a.out_rest);
    run_attention(p, exec);
}

template <class T>
void backward(const AttentionBackwardArgs& a, const Exec& exec) {
    AttentionProblem<T> p = problem_of<T>(a);
    p.dout = heads_of<const T>(a.dout);
    p.saved_out = heads_of<const T>(a.out);
    p.saved_rest = heads_of<const T>(a.out_rest);
    p.dq = heads_of<T>(a.dq);
    p.dk = heads_of<T>(a.dk);
    p.dv = heads_of<T>(a.dv);
    const Scratch delta("attention_backward.delta", static_cast<size_t>(p.heads * p.tokens) * sizeof(float),
                        exec);
    p.delta = delta.as<float>();
    constexpr int kLanes = sizeof(T) == 2 ? 32 : 1;
    launch("attention_backward.delta", attention_delta_any<T, kLanes>,
           {grid_for(p.heads * p.tokens, kDeltaThreads / kLanes), dim3(kDeltaThreads)}, exec, p,
           delta.as<float>());
    run_attention_backward(p, exec);
}

}  // namespace

void attention(const AttentionArgs& a, const Exec& exec) {
    if (a.q.dtype == DType::BF16) {
        forward<__nv_bfloat16>(a, exec);
    } else {
        forward<float>(a, exec);
    }
}

void attention_backward(const AttentionBackwardArgs& a, const Exec& exec) {
    if (a.q.dtype == DType::BF16) {
        backward<__nv_bfloat16>(a, exec);
    } else {
        backward<float>(a, exec);
    }
}

}  // namespace moebius::ops::cuda
