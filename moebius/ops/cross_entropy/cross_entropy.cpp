#include "moebius/ops/cross_entropy/cross_entropy.h"

#include "moebius/ops/cross_entropy/cpu.h"
#include "moebius/ops/cross_entropy/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<CrossEntropyArgs> kCrossEntropy[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<CrossEntropyArgs>, MOEBIUS_CUDA(cuda::cross_entropy)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<CrossEntropyArgs>, cpu::cross_entropy}};

}  // namespace

Cost cost(const CrossEntropyArgs& a) {
    // Largest, exponential and sum; with the gradient, the exponential once more and its scale.
    const double an_element = a.dlogits ? 7 : 4;
    return {an_element * static_cast<double>(a.logits.numel()),
            static_cast<double>(a.logits.bytes() + a.targets.bytes() + a.token_loss.bytes()) +
                (a.dlogits ? static_cast<double>(a.dlogits.bytes()) : 0.0)};
}

void cross_entropy(const CrossEntropyArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.logits.rank() == 2 && a.logits.size(1) > 0 && a.logits.stride[1] == 1,
                  "logits: ", a.logits.shape.str());
    const int64_t tokens = a.logits.size(0);
    MOEBIUS_CHECK(a.targets.rank() == 1 && a.targets.size(0) == tokens && a.targets.dtype == DType::I32 &&
                      a.targets.contiguous(),
                  "targets: ", name(a.targets.dtype), " ", a.targets.shape.str(), " for ", tokens, " rows");
    MOEBIUS_CHECK(a.token_loss.rank() == 1 && a.token_loss.size(0) == tokens && a.token_loss.contiguous(),
                  "token_loss: ", a.token_loss.shape.str(), " for ", tokens, " rows");
    if (a.dlogits) {
        MOEBIUS_CHECK(a.dlogits.shape == a.logits.shape && a.dlogits.stride[1] == 1,
                      "dlogits: ", a.dlogits.shape.str(), " for logits ", a.logits.shape.str());
        MOEBIUS_CHECK(a.dlogits.data != a.logits.data ||
                          (a.dlogits.dtype == a.logits.dtype && a.dlogits.stride[0] == a.logits.stride[0]),
                      "dlogits over logits in another layout");
        MOEBIUS_CHECK(a.grad_scale && a.grad_scale.numel() == 1, "dlogits need a grad_scale");
    }
    MOEBIUS_CHECK(!a.bad || a.bad.numel() == 1, a.bad.shape.str());
    dispatch<CrossEntropyArgs>("cross_entropy", kCrossEntropy, a, exec, cost(a));
}

std::vector<VariantInfo> cross_entropy_variants() {
    return describe<CrossEntropyArgs>(kCrossEntropy);
}

}  // namespace moebius::ops
