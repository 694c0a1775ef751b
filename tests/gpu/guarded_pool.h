// Scratch memory as hostile as it may be: filled with ones (NaN as a float, −1 as an integer) when it is
// handed out, between guards that are looked at when it comes back.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "moebius/runtime/launch.h"
#include "moebius/runtime/transfer.h"

namespace moebius::gpu_tests {

class GuardedPool : public Pool {
  public:
    GuardedPool(Pool& pool, const Device& device) : pool_(pool), device_(device) {}

    void* allocate(const char* name, size_t bytes, Stream stream) override {
        const Exec exec{.device = &device_, .stream = stream};
        auto* base = static_cast<char*>(pool_.allocate(name, bytes + 2 * kGuard, stream));
        fill_bytes(base, 0xA5, bytes + 2 * kGuard, exec);
        fill_bytes(base + kGuard, 0xFF, bytes, exec);
        live_[base + kGuard] = {name, bytes};
        return base + kGuard;
    }
    void release(void* data, Stream stream) override {
        const Exec exec{.device = &device_, .stream = stream};
        const Block block = live_.at(data);
        live_.erase(data);
        auto* base = static_cast<char*>(data) - kGuard;
        std::vector<unsigned char> guards(2 * kGuard);
        copy_to_host(guards.data(), base, kGuard, exec);
        copy_to_host(guards.data() + kGuard, base + kGuard + block.bytes, kGuard, exec);
        synchronize(exec);
        for (const unsigned char byte : guards) {
            if (byte != 0xA5) damaged_ = block.name;
        }
        pool_.release(base, stream);
    }
    // The scratch that something was written around since the last call; "" for none.
    std::string damaged() {
        std::string name;
        name.swap(damaged_);
        return name;
    }
    size_t live() const { return live_.size(); }

  private:
    static constexpr size_t kGuard = kCudaAlignment;
    struct Block {
        std::string name;
        size_t bytes;
    };
    Pool& pool_;
    const Device& device_;
    std::unordered_map<void*, Block> live_;
    std::string damaged_;
};

// Every block by itself from the system and as it comes, so that compute-sanitizer sees its ends and what
// nobody wrote.
class SeparatePool : public Pool {
  public:
    void* allocate(const char* name, size_t bytes, Stream) override {
        void* data = nullptr;
        cuda_check(cudaMalloc(&data, bytes > 0 ? bytes : 1), name);
        return data;
    }
    void release(void* data, Stream stream) override {
        cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)), "release");
        cuda_check(cudaFree(data), "release");
    }
};

}  // namespace moebius::gpu_tests
