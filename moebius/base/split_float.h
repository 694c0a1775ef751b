// fp32 values held as a bf16 half and a remainder.
#pragma once

#include <bit>
#include <cstdint>

#include "moebius/base/bf16.h"

namespace moebius {

// An fp32 value as a bf16 one and 16 bits: the bf16 is rounded half away from zero (upper 16 bits, plus one
// when bit 15 is set), the remainder is the lower 16 bits. Joining undoes it: every value comes back bit for
// bit, −0 and infinities too. (Rounding to even would lose the value at ties.) Of a NaN only that it is one
// is kept: its bf16 half must be NaN as well.
struct SplitFloat {
    BF16 rounded;
    int16_t remainder;
};
[[gnu::always_inline]] inline SplitFloat split_float(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7FFFFFFFu) > 0x7F800000u)
        return {{static_cast<uint16_t>((word >> 16) | 0x0040u)}, static_cast<int16_t>(word & 0x7FFFu)};
    return {{static_cast<uint16_t>((word + 0x8000u) >> 16)}, static_cast<int16_t>(word & 0xFFFFu)};
}
[[gnu::always_inline]] inline float join_float(SplitFloat parts) {
    const uint32_t low = static_cast<uint16_t>(parts.remainder);
    return std::bit_cast<float>((static_cast<uint32_t>(parts.rounded.bits) << 16) - ((low & 0x8000u) << 1) +
                                low);
}

}  // namespace moebius
