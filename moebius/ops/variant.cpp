#include "moebius/ops/variant.h"

#include <fmt/format.h>

#include "moebius/base/error.h"

namespace moebius::ops {

const VariantInfo* expected_variant(std::span<const VariantInfo> variants, DeviceKind device, int cc) {
    for (const VariantInfo& variant : variants) {
        if (variant.covers(device, cc) && variant.repeats) return &variant;
    }
    return nullptr;
}

namespace detail {
namespace {

std::string reason_against(const Candidate& candidate, const Exec& exec) {
    const VariantInfo& info = candidate.info;
    const Device& device = *exec.device;
    if (info.kind != device.kind()) return "is for another device";
    if (!info.covers(device.kind(), device.cc())) {
        return fmt::format("needs compute capability {} to {}, this device has {}", info.min_cc, info.max_cc,
                           device.cc());
    }
    if (!info.in_build && !exec.dry) return "is not in this build";
    return candidate.reason;
}

}  // namespace

size_t choose(const char* op, const std::vector<Candidate>& candidates, const Exec& exec, const Cost& cost) {
    const std::string* forced = nullptr;
    if (exec.forced) {
        const auto found = exec.forced->find(op);
        if (found != exec.forced->end()) forced = &found->second;
    }
    std::vector<std::string> passed_over;
    for (size_t index = 0; index < candidates.size(); ++index) {
        const VariantInfo& info = candidates[index].info;
        if (forced && info.name != *forced) continue;
        std::string reason = reason_against(candidates[index], exec);
        if (reason.empty() && !info.repeats && !forced)
            reason = fmt::format("gives other bits in each run: only with kernels.{} = {}", op, info.name);
        if (reason.empty()) {
            if (exec.log) exec.log->record(op, info.name, passed_over, cost);
            return index;
        }
        if (forced) throw Error(fmt::format("kernels.{} = {}: this variant {}", op, *forced, reason));
        if (info.kind == exec.device->kind()) passed_over.push_back(info.name + ": " + reason);
    }
    if (forced) throw Error(fmt::format("kernels.{} = {}: there is no such variant", op, *forced));
    std::string reasons;
    for (const std::string& line : passed_over) reasons += "\n  " + line;
    throw DeviceError(fmt::format("op '{}' has no variant that runs here{}", op, reasons));
}

}  // namespace detail
}  // namespace moebius::ops
