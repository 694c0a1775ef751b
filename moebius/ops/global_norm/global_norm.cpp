#include "moebius/ops/global_norm/global_norm.h"

#include "moebius/ops/global_norm/cpu.h"
#include "moebius/ops/global_norm/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<SumOfSquaresArgs> kSumOfSquares[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<SumOfSquaresArgs>, MOEBIUS_CUDA(cuda::sum_of_squares)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<SumOfSquaresArgs>, cpu::sum_of_squares}};
constexpr Variant<ClipFactorArgs> kClipFactor[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<ClipFactorArgs>, MOEBIUS_CUDA(cuda::clip_factor)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<ClipFactorArgs>, cpu::clip_factor}};

void check_scalar(const View& view, DType dtype, const char* what) {
    MOEBIUS_CHECK(view && view.numel() == 1 && view.dtype == dtype, what, ": ", name(view.dtype), " ",
                  view.shape.str());
}

}  // namespace

Cost cost(const SumOfSquaresArgs& a) {
    return {2.0 * static_cast<double>(a.values.numel()), static_cast<double>(a.values.bytes())};
}
Cost cost(const ClipFactorArgs&) {
    return {};
}

void sum_of_squares(const SumOfSquaresArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.values.contiguous() && (a.values.dtype == DType::F32 || a.values.dtype == DType::BF16),
                  "values: ", name(a.values.dtype), " ", a.values.shape.str());
    check_scalar(a.sum_of_squares, DType::F64, "sum_of_squares");
    dispatch<SumOfSquaresArgs>("sum_of_squares", kSumOfSquares, a, exec, cost(a));
}

void clip_factor(const ClipFactorArgs& a, const Exec& exec) {
    check_scalar(a.sum_of_squares, DType::F64, "sum_of_squares");
    if (a.grad_factor) check_scalar(a.grad_factor, DType::F32, "grad_factor");
    if (a.loss) check_scalar(a.loss, DType::F32, "loss");
    check_scalar(a.norm, DType::F32, "norm");
    check_scalar(a.clip, DType::F32, "clip");
    check_scalar(a.bad, DType::I32, "bad");
    dispatch<ClipFactorArgs>("clip_factor", kClipFactor, a, exec, cost(a));
}

std::vector<VariantInfo> sum_of_squares_variants() {
    return describe<SumOfSquaresArgs>(kSumOfSquares);
}
std::vector<VariantInfo> clip_factor_variants() {
    return describe<ClipFactorArgs>(kClipFactor);
}

}  // namespace moebius::ops
