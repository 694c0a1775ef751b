// Blackwell's tensor cores and their memory (tcgen05, sm_100a), for blocks that work alone (cta_group::1).
//
// Tensor memory is 128 lanes × 512 columns of 32 bits. A product's row i is lane i, its column j a column.
// Copies and products run asynchronously, those of one thread in the order copy → product and product →
// product of the same sums, no other; commit() reports all that the thread has started to a barrier.
#pragma once

#include <cuda_runtime.h>

#include "moebius/ptx/mbarrier.h"

namespace moebius::ptx {

// One lane of a converged warp, the same in each call.
__device__ __forceinline__ bool elect_lane() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred elected;\n"
        "elect.sync _|elected, 0xFFFFFFFF;\n"
        "selp.u32 %0, 1, 0, elected;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

// By a whole warp, which also frees it. Waits until as many columns (a power of two from 32 on) are free;
// their address goes to shared memory, for who passes a barrier of the block after.
__device__ __forceinline__ void tensor_memory_allocate(uint32_t to, uint32_t columns) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void tensor_memory_free(uint32_t address, uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns)
                 : "memory");
}

// What is tensor memory's before a barrier or arrival is ordered with what is tensor memory's behind the
// other side's.
__device__ __forceinline__ void tensor_fence_before_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tensor_fence_after_sync() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// One thread: 32 rows of 16 bytes to four columns of lanes 0 to 31, and the same to each other 32 lanes.
__device__ __forceinline__ void tensor_copy_scales(uint32_t to, uint64_t from) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
}

// One thread: sums (128, N) = a (128, 32) · b (N, 32)^T, each row's 32 codes times its scale, + (add ? sums :
// 0).
__device__ __forceinline__ void mx_multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction,
                                            uint32_t scale_a, uint32_t scale_b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], "
        "add;\n"
        "}" ::"r"(sums),
        "l"(a), "l"(b), "r"(instruction), "r"(scale_a), "r"(scale_b), "r"(static_cast<int>(add))
        : "memory");
}

// Arrives once at the barrier when all copies and products that this thread has started are done.
__device__ __forceinline__ void tensor_commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
}

// By a whole warp, the w-th of four that begin at a multiple of four: 32 columns of the lanes 32·w …, one
// lane a thread. Not there before tensor_wait_load().
__device__ __forceinline__ void tensor_load(uint32_t from, uint32_t (&words)[32]) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, [%32];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]), "=r"(words[4]), "=r"(words[5]),
          "=r"(words[6]), "=r"(words[7]), "=r"(words[8]), "=r"(words[9]), "=r"(words[10]), "=r"(words[11]),
          "=r"(words[12]), "=r"(words[13]), "=r"(words[14]), "=r"(words[15]), "=r"(words[16]),
          "=r"(words[17]), "=r"(words[18]), "=r"(words[19]), "=r"(words[20]), "=r"(words[21]),
          "=r"(words[22]), "=r"(words[23]), "=r"(words[24]), "=r"(words[25]), "=r"(words[26]),
          "=r"(words[27]), "=r"(words[28]), "=r"(words[29]), "=r"(words[30]), "=r"(words[31])
        : "r"(from)
        : "memory");
}
__device__ __forceinline__ void tensor_wait_load() {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
// After the wait: keeps the compiler from using them before it.
__device__ __forceinline__ void tensor_hold(uint32_t (&words)[32]) {
#pragma unroll
    for (uint32_t& word : words) asm volatile("" : "+r"(word)::"memory");
}

}  // namespace moebius::ptx
