// Where work runs. One Device an accelerator (or the CPU), owned by the program's top and passed down.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "moebius/runtime/isa.h"

namespace moebius {

enum class DeviceKind { Cpu, Cuda };

// A card as the driver shows it.
struct CudaDevice {
    int index = 0;
    std::string name;
    int cc = 0;  // compute capability × 10
    int64_t memory_bytes = 0, l2_bytes = 0;
    int sm_count = 0;
    std::string why_not;  // why Moebius can't use it, with values; "" = it can
};

struct CudaDevices {
    std::vector<CudaDevice> all;
    std::string why_none;                         // where `all` is empty: the reason
    bool unusable = false;                        // there is a card, but the driver or the build can't use it
    int driver_version = 0, runtime_version = 0;  // CUDA's, 13000 = 13.0; 0 = none

    // What `device=auto` asks: the first card that can be used, -1 if there is none.
    int first_usable() const;
};

// Asks the driver; any error means no devices, with the reason. Never throws.
CudaDevices visible_cuda_devices() noexcept;

class Device {
  public:
    // The CPU at its best instruction set, or at the one that `forced_isa` names ("" = none). Throws Error.
    static Device cpu(std::string_view forced_isa = {});
    // The same, forced by the environment variable MOEBIUS_CPU_ISA where it is set.
    static Device cpu_from_environment();
    // Card `index` of visible_cuda_devices(), its context made and current on this thread. Throws
    // DeviceError: no such card, no driver or one older than the toolkit, a card too old, a card that others
    // have filled.
    static Device cuda(int index = 0);

    // For a further thread that works with this device.
    void make_current() const;

    DeviceKind kind() const { return kind_; }
    int index() const { return index_; }
    int cc() const { return cc_; }  // compute capability × 10 (90 = Hopper); 0 on the CPU
    // Of a card; 0 on the CPU.
    int sm_count() const { return sm_count_; }
    int64_t memory_bytes() const { return memory_bytes_; }
    int64_t l2_bytes() const { return l2_bytes_; }
    Isa isa() const { return isa_; }  // vector instructions of the CPU
    const std::string& description() const { return description_; }

    // One object of a type for the device's life: library handles, algorithm caches. Const, because what is
    // kept there is not part of what a device is.
    template <class T>
    T& slot() const {
        auto& held = slots_[std::type_index(typeid(T))];
        if (!held) held = std::make_shared<T>();
        return *static_cast<T*>(held.get());
    }

  private:
    DeviceKind kind_ = DeviceKind::Cpu;
    int index_ = 0;
    int cc_ = 0;
    int sm_count_ = 0;
    int64_t memory_bytes_ = 0, l2_bytes_ = 0;
    Isa isa_ = Isa::Baseline;
    std::string description_;
    mutable std::unordered_map<std::type_index, std::shared_ptr<void>> slots_;
};

// An ordered queue of device work, borrowed (runtime/stream.h has the owner). On the CPU there is one, and
// work is done when the call returns.
struct Stream {
    void* handle = nullptr;
};

}  // namespace moebius
