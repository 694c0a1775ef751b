#include <utility>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm_quantized/sm100.h"

namespace moebius::ops::sm100 {

std::string why_not(const GroupedGemmQuantizedArgs& args, const Exec&) {
    if (args.a.format.scale != ScaleKind::MX32)
        return "takes " + std::string(name(ScaleKind::MX32)) + " scales, not " +
               std::string(name(args.a.format.scale));
    const int64_t experts = args.split_sizes.size(0), columns = args.out.size(args.out.rank() - 1);
    if (experts > sm90::kMostExperts)
        return "has " + std::to_string(experts) + " experts, more than " + std::to_string(sm90::kMostExperts);
    if (args.a.data.size(1) == 0 && args.kind != GemmKind::Wgrad) return "a has no columns";
    // TMA reads rows of codes, and rows of results are written 16 bytes at a time.
    for (const auto& [operand, name] : {std::pair{&args.a, "a"}, {&args.b, "b"}}) {
        const int64_t codes = operand->data.size(operand->data.rank() - 1);
        if (codes % 16 != 0)
            return std::string(name) + " has " + std::to_string(codes) + " columns, not a multiple of 16";
    }
    if (columns % 8 != 0) return "out has " + std::to_string(columns) + " columns, not a multiple of 8";
    for (const auto& [view, name] : {std::pair{&args.a.data, "a"}, {&args.b.data, "b"}, {&args.out, "out"}}) {
        if (const std::string reason = sm90::why_no_map(*view, name); !reason.empty()) return reason;
    }
    return {};
}

}  // namespace moebius::ops::sm100
