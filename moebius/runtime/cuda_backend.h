// What the room asks of CUDA, in words that need none of its headers. cuda_backend.cpp and cuda_memory.cpp
// are compiled in builds with CUDA, no_cuda_backend.cpp in the others; there all but visible() and the
// profiler's ranges throw. Errors throw DeviceError; what destructors call ignores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "moebius/runtime/device.h"
#include "moebius/runtime/pool.h"

namespace moebius::cuda_backend {

CudaDevices visible();

struct Memory {
    int64_t free = 0, total = 0;
};
// Makes the card's context and makes it current. A card too full for a context has nothing free.
Memory open(int index);
Memory memory();
void make_current(int index);
std::unique_ptr<SystemMemory> device_memory(int index);
void* allocate_pinned(size_t bytes);  // null: there is no more
void free_pinned(void* data);

// Asynchronous on the stream; the kind of copy follows from the pointers.
void copy(void* to, const void* from, size_t bytes, Stream stream);
void fill(void* data, int byte, size_t bytes, Stream stream);

Stream create_stream();
void destroy_stream(Stream stream);
void synchronize(Stream stream);
void* create_event(bool timed);
void destroy_event(void* event);
void record_event(void* event, Stream stream);
void wait_event(void* event, Stream stream);
bool event_done(void* event);
void synchronize_event(void* event);
double seconds_between(void* first, void* second);

void begin_capture(Stream stream);
void abandon_capture(Stream stream);
void* end_capture(Stream stream, int64_t& nodes);  // what launch_graph takes
void launch_graph(void* graph, Stream stream);
void destroy_graph(void* graph);

void push_range(const char* name);
void pop_range();

}  // namespace moebius::cuda_backend
