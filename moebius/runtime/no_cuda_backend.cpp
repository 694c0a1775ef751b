#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"

namespace moebius::cuda_backend {
namespace {

// Nothing below can be reached: without a card there is no device, stream, event or graph to call it with.
[[noreturn]] void no_cuda() {
    throw DeviceError("this build of Moebius has no CUDA; device=cpu uses the CPU");
}

}  // namespace

CudaDevices visible() {
    CudaDevices devices;
    devices.why_none = "this build of Moebius has no CUDA";
    return devices;
}

Memory open(int) {
    no_cuda();
}
Memory memory() {
    no_cuda();
}
void make_current(int) {
    no_cuda();
}
std::unique_ptr<SystemMemory> device_memory(int) {
    no_cuda();
}
void* allocate_pinned(size_t) {
    no_cuda();
}
void free_pinned(void*) {}

void copy(void*, const void*, size_t, Stream) {
    no_cuda();
}
void fill(void*, int, size_t, Stream) {
    no_cuda();
}

Stream create_stream() {
    no_cuda();
}
void destroy_stream(Stream) {}
void synchronize(Stream) {
    no_cuda();
}
void* create_event(bool) {
    no_cuda();
}
void destroy_event(void*) {}
void record_event(void*, Stream) {
    no_cuda();
}
void wait_event(void*, Stream) {
    no_cuda();
}
bool event_done(void*) {
    no_cuda();
}
void synchronize_event(void*) {
    no_cuda();
}
double seconds_between(void*, void*) {
    no_cuda();
}

void begin_capture(Stream) {
    no_cuda();
}
void abandon_capture(Stream) {}
void* end_capture(Stream, int64_t&) {
    no_cuda();
}
void launch_graph(void*, Stream) {
    no_cuda();
}
void destroy_graph(void*) {}

void push_range(const char*) {}
void pop_range() {}

}  // namespace moebius::cuda_backend
