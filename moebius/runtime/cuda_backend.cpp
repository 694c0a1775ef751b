#include "moebius/runtime/cuda_backend.h"

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <filesystem>
#include <string>

#include "moebius/base/error.h"
#include "moebius/runtime/launch.h"

namespace moebius {

void throw_cuda_error(cudaError_t error, const char* what) {
    // Clears an error that is not sticky, or the next call that looks would report it again.
    (void)cudaGetLastError();
    throw DeviceError(std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) +
                      ")");
}

namespace cuda_backend {
namespace {

cudaStream_t native(Stream stream) {
    return static_cast<cudaStream_t>(stream.handle);
}
cudaEvent_t native(void* event) {
    return static_cast<cudaEvent_t>(event);
}

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The kernel driver's files of cards, there even where the driver's library is not.
bool card_files() {
    std::error_code ignored;
    return std::filesystem::exists("/dev/nvidia0", ignored);
}

std::string why_no_devices(cudaError_t error, CudaDevices& devices) {
    if (error == cudaErrorInsufficientDriver && devices.driver_version > 0) {
        devices.unusable = true;
        return "the NVIDIA driver here supports CUDA " + version_text(devices.driver_version) +
               ", this program needs a driver for CUDA " + version_text(devices.runtime_version) +
               " or later";
    }
    devices.unusable = error != cudaErrorNoDevice && card_files();
    const std::string detail = std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
    if (devices.unusable) return "there is a GPU (/dev/nvidia0) that can't be used: " + detail;
    if (error == cudaErrorNoDevice) return "no GPU is visible (" + detail + ")";
    return "no NVIDIA driver is loaded (" + detail + ")";
}

}  // namespace

CudaDevices visible() {
    CudaDevices devices;
    if (cudaDriverGetVersion(&devices.driver_version) != cudaSuccess) devices.driver_version = 0;
    if (cudaRuntimeGetVersion(&devices.runtime_version) != cudaSuccess) devices.runtime_version = 0;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        devices.why_none = why_no_devices(error, devices);
        return devices;
    }
    for (int index = 0; index < count; ++index) {
        cudaDeviceProp properties{};
        cuda_check(cudaGetDeviceProperties(&properties, index), "properties of the GPU");
        devices.all.push_back({.index = index,
                               .name = properties.name,
                               .cc = properties.major * 10 + properties.minor,
                               .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                               .l2_bytes = properties.l2CacheSize,
                               .sm_count = properties.multiProcessorCount});
    }
    return devices;
}

Memory open(int index) {
    cudaError_t error = cudaSetDevice(index);
    size_t free = 0, total = 0;
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return {};
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        throw DeviceError("GPU " + std::to_string(index) + " can't be used: " + cudaGetErrorName(error) +
                          " (" + cudaGetErrorString(error) + "); device=cpu uses the CPU");
    }
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

Memory memory() {
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "memory of the GPU");
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

void make_current(int index) {
    cuda_check(cudaSetDevice(index), "make the GPU current");
}

void* allocate_pinned(size_t bytes) {
    void* data = nullptr;
    const cudaError_t error = cudaMallocHost(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return nullptr;
    }
    cuda_check(error, "pinned memory");
    return data;
}

void free_pinned(void* data) {
    (void)cudaFreeHost(data);
}

void copy(void* to, const void* from, size_t bytes, Stream stream) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "copy");
}

void fill(void* data, int byte, size_t bytes, Stream stream) {
    cuda_check(cudaMemsetAsync(data, byte, bytes, native(stream)), "fill");
}

Stream create_stream() {
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    return {stream};
}

void destroy_stream(Stream stream) {
    (void)cudaStreamDestroy(native(stream));
}

void synchronize(Stream stream) {
    cuda_check(cudaStreamSynchronize(native(stream)), "wait for the GPU");
}

void* create_event(bool timed) {
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
               "create an event");
    return event;
}

void destroy_event(void* event) {
    (void)cudaEventDestroy(native(event));
}

void record_event(void* event, Stream stream) {
    cuda_check(cudaEventRecord(native(event), native(stream)), "record an event");
}

void wait_event(void* event, Stream stream) {
    cuda_check(cudaStreamWaitEvent(native(stream), native(event), 0), "wait for an event");
}

bool event_done(void* event) {
    const cudaError_t error = cudaEventQuery(native(event));
    if (error == cudaErrorNotReady) return false;
    cuda_check(error, "ask an event");
    return true;
}

void synchronize_event(void* event) {
    cuda_check(cudaEventSynchronize(native(event)), "wait for the GPU");
}

double seconds_between(void* first, void* second) {
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, native(first), native(second)), "time between events");
    return static_cast<double>(milliseconds) * 1e-3;
}

void begin_capture(Stream stream) {
    // Relaxed: the pool may have to take memory from the system while it is captured; what the graph's own
    // thread does is ours to get right.
    cuda_check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeRelaxed),
               "begin the capture of a graph");
}

void abandon_capture(Stream stream) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(native(stream), &graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}

void* end_capture(Stream stream, int64_t& nodes) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamEndCapture(native(stream), &graph), "end the capture of a graph");
    size_t count = 0;
    cudaGraphExec_t executable = nullptr;
    cudaError_t error = cudaGraphGetNodes(graph, nullptr, &count);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
    (void)cudaGraphDestroy(graph);
    cuda_check(error, "instantiate a graph");
    nodes = static_cast<int64_t>(count);
    return executable;
}

void launch_graph(void* graph, Stream stream) {
    cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)), "launch a graph");
}

void destroy_graph(void* graph) {
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

void push_range(const char* name) {
    nvtxRangePushA(name);
}

void pop_range() {
    nvtxRangePop();
}

}  // namespace cuda_backend
}  // namespace moebius
