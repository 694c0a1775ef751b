// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11). A value depends on (seed, purpose, index) only: there is no generator state to save, and no thread
// count, device or layout can change it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace moebius {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Philox {
  public:
    // `purpose` separates streams: a parameter's global name, "shuffle", "jitter", …
    Philox(uint64_t seed, std::string_view purpose);

    uint64_t bits64(uint64_t index) const;
    double uniform(uint64_t index) const;                  // [0, 1), 53 bits
    uint64_t below(uint64_t index, uint64_t bound) const;  // [0, bound), bound > 0, bias below 2^-64 · bound
    double normal(uint64_t index) const;                   // N(0, 1), Box-Muller
    uint64_t stream() const { return stream_; }  // of the purpose: what kernels need beside the seed

  private:
    std::array<uint32_t, 4> block(uint64_t index) const;

    std::array<uint32_t, 2> key_;
    uint64_t stream_;
};

}  // namespace moebius
