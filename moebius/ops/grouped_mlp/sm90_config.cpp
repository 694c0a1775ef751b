#include "moebius/ops/grouped_mlp/sm90_config.h"

#include "moebius/ops/grouped_gemm/sm90_config.h"

namespace moebius::ops::sm90 {
namespace {

// `rows` (M, H) goes through `weight`; what is beside the weights of the same kind in both directions.
std::string why_not(const GluOptions& options, const View& rows, const View& weight, const View& c,
                    int64_t intermediate) {
    if (rows.dtype != DType::BF16) return "takes bf16, not " + std::string(name(rows.dtype));
    if (options.interleave != 0)
        return "takes gates first, then ups, not glu_interleave_size = " + std::to_string(options.interleave);
    if (weight.size(0) > kMostExperts)
        return "has " + std::to_string(weight.size(0)) + " experts, more than " +
               std::to_string(kMostExperts);
    if (rows.size(1) == 0 || rows.size(1) % 8 != 0)
        return "hidden size " + std::to_string(rows.size(1)) + " is not a multiple of 8";
    if (intermediate % 8 != 0)
        return "intermediate size " + std::to_string(intermediate) + " is not a multiple of 8";
    if (std::string reason = why_no_map(rows, "x or dy"); !reason.empty()) return reason;
    if (std::string reason = why_no_map(weight, "the weight"); !reason.empty()) return reason;
    return c ? why_no_map(c, "c") : std::string();
}

}  // namespace

std::string why_not_mlp(const GroupedMlpArgs& args, const Exec&) {
    return why_not(args.options, args.x, args.gate_up, args.c, args.down.size(2));
}
std::string why_not_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec&) {
    return why_not(args.options, args.dy, args.down, args.c, args.down.size(2));
}

}  // namespace moebius::ops::sm90
