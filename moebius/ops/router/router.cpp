#include "moebius/ops/router/router.h"

#include <fmt/format.h>

#include "moebius/ops/router/cpu.h"
#include "moebius/ops/router/cuda.h"

namespace moebius::ops {
namespace {

template <class Args>
std::string why_not_cuda(const Args& args, const Exec&) {
    const int64_t experts = args.logits.size(1), topk = args.options.topk;
    if (experts > cuda::kMostExperts)
        return fmt::format("takes up to {} experts, not {}", cuda::kMostExperts, experts);
    if (topk > cuda::kMostTopk)
        return fmt::format("takes up to {} experts a token, not {}", cuda::kMostTopk, topk);
    return {};
}

constexpr Variant<RouterArgs> kRouter[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, why_not_cuda<RouterArgs>, MOEBIUS_CUDA(cuda::router)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<RouterArgs>, cpu::router}};
constexpr Variant<RouterBackwardArgs> kRouterBackward[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, why_not_cuda<RouterBackwardArgs>,
     MOEBIUS_CUDA(cuda::router_backward)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<RouterBackwardArgs>, cpu::router_backward}};

bool is(const View& view, DType dtype, const Shape& shape) {
    return view.dtype == dtype && view.contiguous() && view.shape == shape;
}
bool absent_or(const View& view, DType dtype, const Shape& shape) {
    return !view || is(view, dtype, shape);
}

void check_options(const RouterOptions& o, const View& logits) {
    MOEBIUS_CHECK(logits.rank() == 2 && is(logits, DType::F32, logits.shape), "logits ", logits.shape.str());
    const int64_t experts = logits.size(1);
    MOEBIUS_CHECK(o.topk >= 1 && o.topk <= experts, "topk = ", o.topk, " of ", experts, " experts");
    MOEBIUS_CHECK(o.num_groups >= 1 && experts % o.num_groups == 0, experts, " experts in ", o.num_groups,
                  " groups");
    MOEBIUS_CHECK(o.topk_groups >= 1 && o.topk_groups <= o.num_groups, "topk_groups = ", o.topk_groups,
                  " of ", o.num_groups);
    MOEBIUS_CHECK(o.topk <= o.topk_groups * (experts / o.num_groups), "topk = ", o.topk, " of ",
                  o.topk_groups, " groups of ", experts / o.num_groups, " experts");
}

}  // namespace

Cost cost(const RouterArgs& a) {
    const auto elements = static_cast<double>(a.logits.numel());
    return {5 * elements, static_cast<double>(a.logits.bytes() + 2 * a.topk_weights.bytes())};
}
Cost cost(const RouterBackwardArgs& a) {
    const auto elements = static_cast<double>(a.logits.numel());
    return {8 * elements, static_cast<double>(2 * a.logits.bytes() + 3 * a.topk_weights.bytes())};
}

void router(const RouterArgs& a, const Exec& exec) {
    check_options(a.options, a.logits);
    const int64_t tokens = a.logits.size(0), experts = a.logits.size(1);
    const Shape slots{tokens, a.options.topk};
    MOEBIUS_CHECK(absent_or(a.bias, DType::F32, {experts}), "bias ", a.bias.shape.str());
    MOEBIUS_CHECK(absent_or(a.valid, DType::U8, {tokens}), "valid ", a.valid.shape.str());
    MOEBIUS_CHECK(is(a.topk_indices, DType::I32, slots) && is(a.topk_weights, DType::F32, slots),
                  "topk_indices ", a.topk_indices.shape.str(), ", topk_weights ", a.topk_weights.shape.str(),
                  ", not ", slots.str());
    MOEBIUS_CHECK(absent_or(a.counts, DType::F32, {experts}), "counts ", a.counts.shape.str());
    MOEBIUS_CHECK(absent_or(a.prob_sums, DType::F32, {experts}), "prob_sums ", a.prob_sums.shape.str());
    MOEBIUS_CHECK(absent_or(a.z_sum, DType::F32, {1}) && absent_or(a.tokens, DType::F32, {1}), "z_sum ",
                  a.z_sum.shape.str(), ", tokens ", a.tokens.shape.str());
    dispatch<RouterArgs>("router", kRouter, a, exec, cost(a));
}

void router_backward(const RouterBackwardArgs& a, const Exec& exec) {
    check_options(a.options, a.logits);
    const int64_t tokens = a.logits.size(0), experts = a.logits.size(1);
    const Shape slots{tokens, a.options.topk};
    MOEBIUS_CHECK(absent_or(a.valid, DType::U8, {tokens}), "valid ", a.valid.shape.str());
    MOEBIUS_CHECK(is(a.topk_indices, DType::I32, slots) && is(a.topk_weights, DType::F32, slots) &&
                      is(a.dweights, DType::F32, slots),
                  "topk_indices ", a.topk_indices.shape.str(), ", topk_weights ", a.topk_weights.shape.str(),
                  ", dweights ", a.dweights.shape.str(), ", not ", slots.str());
    MOEBIUS_CHECK(absent_or(a.dprobs, DType::F32, {experts}) && absent_or(a.dz, DType::F32, {1}), "dprobs ",
                  a.dprobs.shape.str(), ", dz ", a.dz.shape.str());
    MOEBIUS_CHECK(is(a.dlogits, DType::F32, a.logits.shape), "dlogits ", a.dlogits.shape.str());
    dispatch<RouterBackwardArgs>("router_backward", kRouterBackward, a, exec, cost(a));
}

std::vector<VariantInfo> router_variants() {
    return describe<RouterArgs>(kRouter);
}
std::vector<VariantInfo> router_backward_variants() {
    return describe<RouterBackwardArgs>(kRouterBackward);
}

}  // namespace moebius::ops
