#include "moebius/ops/rope/rope.h"

#include "moebius/ops/rope/cpu.h"

namespace moebius::ops {
namespace {

constexpr Variant<RopeArgs> kTable[] = {{"cpu", DeviceKind::Cpu, 0, 0, always<RopeArgs>, cpu::rope}};

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
