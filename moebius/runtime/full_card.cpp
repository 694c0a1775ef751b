#include "moebius/runtime/full_card.h"

#include <fmt/format.h>

namespace moebius {

std::string why_too_full(const CudaDevice& card, int64_t free_bytes) {
    constexpr int64_t kLeastFreeBytes = int64_t{256} << 20;
    constexpr double kGiB = 1 << 30;
    if (free_bytes >= kLeastFreeBytes) return "";
    return fmt::format(
        "GPU {} ({}) is full: other programs have left {:.2f} of its {:.1f} GiB; choose another by "
        "CUDA_VISIBLE_DEVICES, or use device=cpu",
        card.index, card.name, static_cast<double>(free_bytes) / kGiB,
        static_cast<double>(card.memory_bytes) / kGiB);
}

}  // namespace moebius
