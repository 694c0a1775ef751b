// cp.async of sm_80: 16 bytes from global to shared memory without a way through registers.
#pragma once

#include <cuda_runtime.h>

#include "moebius/ptx/mbarrier.h"  // shared_address

namespace moebius::ptx {

// The first `bytes` (0 … 16) of them, zeros after. Both addresses are multiples of 16; `from` isn't read at
// 0.
__device__ inline void cp_async_16(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
// Where the source's alignment forbids it: the 16 bytes from registers.
__device__ inline void store_shared_16(uint32_t to, const uint32_t (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}
__device__ inline void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Until all but the last `kPending` groups of this thread have arrived.
template <int kPending>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace moebius::ptx
