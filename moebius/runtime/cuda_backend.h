// What the room asks of CUDA, in words that need none of its headers. cuda_backend.cpp is compiled in builds
// with CUDA, no_cuda_backend.cpp in the others; there everything here but visible() throws DeviceError.
#pragma once

#include <cstddef>

#include "moebius/runtime/device.h"

namespace moebius::cuda_backend {

// Asynchronous on the stream; the kind of copy follows from the pointers.
void copy(void* to, const void* from, size_t bytes, Stream stream);
void fill(void* data, int byte, size_t bytes, Stream stream);
void synchronize(Stream stream);

}  // namespace moebius::cuda_backend
