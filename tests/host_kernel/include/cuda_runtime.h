// As much of CUDA's language as the kernels of tests/host_kernel need, for a host compiler: a block's threads
// are threads, a warp's functions meet at a barrier of the warp's own.
#pragma once

#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}

inline thread_local dim3 threadIdx;
inline dim3 blockIdx, blockDim, gridDim;

namespace host_kernel {

// Where a warp's lanes leave what the others read.
struct Warp {
    std::barrier<> meeting{32};
    uint64_t slots[32];
};
inline std::vector<std::unique_ptr<Warp>> warps;
inline std::unique_ptr<std::barrier<>> block_meeting;

inline int lane() {
    return static_cast<int>(threadIdx.x % 32);
}
// All lanes' values, by f(slots).
template <class F>
auto exchange(uint64_t own, F&& f) {
    Warp& warp = *warps[threadIdx.x / 32];
    warp.slots[lane()] = own;
    warp.meeting.arrive_and_wait();
    const auto result = f(warp.slots);
    warp.meeting.arrive_and_wait();
    return result;
}
template <class T>
T from_lane(T value, int from) {
    return exchange(static_cast<uint64_t>(value),
                    [from](const uint64_t(&slots)[32]) { return static_cast<T>(slots[from]); });
}

}  // namespace host_kernel

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
inline void __syncthreads() {
    host_kernel::block_meeting->arrive_and_wait();
}
inline void __syncwarp() {
    host_kernel::warps[threadIdx.x / 32]->meeting.arrive_and_wait();
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
    return host_kernel::from_lane(value, from);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int step) {
    const int from = host_kernel::lane() - step;
    return host_kernel::from_lane(value, from < 0 ? host_kernel::lane() : from);
}
inline unsigned __ballot_sync(unsigned, bool value) {
    return host_kernel::exchange(value, [](const uint64_t(&slots)[32]) {
        unsigned bits = 0;
        for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(slots[i] != 0) << i;
        return bits;
    });
}
inline bool __any_sync(unsigned mask, bool value) {
    return __ballot_sync(mask, value) != 0;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return host_kernel::exchange(value, [](const uint64_t(&slots)[32]) {
        uint64_t most = 0;
        for (const uint64_t slot : slots) most = slot > most ? slot : most;
        return static_cast<unsigned>(most);
    });
}
inline int __ffs(int bits) {
    return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
template <class T>
T __ldg(const T* from) {
    return *from;
}
inline uint32_t __float_as_uint(float value) {
    return std::bit_cast<uint32_t>(value);
}
inline float __uint_as_float(uint32_t bits) {
    return std::bit_cast<float>(bits);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
