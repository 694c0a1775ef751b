// Tensor copies between global and shared memory (TMA, sm_90). One thread issues a copy for its block;
// coordinates are in elements, innermost first; elements outside the tensor read as zeros and are not
// written.
#pragma once

#include <cuda.h>

#include "moebius/ptx/mbarrier.h"

namespace moebius::ptx {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x,
                                         int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
        "%4}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                                         int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// Stores read shared memory through the async proxy: threads that wrote it fence (fence_async_shared) and
// meet at a barrier before one thread stores. A store belongs to that thread's next group.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, uint32_t from, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(from), "r"(x), "r"(y)
        : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
        "r"(from), "r"(x), "r"(y), "r"(z)
        : "memory");
}
// Adds to what is there instead of replacing it.
__device__ __forceinline__ void tma_add(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(map),
        "r"(from), "r"(x), "r"(y), "r"(z)
        : "memory");
}
__device__ __forceinline__ void tma_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most kPending groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void tma_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace moebius::ptx
