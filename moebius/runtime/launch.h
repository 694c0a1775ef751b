// Launching kernels from .cu files: the one wrapper. It sets the shared memory that a kernel asks for and
// checks the launch; errors of the kernel itself come out where the host next waits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/runtime/exec.h"

namespace moebius {

// Throws DeviceError: "<what>: <CUDA's name and text of the error>".
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* what);
inline void cuda_check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) throw_cuda_error(error, what);
}

inline cudaStream_t cuda_stream(const Exec& exec) {
    return static_cast<cudaStream_t>(exec.stream.handle);
}

struct LaunchShape {
    dim3 grid, block;
    size_t shared_bytes = 0;  // dynamic; above 48 KiB the kernel's limit is raised first
};

// `arguments` convert to the kernel's parameters as in a call. A grid with a zero does nothing.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape, const Exec& exec,
            Arguments&&... arguments) {
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument a parameter of the kernel");
    if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
    if (shape.shared_bytes > 48 * 1024) {
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shape.shared_bytes)),
                   name);
    }
    cudaLaunchConfig_t config{};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = cuda_stream(exec);
    cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

// Blocks of `block` that cover `count` elements.
inline dim3 grid_for(int64_t count, int64_t block) {
    const int64_t blocks = (count + block - 1) / block;
    MOEBIUS_CHECK(blocks <= INT32_MAX, "grid of ", blocks, " blocks");
    return dim3(static_cast<unsigned>(blocks));
}

}  // namespace moebius
