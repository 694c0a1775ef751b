#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"

namespace moebius::cuda_backend {
namespace {

[[noreturn]] void no_cuda() {
    throw DeviceError("this build of Moebius has no CUDA: build it with MOEBIUS_CUDA=ON, or use device=cpu");
}

}  // namespace

void copy(void*, const void*, size_t, Stream) {
    no_cuda();
}
void fill(void*, int, size_t, Stream) {
    no_cuda();
}
void synchronize(Stream) {
    no_cuda();
}

}  // namespace moebius::cuda_backend
