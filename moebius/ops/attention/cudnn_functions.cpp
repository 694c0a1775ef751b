// Definitions of cuDNN's own functions that pass each call on to the library. Hidden, so that the library's
// parts, which call one another by the same names, never find these.
#pragma GCC visibility push(hidden)
#include <cudnn.h>
#include <nvrtc.h>
#pragma GCC visibility pop

#include "moebius/ops/attention/cudnn_functions.h"
#include "moebius/runtime/dynamic_library.h"

namespace moebius::ops::cudnn {
namespace {

const DynamicLibrary& library() {
    static const DynamicLibrary opened({"libcudnn.so.9"});
    return opened;
}

template <class F>
F function(const char* name) {
    return library().function<F>(name);
}

}  // namespace

const std::string& library_error() {
    static const std::string error =
        library() ? std::string() : "needs cuDNN 9, which cannot be opened: " + library().error();
    return error;
}

}  // namespace moebius::ops::cudnn

// Passes the call on; without the library, or where it is too old for the function, `absent` is returned.
#define MOEBIUS_PASS_ON(name, absent, ...)                                             \
    static const auto pointer = moebius::ops::cudnn::function<decltype(&name)>(#name); \
    return pointer == nullptr ? absent : pointer(__VA_ARGS__)

extern "C" {

size_t cudnnGetVersion() {
    MOEBIUS_PASS_ON(cudnnGetVersion, 0);
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
    MOEBIUS_PASS_ON(cudnnGetErrorString, "cuDNN is absent", status);
}
void cudnnGetLastErrorString(char* message, size_t size) {
    static const auto pointer =
        moebius::ops::cudnn::function<decltype(&cudnnGetLastErrorString)>("cudnnGetLastErrorString");
    if (pointer != nullptr) {
        pointer(message, size);
    } else if (size > 0) {
        message[0] = '\0';
    }
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    MOEBIUS_PASS_ON(cudnnCreate, CUDNN_STATUS_NOT_INITIALIZED, handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    MOEBIUS_PASS_ON(cudnnDestroy, CUDNN_STATUS_NOT_INITIALIZED, handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    MOEBIUS_PASS_ON(cudnnSetStream, CUDNN_STATUS_NOT_INITIALIZED, handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
    MOEBIUS_PASS_ON(cudnnGetStream, CUDNN_STATUS_NOT_INITIALIZED, handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
    MOEBIUS_PASS_ON(cudnnBackendCreateDescriptor, CUDNN_STATUS_NOT_INITIALIZED, type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    MOEBIUS_PASS_ON(cudnnBackendDestroyDescriptor, CUDNN_STATUS_NOT_INITIALIZED, descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    MOEBIUS_PASS_ON(cudnnBackendFinalize, CUDNN_STATUS_NOT_INITIALIZED, descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
    MOEBIUS_PASS_ON(cudnnBackendSetAttribute, CUDNN_STATUS_NOT_INITIALIZED, descriptor, name, type, count,
                    elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t asked, int64_t* count, void* elements) {
    MOEBIUS_PASS_ON(cudnnBackendGetAttribute, CUDNN_STATUS_NOT_INITIALIZED, descriptor, name, type, asked,
                    count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    MOEBIUS_PASS_ON(cudnnBackendExecute, CUDNN_STATUS_NOT_INITIALIZED, handle, plan, pack);
}

// The frontend has an engine of its own, for norms on other cards, that compiles its kernel: it never runs
// here.
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*,
                               const char* const*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) {
    return NVRTC_ERROR_INTERNAL_ERROR;
}

}  // extern "C"
