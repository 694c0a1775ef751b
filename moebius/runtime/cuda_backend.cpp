#include "moebius/runtime/cuda_backend.h"

#include <cuda_runtime.h>

#include <string>

#include "moebius/base/error.h"
#include "moebius/runtime/launch.h"

namespace moebius {

void throw_cuda_error(cudaError_t error, const char* what) {
    throw DeviceError(std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) +
                      ")");
}

namespace cuda_backend {
namespace {

cudaStream_t native(Stream stream) {
    return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace

void copy(void* to, const void* from, size_t bytes, Stream stream) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "copy");
}

void fill(void* data, int byte, size_t bytes, Stream stream) {
    cuda_check(cudaMemsetAsync(data, byte, bytes, native(stream)), "fill");
}

void synchronize(Stream stream) {
    cuda_check(cudaStreamSynchronize(native(stream)), "synchronize");
}

}  // namespace cuda_backend
}  // namespace moebius
