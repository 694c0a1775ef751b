#include "moebius/ops/attention/attention.h"

#include <algorithm>
#include <string>

#include "moebius/ops/attention/cpu.h"
#include "moebius/ops/attention/cuda.h"
#include "moebius/ops/attention/cudnn.h"
#include "moebius/ops/attention/sm90.h"

namespace moebius::ops {
namespace {

std::string not_for_cudnn(const AttentionArgs& a, const Exec& exec) {
    const std::string reason = cudnn::refused(a);
    // A dry step may be about a device that is not here.
    return !reason.empty() || exec.dry ? reason : cudnn::unavailable(a, exec);
}

template <bool kOrdered>
std::string backward_not_for_cudnn(const AttentionBackwardArgs& a, const Exec& exec) {
    const std::string reason = cudnn::refused(a, kOrdered);
    return !reason.empty() || exec.dry ? reason : cudnn::unavailable(a, kOrdered, exec);
}

template <class Args>
std::string not_for_sm90(const Args& a, const Exec&) {
    return sm90::refused(a);
}

template <class Args>
std::string not_for_cuda_any(const Args& a, const Exec&) {
    const int64_t head_dim = a.q.size(2);
    if (head_dim <= cuda::kMostHeadDim) return {};
    return "head_dim = " + std::to_string(head_dim) + " is above " + std::to_string(cuda::kMostHeadDim);
}

constexpr Variant<AttentionArgs> kForward[] = {
    {"sm90", DeviceKind::Cuda, 90, 90, not_for_sm90<AttentionArgs>, MOEBIUS_CUDA(sm90::attention)},
    {"cudnn", DeviceKind::Cuda, 90, 90, not_for_cudnn, MOEBIUS_CUDNN(cudnn::attention)},
    {"cuda_any", DeviceKind::Cuda, 80, 999, not_for_cuda_any<AttentionArgs>, MOEBIUS_CUDA(cuda::attention)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<AttentionArgs>, cpu::attention}};
constexpr Variant<AttentionBackwardArgs> kBackward[] = {
    {"sm90", DeviceKind::Cuda, 90, 90, not_for_sm90<AttentionBackwardArgs>,
     MOEBIUS_CUDA(sm90::attention_backward)},
    {"cudnn", DeviceKind::Cuda, 90, 90, backward_not_for_cudnn<true>,
     MOEBIUS_CUDNN(cudnn::attention_backward)},
    {"cudnn_unordered", DeviceKind::Cuda, 90, 90, backward_not_for_cudnn<false>,
     MOEBIUS_CUDNN(cudnn::attention_backward_unordered), false},
    {"cuda_any", DeviceKind::Cuda, 80, 999, not_for_cuda_any<AttentionBackwardArgs>,
     MOEBIUS_CUDA(cuda::attention_backward)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<AttentionBackwardArgs>, cpu::attention_backward}};

void check_shape(const AttentionShape& shape) {
    MOEBIUS_CHECK(shape.cu_seqlens.dtype == DType::I32 && shape.cu_seqlens.rank() == 1 &&
                      shape.cu_seqlens.contiguous() && shape.cu_seqlens.size(0) >= 1,
                  "cu_seqlens ", shape.cu_seqlens.shape.str());
    MOEBIUS_CHECK(shape.max_seqlen >= 0 && shape.window >= 0, "max_seqlen ", shape.max_seqlen, ", window ",
                  shape.window);
}

// (T, heads, d) like `model`, a head's elements side by side.
void check_heads(const View& view, const View& model, const char* name) {
    MOEBIUS_CHECK(view.rank() == 3 && view.shape == model.shape && view.dtype == model.dtype, name, " ",
                  view.shape.str(), " beside ", model.shape.str());
    MOEBIUS_CHECK(view.stride[2] == 1 || view.size(2) == 1, name, ": a head's elements must be neighbours");
}

void check_operands(const View& q, const View& k, const View& v, const View& out, const View& lse) {
    MOEBIUS_CHECK(q.rank() == 3 && k.rank() == 3 && q.size(0) == k.size(0) && q.size(2) == k.size(2) &&
                      q.size(2) > 0 && k.dtype == q.dtype,
                  "q ", q.shape.str(), ", k ", k.shape.str());
    MOEBIUS_CHECK(k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0, q.size(1), " query heads, ",
                  k.size(1), " kv heads");
    check_heads(q, q, "q");
    check_heads(k, k, "k");
    check_heads(v, k, "v");
    check_heads(out, q, "out");
    MOEBIUS_CHECK(lse.dtype == DType::F32 && lse.shape == Shape({q.size(1), q.size(0)}) &&
                      (lse.stride[1] == 1 || q.size(0) <= 1),
                  "lse ", lse.shape.str());
}

// Pairs of a query and a key that it sees, in the sequences that T tokens make.
double pairs(const AttentionShape& shape, int64_t tokens) {
    if (shape.max_seqlen == 0) return 0;
    const auto length = static_cast<double>(std::min(shape.max_seqlen, tokens));
    const double window = shape.window > 0 ? std::min(static_cast<double>(shape.window), length) : length;
    const double in_one = window * (window + 1) / 2 + (length - window) * window;
    return length > 0 ? in_one * static_cast<double>(tokens) / length : 0;
}

}  // namespace

// Two products forward, five backward, each 2·d a pair and query head.
Cost cost(const AttentionArgs& a) {
    const double product = 2.0 * static_cast<double>(a.q.size(1) * a.q.size(2)) * pairs(a.shape, a.q.size(0));
    return {2 * product,
            static_cast<double>(a.q.bytes() + a.k.bytes() + a.v.bytes() + a.out.bytes() + a.lse.bytes())};
}

Cost cost(const AttentionBackwardArgs& a) {
    const double product = 2.0 * static_cast<double>(a.q.size(1) * a.q.size(2)) * pairs(a.shape, a.q.size(0));
    return {5 * product, static_cast<double>(2 * (a.q.bytes() + a.k.bytes() + a.v.bytes() + a.out.bytes()) +
                                             a.lse.bytes())};
}

void attention(const AttentionArgs& a, const Exec& exec) {
    check_shape(a.shape);
    check_operands(a.q, a.k, a.v, a.out, a.lse);
    if (a.out_rest.data) check_heads(a.out_rest, a.q, "out_rest");
    dispatch<AttentionArgs>("attention", kForward, a, exec, cost(a));
}

void attention_backward(const AttentionBackwardArgs& a, const Exec& exec) {
    check_shape(a.shape);
    check_operands(a.q, a.k, a.v, a.out, a.lse);
    if (a.out_rest.data) check_heads(a.out_rest, a.q, "out_rest");
    check_heads(a.dout, a.q, "dout");
    check_heads(a.dq, a.q, "dq");
    check_heads(a.dk, a.k, "dk");
    check_heads(a.dv, a.k, "dv");
    dispatch<AttentionBackwardArgs>("attention_backward", kBackward, a, exec, cost(a));
}

bool attention_keeps_rest(const Exec& exec) {
    return exec.device->kind() == DeviceKind::Cpu;
}

std::vector<VariantInfo> attention_variants() {
    return describe<AttentionArgs>(kForward);
}
std::vector<VariantInfo> attention_backward_variants() {
    return describe<AttentionBackwardArgs>(kBackward);
}

}  // namespace moebius::ops
