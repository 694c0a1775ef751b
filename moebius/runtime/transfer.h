// Bytes between host memory and the memory of exec.device, ordered on exec.stream with the ops: what a call
// copies or fills is there for every later op on that stream. On the CPU everything is done when the call
// returns.
//
// On a GPU: copies from and to pinned memory only join the queue, so that the host's side must stay as it is
// until the stream has passed them (Event, synchronize). From pageable memory the source may be reused at
// once; to pageable memory the call waits. A dry exec does nothing. Errors of the device throw DeviceError.
#pragma once

#include <cstddef>

#include "moebius/runtime/exec.h"

namespace moebius {

void copy_to_device(void* to, const void* from, size_t bytes, const Exec& exec);
void copy_to_host(void* to, const void* from, size_t bytes, const Exec& exec);
// Both on the device; the ranges do not overlap.
void copy(void* to, const void* from, size_t bytes, const Exec& exec);

// Every byte becomes `byte`.
void fill_bytes(void* data, int byte, size_t bytes, const Exec& exec);
inline void zero(void* data, size_t bytes, const Exec& exec) {
    fill_bytes(data, 0, bytes, exec);
}

// Waits until all work queued on exec.stream is done; errors of earlier kernels come out here.
void synchronize(const Exec& exec);

}  // namespace moebius
