// Register budgets, fences, named barriers (sm_90).
#pragma once

namespace moebius::ptx {

// By all warps of a warpgroup. Counts are multiples of 8; the block's sum must fit the SM or it hangs.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Makes this thread's writes to shared memory visible to TMA and wgmma, once a barrier has been passed.
__device__ __forceinline__ void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers 1 … 15 of the block; 0 is __syncthreads'. `threads` counts those that arrive or wait.
__device__ __forceinline__ void named_barrier_wait(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace moebius::ptx
