#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm_quantized/cpu.h"
#include "moebius/ops/grouped_gemm_quantized/cuda.h"
#include "moebius/ops/grouped_gemm_quantized/sm100.h"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"

namespace moebius::ops {
namespace {

constexpr Variant<GroupedGemmQuantizedArgs> kTable[] = {
    {"sm100", DeviceKind::Cuda, 100, 100, sm100::why_not, MOEBIUS_CUDA(sm100::grouped_gemm_quantized),
     /*repeats=*/true, /*untried=*/true},
    {"sm90", DeviceKind::Cuda, 90, 90, sm90::why_not, MOEBIUS_CUDA(sm90::grouped_gemm_quantized)},
    {"sm90_bf16", DeviceKind::Cuda, 90, 90, sm90::why_not_bf16,
     MOEBIUS_CUDA(sm90::grouped_gemm_quantized_bf16)},
    {"sm90_bf16_ring", DeviceKind::Cuda, 90, 90, sm90::why_not_bf16_ring,
     MOEBIUS_CUDA(sm90::grouped_gemm_quantized_bf16_ring)},
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<GroupedGemmQuantizedArgs>,
     MOEBIUS_CUDA(cuda::grouped_gemm_quantized)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<GroupedGemmQuantizedArgs>, cpu::grouped_gemm_quantized},
};

bool is_float8(const Operand& operand) {
    return operand.data.dtype == DType::F8E4M3 || operand.data.dtype == DType::F8E5M2;
}

[[noreturn]] void throw_misfit(const GroupedGemmQuantizedArgs& a) {
    throw Error(fmt::format(
        "grouped_gemm_quantized: shapes don't fit: a {} with scale {}, b {} with scale {}, out {}, "
        "split_sizes {}",
        a.a.data.shape.str(), a.a.scale.shape.str(), a.b.data.shape.str(), a.b.scale.shape.str(),
        a.out.shape.str(), a.split_sizes.shape.str()));
}

bool fits(const Operand& operand, Direction direction, const MatrixShape& matrix) {
    const OperandShapes shapes = operand_shapes(operand.format, direction, matrix);
    return operand.data.shape == shapes.data && operand.scale.shape == shapes.scale;
}

void check_formats(const GroupedGemmQuantizedArgs& a) {
    if (!is_float8(a.a) || !is_float8(a.b) || a.a.format.scale != a.b.format.scale ||
        a.a.format.scale == ScaleKind::None) {
        throw Error(fmt::format(
            "grouped_gemm_quantized takes float8 operands of one kind of scales, not {} with {} and {} with "
            "{}",
            name(a.a.data.dtype), name(a.a.format.scale), name(a.b.data.dtype), name(a.b.format.scale)));
    }
    if (a.a.layout != ScaleLayout::Compact || a.b.layout != ScaleLayout::Compact)
        throw Error("grouped_gemm_quantized takes compact scales, not padded or swizzled ones");
    if (a.out.dtype != DType::F32 && a.out.dtype != DType::BF16)
        throw Error(fmt::format("grouped_gemm_quantized writes f32 or bf16, not {}", name(a.out.dtype)));
}

void validate(const GroupedGemmQuantizedArgs& a) {
    check_formats(a);
    const bool wgrad = a.kind == GemmKind::Wgrad, forward = a.kind == GemmKind::Forward;
    const bool indices = a.split_sizes.rank() == 1 && a.split_sizes.contiguous() &&
                         (a.split_sizes.dtype == DType::I32 || a.split_sizes.dtype == DType::I64);
    if (!indices || a.a.data.rank() != 2 || a.b.data.rank() != (wgrad ? 2 : 3) ||
        a.out.rank() != (wgrad ? 3 : 2))
        throw_misfit(a);
    const QuantizedProductSizes s = sizes_of(a);
    const Direction across = Direction::Row, down = Direction::Column;
    const MatrixShape x{s.rows, s.in_features, s.experts}, y{s.rows, s.out_features, s.experts};
    const MatrixShape w{s.out_features, s.in_features, s.experts, true};
    const MatrixShape &left = forward ? x : y, &right = wgrad ? x : w;
    const Shape out = forward ? Shape{s.rows, s.out_features}
                      : wgrad ? Shape{s.experts, s.out_features, s.in_features}
                              : Shape{s.rows, s.in_features};
    if (a.split_sizes.size(0) != s.experts || a.out.shape != out || s.rows < 0 ||
        !fits(a.a, wgrad ? down : across, left) || !fits(a.b, forward ? across : down, right)) {
        throw_misfit(a);
    }
    check_operand("grouped_gemm_quantized: a", a.a, wgrad ? down : across, left);
    check_operand("grouped_gemm_quantized: b", a.b, forward ? across : down, right);
    const int last = a.out.rank() - 1;
    MOEBIUS_CHECK(a.out.size(last) <= 1 || a.out.stride[static_cast<size_t>(last)] == 1,
                  "grouped_gemm_quantized: columns of out must be dense");
    MOEBIUS_CHECK(a.beta == 0 || a.beta == 1, "grouped_gemm_quantized: beta = ", a.beta);
}

}  // namespace

QuantizedProductSizes sizes_of(const GroupedGemmQuantizedArgs& a) {
    QuantizedProductSizes s;
    s.experts = a.split_sizes.size(0);
    if (a.kind == GemmKind::Wgrad) {
        s.out_features = a.out.size(1);
        s.in_features = a.out.size(2);
        s.padded = a.a.data.size(a.a.transposed ? 1 : 0);
        s.rows = a.a.transposed ? (s.padded / kRowBlock - s.experts) * kRowBlock : s.padded;
        return s;
    }
    const bool transposed = a.b.transposed;
    s.rows = s.padded = a.a.data.size(0);
    s.out_features = a.b.data.size(transposed ? 2 : 1);
    s.in_features = a.b.data.size(transposed ? 1 : 2);
    return s;
}

Cost cost(const GroupedGemmQuantizedArgs& a) {
    const QuantizedProductSizes s = sizes_of(a);
    const double flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.out_features) *
                         static_cast<double>(s.in_features);
    const int64_t bytes = a.a.data.bytes() + a.a.scale.bytes() + a.b.data.bytes() + a.b.scale.bytes() +
                          (a.beta != 0 ? 2 : 1) * a.out.bytes();
    return {flops, static_cast<double>(bytes)};
}

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    validate(args);
    dispatch<GroupedGemmQuantizedArgs>("grouped_gemm_quantized", kTable, args, exec, cost(args));
}
std::vector<VariantInfo> grouped_gemm_quantized_variants() {
    return describe<GroupedGemmQuantizedArgs>(kTable);
}

}  // namespace moebius::ops
