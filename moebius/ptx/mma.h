// Tensor-core products of sm_80: bf16 fragments from shared memory, fp32 sums.
//
// mma m16n8k16, lane l, g = l / 4, t = l % 4:
//   A (16, 16): a0 (g, 2t), a1 (g + 8, 2t), a2 (g, 2t + 8), a3 (g + 8, 2t + 8), each with its right neighbour
//   B (16, 8):  b0 (2t, g), b1 (2t + 8, g), each with its lower neighbour
//   C (16, 8):  c0 c1 (g, 2t …), c2 c3 (g + 8, 2t …)
#pragma once

#include <cuda_runtime.h>

#include "moebius/ptx/matrix.h"

namespace moebius::ptx {

// c += a · b
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace moebius::ptx
