// Where work runs. One Device an accelerator (or the CPU), owned by the program's top and passed down.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <unordered_map>

#include "moebius/runtime/isa.h"

namespace moebius {

enum class DeviceKind { Cpu, Cuda };

class Device {
  public:
    // The CPU at its best instruction set, or at the one that `forced_isa` names ("" = none). Throws Error.
    static Device cpu(std::string_view forced_isa = {});
    // The same, forced by the environment variable MOEBIUS_CPU_ISA where it is set.
    static Device cpu_from_environment();

    DeviceKind kind() const { return kind_; }
    int index() const { return index_; }
    int cc() const { return cc_; }    // compute capability × 10 (90 = Hopper); 0 on the CPU
    Isa isa() const { return isa_; }  // vector instructions of the CPU
    const std::string& description() const { return description_; }

    // One object of a type for the device's life: library handles, algorithm caches. Const, because what is kept
    // there is not part of what a device is.
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
    Isa isa_ = Isa::Baseline;
    std::string description_;
    mutable std::unordered_map<std::type_index, std::shared_ptr<void>> slots_;
};

// An ordered queue of device work. On the CPU there is one, and work is done when the call returns.
struct Stream {
    void* handle = nullptr;
};

}  // namespace moebius
