// Loads of global memory whose place in the program matters, or that have no spelling in C++.
#pragma once

namespace moebius::ptx {

// 16 bytes of global memory that no kernel writes meanwhile; zeros where not `exists`. Volatile: stays as far
// ahead of its use as it is written.
__device__ __forceinline__ uint4 load_ahead_if(bool exists, const void* address) {
    uint4 value;
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %5, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "mov.b32 %2, 0;\n"
        "mov.b32 %3, 0;\n"
        "@exists ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
        : "l"(address), "r"(static_cast<int>(exists)));
    return value;
}

__device__ __forceinline__ void prefetch_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace moebius::ptx
