#include "moebius/ops/glu_quantize/glu_quantize.h"

#include "moebius/ops/glu_quantize/cpu.h"
#include "moebius/ops/glu_quantize/cuda.h"

namespace moebius::ops {
namespace {

// The kernel reads eight neighbours of a half at a time.
std::string why_not_tiles(const ScaledGluQuantizeArgs& a, const Exec&) {
    if (a.x.dtype != DType::BF16) return "takes bf16, not " + std::string(name(a.x.dtype));
    if (a.options.interleave % 8 != 0)
        return "takes glu_interleave_size in multiples of 8, not " + std::to_string(a.options.interleave);
    const int64_t intermediate = a.x.size(1) / 2;
    if (intermediate % 8 != 0)
        return "intermediate size " + std::to_string(intermediate) + " is not a multiple of 8";
    if (a.x.stride[0] % 8 != 0 || reinterpret_cast<uintptr_t>(a.x.data) % 16 != 0)
        return "takes rows of x that begin at multiples of 16 bytes";
    return {};
}

// What kernels of tiles of two times 128 columns take. `columns`: that the intermediate size is a multiple
// of.
std::string why_not_pairs(const GluOptions& options, int64_t intermediate, int64_t columns,
                          std::initializer_list<std::pair<View, const char*>> inputs,
                          const QuantizeTarget& target) {
    if (options.interleave != 0)
        return "takes gates before ups, not glu_interleave_size = " + std::to_string(options.interleave);
    if (intermediate % columns != 0) {
        return "intermediate size " + std::to_string(intermediate) + " is not a multiple of " +
               std::to_string(columns);
    }
    for (const auto& [rows, what] : inputs) {
        if (rows.dtype != DType::BF16) return "takes bf16, not " + std::string(name(rows.dtype));
        if (rows.stride[0] % 8 != 0 || reinterpret_cast<uintptr_t>(rows.data) % 16 != 0)
            return "takes rows of " + std::string(what) + " that begin at multiples of 16 bytes";
    }
    return why_not_pairs(target);
}
std::string why_not_pairs(const ScaledGluQuantizeArgs& a, const Exec&) {
    return why_not_pairs(a.options, a.x.size(1) / 2, 256, {{a.x, "x"}}, a.activation);
}
std::string why_not_pairs(const ScaledGluBackwardQuantizeArgs& a, const Exec&) {
    if (const Operand& again = a.activation.column) {
        const Format &own = again.format, &dx = (a.dx.row ? a.dx.row : a.dx.column).format;
        if (own.element != DType::F8E4M3 || own.scale != dx.scale)
            return "makes the activation again in f8e4m3 with scales as the gradient's";
        if (std::string reason = why_not_pairs(a.activation); !reason.empty()) return reason;
    }
    return why_not_pairs(a.options, a.dy.size(1), 128, {{a.x, "x"}, {a.dy, "dy"}}, a.dx);
}

constexpr Variant<ScaledGluQuantizeArgs> kForward[] = {
    {"cuda_pairs", DeviceKind::Cuda, 80, 999, why_not_pairs, MOEBIUS_CUDA(cuda::scaled_glu_quantize_pairs)},
    {"cuda_any", DeviceKind::Cuda, 80, 999, why_not_tiles, MOEBIUS_CUDA(cuda::scaled_glu_quantize)},
    {"cuda_composed", DeviceKind::Cuda, 80, 999, always<ScaledGluQuantizeArgs>,
     MOEBIUS_CUDA(cuda::scaled_glu_then_quantize)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<ScaledGluQuantizeArgs>, cpu::scaled_glu_quantize},
};
constexpr Variant<ScaledGluBackwardQuantizeArgs> kBackward[] = {
    {"cuda_pairs", DeviceKind::Cuda, 80, 999, why_not_pairs,
     MOEBIUS_CUDA(cuda::scaled_glu_backward_quantize_pairs)},
    {"cuda_composed", DeviceKind::Cuda, 80, 999, always<ScaledGluBackwardQuantizeArgs>,
     MOEBIUS_CUDA(cuda::scaled_glu_backward_then_quantize)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<ScaledGluBackwardQuantizeArgs>, cpu::scaled_glu_backward_quantize},
};

void check_input(const char* op, const GluOptions& options, const View& x, const View& scales,
                 const View& split_sizes) {
    MOEBIUS_CHECK(x.rank() == 2 && x.size(1) % 2 == 0 && x.stride[1] == 1 &&
                      (x.dtype == DType::F32 || x.dtype == DType::BF16),
                  op, ": x ", name(x.dtype), " ", x.shape.str());
    MOEBIUS_CHECK(
        options.interleave >= 0 && (options.interleave == 0 || x.size(1) / 2 % options.interleave == 0), op,
        ": interleave ", options.interleave, " of ", x.size(1) / 2, " gates");
    MOEBIUS_CHECK(options.kind == GluKind::SwiGlu || options.limit > 0, op, ": limit ", options.limit);
    MOEBIUS_CHECK(
        !scales || (scales.shape == Shape{x.size(0)} && scales.dtype == DType::F32 && scales.contiguous()),
        op, ": scales ", scales.shape.str(), " for ", x.size(0), " rows");
    MOEBIUS_CHECK(split_sizes.rank() == 1 && split_sizes.contiguous() &&
                      (split_sizes.dtype == DType::I32 || split_sizes.dtype == DType::I64),
                  op, ": split_sizes ", name(split_sizes.dtype), " ", split_sizes.shape.str());
}

double bytes(const View& view) {
    return view ? static_cast<double>(view.bytes()) : 0.0;
}

}  // namespace

bool finds_amax(const QuantizeTarget& target) {
    return (target.row ? target.row : target.column).format.scale == ScaleKind::Tensor &&
           !target.rule.scale && !target.rule.amax;
}

// A sigmoid counts as four operations.
Cost cost(const ScaledGluQuantizeArgs& a) {
    return {3.5 * static_cast<double>(a.x.numel()), bytes(a.x) + bytes(a.scales) + bytes_of(a.activation)};
}
Cost cost(const ScaledGluBackwardQuantizeArgs& a) {
    return {16.0 * static_cast<double>(a.dy.numel()), bytes(a.x) + bytes(a.scales) + bytes(a.dy) +
                                                          bytes(a.dscales) + bytes_of(a.dx) +
                                                          bytes_of(a.activation)};
}

void scaled_glu_quantize(const ScaledGluQuantizeArgs& a, const Exec& exec) {
    check_input("scaled_glu_quantize", a.options, a.x, a.scales, a.split_sizes);
    check_target("scaled_glu_quantize: activation", a.activation,
                 {a.x.size(0), a.x.size(1) / 2, a.split_sizes.size(0)});
    dispatch<ScaledGluQuantizeArgs>("scaled_glu_quantize", kForward, a, exec, cost(a));
}

void scaled_glu_backward_quantize(const ScaledGluBackwardQuantizeArgs& a, const Exec& exec) {
    constexpr const char* kOp = "scaled_glu_backward_quantize";
    check_input(kOp, a.options, a.x, a.scales, a.split_sizes);
    check_target("scaled_glu_backward_quantize: dx", a.dx, {a.x.size(0), a.x.size(1), a.split_sizes.size(0)});
    MOEBIUS_CHECK(
        a.dy.shape == (Shape{a.x.size(0), a.x.size(1) / 2}) && a.dy.dtype == a.x.dtype && a.dy.stride[1] == 1,
        kOp, ": dy ", name(a.dy.dtype), " ", a.dy.shape.str());
    MOEBIUS_CHECK(!a.dscales || (a.dscales.shape == Shape{a.x.size(0)} && a.dscales.dtype == DType::F32 &&
                                 a.dscales.contiguous()),
                  kOp, ": dscales ", a.dscales.shape.str());
    if (a.activation.row || a.activation.column) {
        check_target("scaled_glu_backward_quantize: activation", a.activation,
                     {a.x.size(0), a.x.size(1) / 2, a.split_sizes.size(0)});
        MOEBIUS_CHECK(!a.activation.row && !finds_amax(a.activation) && !a.activation.rule.observed_amax &&
                          !a.activation.rule.counts,
                      kOp, ": the activation is made again column-wise, with forward's scales");
    }
    dispatch<ScaledGluBackwardQuantizeArgs>(kOp, kBackward, a, exec, cost(a));
}

std::vector<VariantInfo> scaled_glu_quantize_variants() {
    return describe<ScaledGluQuantizeArgs>(kForward);
}
std::vector<VariantInfo> scaled_glu_backward_quantize_variants() {
    return describe<ScaledGluBackwardQuantizeArgs>(kBackward);
}

}  // namespace moebius::ops
