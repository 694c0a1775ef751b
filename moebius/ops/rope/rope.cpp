#include "moebius/ops/rope/rope.h"

#include <fmt/format.h>

#include "moebius/ops/rope/cpu.h"
#include "moebius/ops/rope/cuda.h"

namespace moebius::ops {
namespace {

std::string why_not_cuda(const RopeArgs& args, const Exec&) {
    const int64_t most = 2 * cuda::kMostPairs, head_dim = args.x.size(2);
    return head_dim <= most ? "" : fmt::format("takes heads of up to {} dimensions, not {}", most, head_dim);
}

constexpr Variant<RopeArgs> kTable[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, why_not_cuda, MOEBIUS_CUDA(cuda::rope)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<RopeArgs>, cpu::rope}};

}  // namespace

Cost cost(const RopeArgs& a) {
    // Four products and two sums a pair.
    return {3.0 * static_cast<double>(a.x.numel()),
            static_cast<double>(a.x.bytes() + a.out.bytes() + a.positions.bytes())};
}

void rope(const RopeArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.rank() == 3 && a.out.shape == a.x.shape && a.out.dtype == a.x.dtype, a.x.shape.str(),
                  " → ", a.out.shape.str());
    MOEBIUS_CHECK(a.x.size(2) > 0 && a.x.size(2) % 2 == 0, "head_dim ", a.x.size(2), " must be even");
    MOEBIUS_CHECK(a.x.stride[2] == 1 && a.out.stride[2] == 1, "a head's elements must be neighbours");
    MOEBIUS_CHECK(a.positions.dtype == DType::I32 && a.positions.rank() == 1 && a.positions.contiguous() &&
                      a.positions.size(0) == a.x.size(0),
                  "positions ", a.positions.shape.str());
    MOEBIUS_CHECK(a.theta > 0, "theta ", a.theta);
    dispatch<RopeArgs>("rope", kTable, a, exec, cost(a));
}

std::vector<VariantInfo> rope_variants() {
    return describe<RopeArgs>(kTable);
}

}  // namespace moebius::ops
