// Eight-bit floats to pairs of bf16, times powers of two (sm_90). Exact but where bf16 itself overflows or is
// subnormal: there the product is rounded once, to nearest even. NaN and infinities stay what they are.
#pragma once

#include "moebius/ptx/matrix.h"
#include "moebius/ptx/wgmma_fp8.h"

namespace moebius::ptx {

// The lower two bytes; the first goes to the lower half. By way of fp16 and fp32: no conversion leads
// straight from eight bits to bf16, and shifts would lose NaN.
template <Codes kCodes>
__device__ __forceinline__ uint32_t widen_pair(uint16_t codes) {
    uint32_t pair;
    if constexpr (kCodes == Codes::E4M3) {
        asm("{\n"
            ".reg .b32 both;\n"
            ".reg .b16 low, high;\n"
            ".reg .f32 a, b;\n"
            "cvt.rn.f16x2.e4m3x2 both, %1;\n"
            "mov.b32 {low, high}, both;\n"
            "cvt.f32.f16 a, low;\n"
            "cvt.f32.f16 b, high;\n"
            "cvt.rn.bf16x2.f32 %0, b, a;\n"
            "}"
            : "=r"(pair)
            : "h"(codes));
    } else {
        asm("{\n"
            ".reg .b32 both;\n"
            ".reg .b16 low, high;\n"
            ".reg .f32 a, b;\n"
            "cvt.rn.f16x2.e5m2x2 both, %1;\n"
            "mov.b32 {low, high}, both;\n"
            "cvt.f32.f16 a, low;\n"
            "cvt.f32.f16 b, high;\n"
            "cvt.rn.bf16x2.f32 %0, b, a;\n"
            "}"
            : "=r"(pair)
            : "h"(codes));
    }
    return pair;
}

// Four codes times two pairs of factors.
template <Codes kCodes>
__device__ __forceinline__ void widen(uint32_t codes, uint32_t low_factors, uint32_t high_factors,
                                      uint32_t& low, uint32_t& high) {
    low = multiply_bf16(widen_pair<kCodes>(static_cast<uint16_t>(codes)), low_factors);
    high = multiply_bf16(widen_pair<kCodes>(static_cast<uint16_t>(codes >> 16)), high_factors);
}

// The power of two of one E8M0 code, in both halves. The code is bf16's exponent; 0 is the subnormal 2^−127,
// 255 NaN.
__device__ __forceinline__ uint32_t e8m0_pair(uint32_t code) {
    const uint32_t pair = max(code * 0x00800080u, 0x00400040u);
    return code == 255 ? 0x7FC07FC0u : pair;
}
// Those of four codes.
__device__ __forceinline__ void e8m0_pairs(uint32_t codes, uint32_t& low, uint32_t& high) {
    const auto powers = [](uint32_t halves) {
        const uint32_t pair = __vmaxu2(halves << 7, 0x00400040u);
        return pair | ((pair + 0x00800080u) >> 9 & 0x00400040u);
    };
    low = powers(__byte_perm(codes, 0, 0x4140));
    high = powers(__byte_perm(codes, 0, 0x4342));
}

}  // namespace moebius::ptx
