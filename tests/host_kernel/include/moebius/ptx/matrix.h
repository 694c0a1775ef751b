#pragma once

#include <cuda_bf16.h>

#include "moebius/base/bf16.h"
#include "moebius/ptx/mbarrier.h"

namespace moebius::ptx {

inline void store_shared(uint32_t address, uint4 value) {
    std::memcpy(host_kernel::engines().shared + address, &value, sizeof value);
}
inline uint4 load_shared(uint32_t address) {
    uint4 value;
    std::memcpy(&value, host_kernel::engines().shared + address, sizeof value);
    return value;
}
inline uint32_t load_shared_word(uint32_t address) {
    uint32_t word;
    std::memcpy(&word, host_kernel::engines().shared + address, sizeof word);
    return word;
}
inline uint32_t pack_bf16(float low, float high) {
    return static_cast<uint32_t>(to_bf16(low).bits) | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
inline float low_bf16(uint32_t pair) {
    return std::bit_cast<float>(pair << 16);
}
inline float high_bf16(uint32_t pair) {
    return std::bit_cast<float>(pair & 0xFFFF0000u);
}

}  // namespace moebius::ptx
