#include "moebius/ops/grouped_mlp/grouped_mlp.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_mlp/cpu.h"
#include "moebius/ops/grouped_mlp/cuda.h"
#include "moebius/ops/grouped_mlp/sm90.h"
#include "moebius/ops/grouped_mlp/sm90_config.h"

namespace moebius::ops {
namespace {

constexpr Variant<GroupedMlpArgs> kForward[] = {
    {"sm90_fused", DeviceKind::Cuda, 90, 90, sm90::why_not_mlp, MOEBIUS_CUDA(sm90::grouped_mlp)},
    {"cuda_composed", DeviceKind::Cuda, 80, 999, always<GroupedMlpArgs>, MOEBIUS_CUDA(cuda::grouped_mlp)},
    {"cpu_fused", DeviceKind::Cpu, 0, 0, always<GroupedMlpArgs>, cpu::grouped_mlp}};
constexpr Variant<GroupedMlpBackwardArgs> kBackward[] = {
    {"sm90_fused", DeviceKind::Cuda, 90, 90, sm90::why_not_mlp_backward,
     MOEBIUS_CUDA(sm90::grouped_mlp_backward)},
    {"cuda_composed", DeviceKind::Cuda, 80, 999, always<GroupedMlpBackwardArgs>,
     MOEBIUS_CUDA(cuda::grouped_mlp_backward)},
    {"cpu_fused", DeviceKind::Cpu, 0, 0, always<GroupedMlpBackwardArgs>, cpu::grouped_mlp_backward}};

struct Sizes {
    int64_t m, hidden, experts, intermediate;
};

template <class Args>
Sizes sizes(const Args& a) {
    return {a.x.size(0), a.x.size(1), a.down.size(0), a.down.size(2)};
}

// What both directions ask of the arguments they share.
template <class Args>
bool shared_fit(const Args& a) {
    if (a.x.rank() != 2 || a.gate_up.rank() != 3 || a.down.rank() != 3) return false;
    const Sizes s = sizes(a);
    return a.gate_up.shape == Shape{s.experts, 2 * s.intermediate, s.hidden} &&
           a.down.shape == Shape{s.experts, s.hidden, s.intermediate} &&
           a.split_sizes.shape == Shape{s.experts} && (!a.scales || a.scales.shape == Shape{s.m}) &&
           (!a.c || a.c.shape == Shape{s.m, 2 * s.intermediate});
}

template <class Args>
void check_shared(const Args& a, bool fits, const char* op) {
    if (!fits) {
        throw Error(fmt::format("{}: shapes don't fit: x {}, gate_up {}, down {}, split_sizes {}, c {}", op,
                                a.x.shape.str(), a.gate_up.shape.str(), a.down.shape.str(),
                                a.split_sizes.shape.str(), a.c.shape.str()));
    }
    const Sizes s = sizes(a);
    if (a.options.interleave > 0 && s.intermediate % a.options.interleave != 0) {
        throw Error(fmt::format("{}: glu_interleave_size = {} does not divide the intermediate size {}", op,
                                a.options.interleave, s.intermediate));
    }
    const DType type = a.x.dtype;
    if ((type != DType::F32 && type != DType::BF16) || a.gate_up.dtype != type || a.down.dtype != type ||
        (a.c && a.c.dtype != type)) {
        throw Error(fmt::format("{} takes f32 or bf16, the same everywhere, not x {}, gate_up {}, down {}",
                                op, name(type), name(a.gate_up.dtype), name(a.down.dtype)));
    }
    MOEBIUS_CHECK(a.split_sizes.contiguous() &&
                      (a.split_sizes.dtype == DType::I32 || a.split_sizes.dtype == DType::I64),
                  op, ": split_sizes");
    MOEBIUS_CHECK(!a.scales || (a.scales.dtype == DType::F32 && a.scales.contiguous()), op, ": scales");
}

void check_dense(const char* op, std::initializer_list<View> views) {
    for (const View& view : views) {
        const int last = view.rank() - 1;
        MOEBIUS_CHECK(!view || view.size(last) <= 1 || view.stride[static_cast<size_t>(last)] == 1, op,
                      ": columns must be dense");
    }
}

// From the first byte to past the last; rows may have gaps.
std::pair<const char*, const char*> extent(const View& view) {
    const char* const begin = static_cast<const char*>(view.data);
    int64_t last = 0;
    for (int axis = 0; axis < view.rank(); ++axis) {
        if (view.size(axis) == 0) return {begin, begin};
        last += (view.size(axis) - 1) * view.stride[static_cast<size_t>(axis)];
    }
    return {begin, begin + bytes_of(view.dtype, last + 1)};
}

// C, which will be overwritten, against all that is read or written beside it.
void check_apart(const View& c, const GroupedMlpBackwardArgs& a) {
    const auto [begin, end] = extent(c);
    const std::pair<const char*, const View*> others[] = {
        {"x", &a.x},   {"gate_up", &a.gate_up},        {"down", &a.down},   {"scales", &a.scales},
        {"dy", &a.dy}, {"dgate_up", &a.dgate_up},      {"ddown", &a.ddown}, {"dscales", &a.dscales},
        {"dx", &a.dx}, {"split_sizes", &a.split_sizes}};
    for (const auto& [name, view] : others) {
        if (!*view) continue;
        const auto [first, past] = extent(*view);
        if (first < end && begin < past)
            throw Error(fmt::format("grouped_mlp_backward: c may be overwritten, but {} lies in it", name));
    }
}

void validate(const GroupedMlpArgs& a) {
    check_shared(a, shared_fit(a) && a.y.shape == a.x.shape, "grouped_mlp");
    check_dense("grouped_mlp", {a.x, a.gate_up, a.down, a.c, a.y});
    MOEBIUS_CHECK(a.y.dtype == a.x.dtype, "grouped_mlp: y is ", name(a.y.dtype));
}

void validate(const GroupedMlpBackwardArgs& a) {
    const bool fits = shared_fit(a) && a.c && a.dy.shape == a.x.shape && a.dx.shape == a.x.shape &&
                      a.dgate_up.shape == a.gate_up.shape && a.ddown.shape == a.down.shape &&
                      (!a.dscales || a.dscales.shape == Shape{a.x.size(0)});
    check_shared(a, fits, "grouped_mlp_backward");
    check_dense("grouped_mlp_backward", {a.x, a.c, a.gate_up, a.down, a.dy, a.dx, a.dgate_up, a.ddown});
    MOEBIUS_CHECK(a.dy.dtype == a.x.dtype && a.dx.dtype == a.x.dtype, "grouped_mlp_backward: dy, dx");
    for (const View* view : {&a.dgate_up, &a.ddown}) {
        MOEBIUS_CHECK(view->dtype == DType::F32 || view->dtype == DType::BF16,
                      "grouped_mlp_backward: gradients of weights are f32 or bf16, not ", name(view->dtype));
    }
    MOEBIUS_CHECK(!a.dscales || (a.dscales.dtype == DType::F32 && a.dscales.contiguous()));
    if (a.overwrite_c) check_apart(a.c, a);
    for (const float beta : {a.beta_gate_up, a.beta_down}) MOEBIUS_CHECK(beta == 0 || beta == 1, beta);
}

}  // namespace

Cost cost(const GroupedMlpArgs& a) {
    const Sizes s = sizes(a);
    const double mih =
        static_cast<double>(s.m) * static_cast<double>(s.hidden) * static_cast<double>(s.intermediate);
    const int64_t bytes =
        a.x.bytes() + a.gate_up.bytes() + a.down.bytes() + (a.c ? a.c.bytes() : 0) + a.y.bytes();
    return {6 * mih, static_cast<double>(bytes)};
}

Cost cost(const GroupedMlpBackwardArgs& a) {
    const Sizes s = sizes(a);
    const double mih =
        static_cast<double>(s.m) * static_cast<double>(s.hidden) * static_cast<double>(s.intermediate);
    const int64_t bytes = a.x.bytes() + a.c.bytes() + a.dy.bytes() + a.dx.bytes() + a.gate_up.bytes() +
                          a.down.bytes() + a.dgate_up.bytes() + a.ddown.bytes();
    return {12 * mih, static_cast<double>(bytes)};
}

void grouped_mlp(const GroupedMlpArgs& args, const Exec& exec) {
    validate(args);
    dispatch<GroupedMlpArgs>("grouped_mlp", kForward, args, exec, cost(args));
}
void grouped_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec) {
    validate(args);
    dispatch<GroupedMlpBackwardArgs>("grouped_mlp_backward", kBackward, args, exec, cost(args));
}

std::vector<VariantInfo> grouped_mlp_variants() {
    return describe<GroupedMlpArgs>(kForward);
}
std::vector<VariantInfo> grouped_mlp_backward_variants() {
    return describe<GroupedMlpBackwardArgs>(kBackward);
}

}  // namespace moebius::ops
