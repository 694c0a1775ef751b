#include "moebius/ops/aux_loss/aux_loss.h"

#include "moebius/ops/aux_loss/cpu.h"
#include "moebius/ops/aux_loss/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<AuxLossArgs> kAuxLoss[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<AuxLossArgs>, MOEBIUS_CUDA(cuda::aux_loss)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<AuxLossArgs>, cpu::aux_loss}};

bool dense(const View& view, const Shape& shape) {
    return view.dtype == DType::F32 && view.contiguous() && view.shape == shape;
}

}  // namespace

Cost cost(const AuxLossArgs& a) {
    const auto elements = static_cast<double>(a.counts.numel());
    return {4 * elements, 12 * elements};
}

void aux_loss(const AuxLossArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.counts.rank() == 2 && a.topk >= 1, a.counts.shape.str(), ", k = ", a.topk);
    const Shape all = a.counts.shape, layers{a.counts.size(0)};
    MOEBIUS_CHECK(dense(a.counts, all) && dense(a.prob_sums, all), "counts ", all.str(), ", prob_sums ",
                  a.prob_sums.shape.str());
    MOEBIUS_CHECK(dense(a.z_sums, layers) && dense(a.tokens, layers), "z_sums ", a.z_sums.shape.str(),
                  ", tokens ", a.tokens.shape.str(), " for counts ", all.str());
    MOEBIUS_CHECK(dense(a.aux_loss, {1}) && dense(a.z_loss, {1}), "aux_loss ", a.aux_loss.shape.str(),
                  ", z_loss ", a.z_loss.shape.str());
    MOEBIUS_CHECK(!a.layer_aux_loss || dense(a.layer_aux_loss, layers), a.layer_aux_loss.shape.str());
    MOEBIUS_CHECK(!a.dprobs || dense(a.dprobs, all), a.dprobs.shape.str());
    MOEBIUS_CHECK(!a.dz || dense(a.dz, layers), a.dz.shape.str());
    MOEBIUS_CHECK((!a.dprobs && !a.dz) || dense(a.scale, {1}), "gradients need a scale (1), not ",
                  a.scale.shape.str());
    dispatch<AuxLossArgs>("aux_loss", kAuxLoss, a, exec, cost(a));
}

std::vector<VariantInfo> aux_loss_variants() {
    return describe<AuxLossArgs>(kAuxLoss);
}

}  // namespace moebius::ops
