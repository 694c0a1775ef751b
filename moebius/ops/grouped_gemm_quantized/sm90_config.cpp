#include <utility>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"

namespace moebius::ops::sm90 {
namespace {

// MX operands lie untransposed: of Forward both along the depth, of Dgrad b across it, of Wgrad both.
std::string why_not_mx(const GroupedGemmQuantizedArgs& args) {
    for (const auto& [operand, name] : {std::pair{&args.a, "a"}, {&args.b, "b"}}) {
        const int64_t columns = operand->data.size(operand->data.rank() - 1);
        if (columns % 16 != 0)
            return std::string(name) + " has " + std::to_string(columns) + " columns, not a multiple of 16";
    }
    const bool wgrad = args.kind == GemmKind::Wgrad, forward = args.kind == GemmKind::Forward;
    if (wgrad) {
        if (const std::string reason = why_no_map(args.a.scale, "a's scale"); !reason.empty()) return reason;
    }
    return forward ? std::string() : why_no_map(args.b.scale, "b's scale");
}

std::string why_not_transposed(const GroupedGemmQuantizedArgs& args) {
    const int64_t depth = args.a.data.size(1);
    if (depth % 16 != 0) return "sums over " + std::to_string(depth) + " numbers, not a multiple of 16";
    if (args.a.format.scale != ScaleKind::Block128) return {};
    if (const std::string reason = why_no_map(args.a.scale, "a's scale"); !reason.empty()) return reason;
    return args.kind == GemmKind::Wgrad ? why_no_map(args.b.scale, "b's scale") : std::string();
}

}  // namespace

std::string why_not(const GroupedGemmQuantizedArgs& args, const Exec&) {
    const bool wgrad = args.kind == GemmKind::Wgrad, mx = args.a.format.scale == ScaleKind::MX32;
    if (args.b.data.dtype != DType::F8E4M3)
        return "takes b in " + std::string(name(DType::F8E4M3)) + ", not " +
               std::string(name(args.b.data.dtype));
    if (args.beta != 0 && !wgrad) return "adds to what is there in wgrad only";
    const int64_t experts = args.split_sizes.size(0), columns = args.out.size(args.out.rank() - 1);
    if (experts > kMostExperts)
        return "has " + std::to_string(experts) + " experts, more than " + std::to_string(kMostExperts);
    if (args.a.data.size(1) == 0 && !wgrad) return "a has no columns";
    if (columns % 8 != 0) return "out has " + std::to_string(columns) + " columns, not a multiple of 8";
    if (const std::string reason = mx ? why_not_mx(args) : why_not_transposed(args); !reason.empty())
        return reason;
    for (const auto& [view, name] : {std::pair{&args.a.data, "a"}, {&args.b.data, "b"}, {&args.out, "out"}}) {
        if (const std::string reason = why_no_map(*view, name); !reason.empty()) return reason;
    }
    return {};
}

}  // namespace moebius::ops::sm90
