#include "moebius/ops/selection_bias/selection_bias.h"

#include "moebius/ops/selection_bias/cpu.h"
#include "moebius/ops/selection_bias/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<SelectionBiasArgs> kSelectionBias[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<SelectionBiasArgs>, MOEBIUS_CUDA(cuda::selection_bias)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<SelectionBiasArgs>, cpu::selection_bias}};

bool dense(const View& view, DType dtype, const Shape& shape) {
    return view.dtype == dtype && view.contiguous() && view.shape == shape;
}

}  // namespace

Cost cost(const SelectionBiasArgs& a) {
    const auto experts = static_cast<double>(a.counts.numel());
    return {3 * experts, 12 * experts};
}

void selection_bias(const SelectionBiasArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.counts.rank() == 1 && dense(a.counts, DType::F32, a.counts.shape) &&
                      dense(a.bias, DType::F32, a.counts.shape),
                  "counts ", a.counts.shape.str(), ", bias ", a.bias.shape.str());
    MOEBIUS_CHECK(!a.bad || dense(a.bad, DType::I32, {1}), "bad ", a.bad.shape.str());
    dispatch<SelectionBiasArgs>("selection_bias", kSelectionBias, a, exec, cost(a));
}

std::vector<VariantInfo> selection_bias_variants() {
    return describe<SelectionBiasArgs>(kSelectionBias);
}

}  // namespace moebius::ops
