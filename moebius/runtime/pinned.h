// Host memory that a GPU copies from and to without waiting (pinned), as a standard memory resource.
#pragma once

#include <map>
#include <memory_resource>
#include <mutex>
#include <vector>

#include "moebius/runtime/device.h"

namespace moebius {

// Blocks go back to lists by size and to the system at the end only: pinning is slow. Safe from several
// threads. On the CPU device the memory is ordinary. Who gives a block back has waited for the copies that
// use it. Throws DeviceError if nothing can be pinned any more.
class PinnedMemory : public std::pmr::memory_resource {
  public:
    explicit PinnedMemory(const Device& device) : device_(&device) {}
    ~PinnedMemory() override;
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    // Taken from the system so far.
    size_t system_bytes() const;

  private:
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void* data, size_t bytes, size_t alignment) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    const Device* device_;
    mutable std::mutex mutex_;
    std::map<size_t, std::vector<void*>> free_;  // by rounded size
    std::vector<void*> all_;
    size_t system_bytes_ = 0;
};

}  // namespace moebius
