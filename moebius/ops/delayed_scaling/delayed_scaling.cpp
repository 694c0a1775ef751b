#include "moebius/ops/delayed_scaling/delayed_scaling.h"

#include "moebius/ops/delayed_scaling/cpu.h"
#include "moebius/ops/delayed_scaling/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<DelayedScalingArgs> kDelayedScaling[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<DelayedScalingArgs>, MOEBIUS_CUDA(cuda::delayed_scaling)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<DelayedScalingArgs>, cpu::delayed_scaling}};

}  // namespace

Cost cost(const DelayedScalingArgs& a) {
    return {static_cast<double>(a.history.numel() + a.observed.numel()),
            static_cast<double>(2 * a.history.bytes() + a.observed.bytes() + 2 * a.scale.bytes())};
}

void delayed_scaling(const DelayedScalingArgs& a, const Exec& exec) {
    const auto f32 = [](const View& view) { return view && view.dtype == DType::F32; };
    MOEBIUS_CHECK(f32(a.history) && a.history.rank() == 2 && a.history.contiguous() && a.history.size(1) >= 1,
                  "history ", a.history.shape.str());
    MOEBIUS_CHECK(f32(a.scale) && a.scale.contiguous() && a.scale.shape == Shape{a.history.size(0)}, "scale ",
                  a.scale.shape.str(), ", history ", a.history.shape.str());
    MOEBIUS_CHECK(f32(a.observed) && a.observed.rank() == 2 && a.observed.size(0) >= 1 &&
                      a.observed.size(1) == a.history.size(0) && a.observed.stride[1] == 1,
                  "observed ", a.observed.shape.str(), ", history ", a.history.shape.str());
    MOEBIUS_CHECK(!a.bad || (a.bad.dtype == DType::I32 && a.bad.numel() == 1), "bad ", a.bad.shape.str());
    MOEBIUS_CHECK(a.largest > 0, "largest = ", a.largest);
    dispatch<DelayedScalingArgs>("delayed_scaling", kDelayedScaling, a, exec, cost(a));
}

std::vector<VariantInfo> delayed_scaling_variants() {
    return describe<DelayedScalingArgs>(kDelayedScaling);
}

}  // namespace moebius::ops
