#include "moebius/ops/grouped_gemm/sm90_config.h"

#include <algorithm>

namespace moebius::ops::sm90 {
namespace {

constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kBandBytes = 20 << 20;  // of 50 MiB of L2

}  // namespace

std::string why_no_map(const View& view, const char* name) {
    const int64_t size = bits(view.dtype) / 8;
    if (reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes != 0)
        return std::string(name) + " does not begin at a multiple of 16 bytes";
    for (int axis = 0; axis + 1 < view.rank(); ++axis) {
        const int64_t bytes = view.stride[static_cast<size_t>(axis)] * size;
        if (view.size(axis) > 1 && (bytes % kAlignmentBytes != 0 || bytes < 0 || bytes >= int64_t{1} << 40)) {
            return std::string(name) + "'s axis " + std::to_string(axis) + " has a stride of " +
                   std::to_string(bytes) + " bytes, not a multiple of 16";
        }
        if (view.size(axis) > INT32_MAX)
            return std::string(name) + " has " + std::to_string(view.size(axis)) +
                   " rows, more than 2^31 - 1";
    }
    return {};
}

std::string why_not(const GroupedGemmArgs& args, const Exec&) {
    if (args.bias) return "has no bias";
    if (args.a.dtype != DType::BF16 || args.b.dtype != DType::BF16) {
        return "takes bf16, not " + std::string(name(args.a.dtype)) + " and " +
               std::string(name(args.b.dtype));
    }
    if (args.split_sizes.size(0) > kMostExperts) {
        return "has " + std::to_string(args.split_sizes.size(0)) + " experts, more than " +
               std::to_string(kMostExperts);
    }
    if (args.kind != GemmKind::Wgrad && args.a.size(1) == 0) return "a has no columns";
    for (const auto& [view, name] : {std::pair{&args.a, "a"}, {&args.b, "b"}, {&args.out, "out"}}) {
        const int64_t columns = view->size(view->rank() - 1);
        if (columns % 8 != 0)
            return std::string(name) + " has " + std::to_string(columns) + " columns, not a multiple of 8";
        if (const std::string reason = why_no_map(*view, name); !reason.empty()) return reason;
    }
    return {};
}

int choose_band(int64_t units, int64_t unit_bytes) {
    const int64_t bytes = std::max<int64_t>(1, units * unit_bytes);
    const int64_t bands = std::min(units, (bytes + kBandBytes - 1) / kBandBytes);
    return static_cast<int>((units + bands - 1) / bands);
}

}  // namespace moebius::ops::sm90
