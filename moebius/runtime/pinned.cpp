#include "moebius/runtime/pinned.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"

namespace moebius {
namespace {

constexpr size_t kPage = 4096;

// A quarter of a power of two apart, so that batches of nearly one size share blocks.
size_t rounded(size_t bytes) {
    bytes = std::max(bytes, kPage);
    const size_t granule = std::max(kPage, std::bit_floor(bytes) / 4);
    return (bytes + granule - 1) / granule * granule;
}

}  // namespace

PinnedMemory::~PinnedMemory() {
    for (void* data : all_) {
        if (device_->kind() == DeviceKind::Cuda) {
            cuda_backend::free_pinned(data);
        } else {
            std::free(data);
        }
    }
}

size_t PinnedMemory::system_bytes() const {
    const std::lock_guard lock(mutex_);
    return system_bytes_;
}

void* PinnedMemory::do_allocate(size_t bytes, size_t alignment) {
    MOEBIUS_CHECK(alignment <= kPage, "alignment ", alignment);
    const size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    auto& blocks = free_[size];
    if (!blocks.empty()) {
        void* data = blocks.back();
        blocks.pop_back();
        return data;
    }
    const bool on_gpu = device_->kind() == DeviceKind::Cuda;
    if (on_gpu) device_->make_current();  // the loader's threads come here too
    void* data = on_gpu ? cuda_backend::allocate_pinned(size) : std::aligned_alloc(kPage, size);
    if (data == nullptr) {
        throw DeviceError("out of pinned host memory: " + std::to_string(bytes) + " bytes asked for, " +
                          std::to_string(system_bytes_) + " are pinned");
    }
    all_.push_back(data);
    system_bytes_ += size;
    return data;
}

void PinnedMemory::do_deallocate(void* data, size_t bytes, size_t) {
    const std::lock_guard lock(mutex_);
    free_[rounded(bytes)].push_back(data);
}

}  // namespace moebius
