// A card that other programs have filled.
#pragma once

#include <string>

#include "moebius/runtime/device.h"

namespace moebius {

// Why the card is of no use with so many bytes free, and the ways out; "" if it is of use.
std::string why_too_full(const CudaDevice& card, int64_t free_bytes);

}  // namespace moebius
