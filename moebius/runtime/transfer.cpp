#include "moebius/runtime/transfer.h"

#include <cstring>

#include "moebius/runtime/cuda_backend.h"

namespace moebius {
namespace {

bool on_cpu(const Exec& exec) {
    return exec.device->kind() == DeviceKind::Cpu;
}

void copy_bytes(void* to, const void* from, size_t bytes, const Exec& exec) {
    if (exec.dry || bytes == 0) return;
    if (on_cpu(exec)) {
        std::memcpy(to, from, bytes);
    } else {
        cuda_backend::copy(to, from, bytes, exec.stream);
    }
}

}  // namespace

void copy_to_device(void* to, const void* from, size_t bytes, const Exec& exec) {
    copy_bytes(to, from, bytes, exec);
}

void copy_to_host(void* to, const void* from, size_t bytes, const Exec& exec) {
    copy_bytes(to, from, bytes, exec);
}

void copy(void* to, const void* from, size_t bytes, const Exec& exec) {
    copy_bytes(to, from, bytes, exec);
}

void fill_bytes(void* data, int byte, size_t bytes, const Exec& exec) {
    if (exec.dry || bytes == 0) return;
    if (on_cpu(exec)) {
        std::memset(data, byte, bytes);
    } else {
        cuda_backend::fill(data, byte, bytes, exec.stream);
    }
}

void synchronize(const Exec& exec) {
    if (!exec.dry && !on_cpu(exec)) cuda_backend::synchronize(exec.stream);
}

}  // namespace moebius
