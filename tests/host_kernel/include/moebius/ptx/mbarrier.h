// In the place of moebius/ptx/mbarrier.h: the same functions on the model (tests/host_kernel/engines.h).
#pragma once

#include <cuda_runtime.h>

#include "tests/host_kernel/engines.h"

namespace moebius::ptx {

inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - host_kernel::engines().shared);
}
inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
    host_kernel::engines().init(barrier, arrivals);
}
inline void fence_barrier_init() {}
inline void barrier_arrive(uint32_t barrier) {
    host_kernel::engines().arrive(barrier, 0);
}
inline void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    host_kernel::engines().arrive(barrier, bytes);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    host_kernel::engines().wait(barrier, parity);
}

}  // namespace moebius::ptx
