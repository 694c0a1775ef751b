#include <utility>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"

namespace moebius::ops::sm90 {

std::string why_not(const GroupedGemmQuantizedArgs& args, const Exec&) {
    const bool wgrad = args.kind == GemmKind::Wgrad;
    if (args.a.format.scale != ScaleKind::Block128 && args.a.format.scale != ScaleKind::Tensor) {
        return "takes scales of kind " + std::string(name(ScaleKind::Tensor)) + " and " +
               std::string(name(ScaleKind::Block128)) + ", not " + std::string(name(args.a.format.scale));
    }
    if (args.b.data.dtype != DType::F8E4M3)
        return "takes b in " + std::string(name(DType::F8E4M3)) + ", not " +
               std::string(name(args.b.data.dtype));
    if (args.beta != 0 && !(wgrad && args.out.dtype == DType::F32)) return "adds to f32 of wgrad only";
    const int64_t experts = args.split_sizes.size(0), columns = args.out.size(args.out.rank() - 1);
    if (experts > kMostExperts)
        return "has " + std::to_string(experts) + " experts, more than " + std::to_string(kMostExperts);
    const int64_t depth = args.a.data.size(1);
    if (depth == 0 && !wgrad) return "a has no columns";
    if (depth % 16 != 0) return "sums over " + std::to_string(depth) + " numbers, not a multiple of 16";
    if (columns % 8 != 0) return "out has " + std::to_string(columns) + " columns, not a multiple of 8";
    for (const auto& [view, name] : {std::pair{&args.a.data, "a"}, {&args.b.data, "b"}, {&args.out, "out"}}) {
        if (const std::string reason = why_no_map(*view, name); !reason.empty()) return reason;
    }
    if (args.a.format.scale != ScaleKind::Block128) return {};
    if (const std::string reason = why_no_map(args.a.scale, "a's scale"); !reason.empty()) return reason;
    return wgrad ? why_no_map(args.b.scale, "b's scale") : std::string();
}

}  // namespace moebius::ops::sm90
