// Attention's forward on Hopper: the launch of sm90_forward.cuh's kernel.
#include "moebius/ops/attention/sm90_forward.cuh"

#include <algorithm>

#include "moebius/runtime/launch.h"

namespace moebius::ops::sm90 {
namespace {

template <int kHeadDim>
void forward(const AttentionArgs& a, const Exec& exec) {
    using L = detail::ForwardLayout<kHeadDim>;
    const Scratch next("attention.next", sizeof(uint32_t), exec);
    ForwardProblem p{};
    p.q = heads_map(a.q, UnitPlan::kQueries);
    p.k = heads_map(a.k, kKeys);
    p.v = heads_map(a.v, kKeys);
    p.out = rows_of_view<__nv_bfloat16>(a.out);
    p.lse = a.lse.as<float>();
    p.lse_stride = a.lse.stride[0];
    p.sequences = {a.shape.cu_seqlens.as<int32_t>(), static_cast<int>(a.shape.cu_seqlens.size(0) - 1),
                   static_cast<int>(a.q.size(0))};
    p.heads = static_cast<int>(a.q.size(1));
    p.kv_heads = static_cast<int>(a.k.size(1));
    p.window = static_cast<int>(std::min(a.shape.window, a.q.size(0)));
    p.scale_log2 = a.shape.scale * kLog2E;
    p.next = next.as<uint32_t>();
    cuda_check(cudaMemsetAsync(p.next, 0, sizeof(uint32_t), cuda_stream(exec)), "attention.next");
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(forward_sizes(a).items, exec.device->sm_count()));
    launch("attention.tiles", attention_forward_sm90<kHeadDim>, {dim3(blocks), dim3(L::kThreads), L::kBytes},
           exec, p);
}

}  // namespace

void attention(const AttentionArgs& a, const Exec& exec) {
    if (a.q.size(0) == 0 || a.shape.cu_seqlens.size(0) <= 1) return;
    if (a.q.size(2) == 64) {
        forward<64>(a, exec);
    } else {
        forward<128>(a, exec);
    }
}

}  // namespace moebius::ops::sm90
