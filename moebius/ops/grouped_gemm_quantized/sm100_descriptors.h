// The descriptors that Blackwell's tensor cores are given (tcgen05, PTX ISA 8.7 on), as plain arithmetic: the
// same functions run in kernels and in tests on the CPU.
//
// Tiles of codes lie in shared memory as TMA writes boxes 128 bytes wide with the 128-byte swizzle, at
// multiples of 1,024 bytes:
//   K-major   rows of 128 codes along K; row r (of M or N) at 128·r bytes.       32 deeper along K: + 32
//   bytes MN-major  boxes of 128 codes along M or N; row k of a box at 128·k bytes,
//             the next 128 of M or N in the next box.                            32 deeper along K: + 4,096
//             bytes
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MOEBIUS_TCGEN05_INLINE __host__ __device__ __forceinline__ constexpr
#else
#define MOEBIUS_TCGEN05_INLINE inline constexpr
#endif

namespace moebius::ops::sm100 {

enum class SharedSwizzle : uint32_t { None = 0, Bytes128 = 2 };

// Bits 0–13 address, 16–29 leading offset, 32–45 stride offset, each / 16; 46–48: always 1; 49–51: 0, tiles
// begin where a swizzle's pattern does; 52: 0, the leading offset is relative; 61–63 swizzle.
MOEBIUS_TCGEN05_INLINE uint64_t shared_descriptor(uint32_t address, uint32_t leading, uint32_t stride,
                                                  SharedSwizzle swizzle) {
    return (static_cast<uint64_t>(swizzle) << 61) | (uint64_t{1} << 46) |
           (static_cast<uint64_t>(stride >> 4) << 32) | (static_cast<uint64_t>(leading >> 4) << 16) |
           ((address & 0x3FFFFu) >> 4);
}
// Stride: from 8 rows to the next 8. The leading offset means nothing here.
MOEBIUS_TCGEN05_INLINE uint64_t k_major_codes(uint32_t address) {
    return shared_descriptor(address, 16, 1024, SharedSwizzle::Bytes128);
}
// Stride: from 8 deep to the next 8. Leading: from a box to the next, `box_bytes` = 128 · its depth.
MOEBIUS_TCGEN05_INLINE uint64_t mn_major_codes(uint32_t address, uint32_t box_bytes) {
    return shared_descriptor(address, box_bytes, 1024, SharedSwizzle::Bytes128);
}
// 32 rows of 16 bytes, one after the other: what a copy of scales reads. Stride: from 8 rows to the next 8.
MOEBIUS_TCGEN05_INLINE uint64_t scale_rows(uint32_t address) {
    return shared_descriptor(address, 0, 128, SharedSwizzle::None);
}
// Of the tile `bytes` further on.
MOEBIUS_TCGEN05_INLINE uint64_t shared_descriptor_at(uint64_t descriptor, uint32_t bytes) {
    return descriptor + (bytes >> 4);
}

// A product of eight-bit floats with E8M0 scales of 32 (kind::mxf8f6f4), dense.
struct MxInstruction {
    bool a_is_e5m2 = false, b_is_e5m2 = false;          // else E4M3
    bool a_is_mn_major = false, b_is_mn_major = false;  // else K-major
    int rows = 128, columns = 256;  // of the product: M = 128; N a multiple of 16, up to 256
};
// Bits 4–5 the place of B's scale (below), 7–9 and 10–12 types of A and B (E4M3 0, E5M2 1), 15 and 16 whether
// A and B are MN-major, 17–22 N / 8, 23 scales are E8M0, 27–28 M / 128, 29–30 the place of A's scale.
MOEBIUS_TCGEN05_INLINE uint32_t mx_instruction(const MxInstruction& i) {
    return (i.a_is_e5m2 ? 1u << 7 : 0u) | (i.b_is_e5m2 ? 1u << 10 : 0u) | (i.a_is_mn_major ? 1u << 15 : 0u) |
           (i.b_is_mn_major ? 1u << 16 : 0u) | (static_cast<uint32_t>(i.columns / 8) << 17) | (1u << 23) |
           (static_cast<uint32_t>(i.rows / 128) << 27);
}
// Of both operands' words of four scales, the byte `place` scales the 32 deep that are multiplied.
MOEBIUS_TCGEN05_INLINE uint32_t mx_instruction_at(uint32_t instruction, int place) {
    return instruction | (static_cast<uint32_t>(place) << 4) | (static_cast<uint32_t>(place) << 29);
}

// Where in tensor memory: the lane in the upper half, the column of 32 bits in the lower.
MOEBIUS_TCGEN05_INLINE uint32_t tensor_memory_at(uint32_t base, int lane, int column) {
    return base + (static_cast<uint32_t>(lane) << 16) + static_cast<uint32_t>(column);
}
inline constexpr int kTensorMemoryColumns = 512, kTensorMemoryLanes = 128;

}  // namespace moebius::ops::sm100
