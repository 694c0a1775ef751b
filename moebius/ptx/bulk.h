// Copies of contiguous bytes from shared to global memory, and flags between blocks that put them in order
// (sm_90). Addresses and sizes are multiples of 16 bytes.
#pragma once

#include <cuda_runtime.h>

namespace moebius::ptx {

// Like tma_store: the threads that wrote shared memory fence first; part of this thread's next group.
__device__ __forceinline__ void bulk_store(float* to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
// Adds to the floats that are there.
__device__ __forceinline__ void bulk_add(float* to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
// Until all groups of this thread have written global memory.
__device__ __forceinline__ void bulk_wait_written() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// After bulk_wait_written(): whoever awaits the flag sees what was copied, in his own bulk copies too.
__device__ __forceinline__ void flag_release(uint32_t* flag, uint32_t value) {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value)
                 : "memory");
}
// Makes this thread's writes to global memory visible to copies by TMA, once a flag has been passed.
__device__ __forceinline__ void fence_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
// After fence_async_global() by each thread that wrote, and a barrier of these.
__device__ __forceinline__ void flag_add(uint32_t* flag, uint32_t more = 1) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(flag), "r"(more) : "memory");
}
// Until the flag has that value.
__device__ __forceinline__ void flag_await(const uint32_t* flag, uint32_t value) {
    uint32_t now = 0;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(flag) : "memory");
    } while (now != value);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace moebius::ptx
