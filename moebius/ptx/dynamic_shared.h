// The block's dynamic shared memory, under one name whatever the kernel keeps there.
#pragma once

#include <cuda_runtime.h>

namespace moebius::ptx {

template <class T>
__device__ inline T* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char moebius_dynamic_shared[];
    return reinterpret_cast<T*>(moebius_dynamic_shared);
}

}  // namespace moebius::ptx
