// What a run computes on: the device, its stream and memory, the CPU's threads. The program's top owns it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "moebius/base/dtype.h"
#include "moebius/runtime/exec.h"
#include "moebius/runtime/pinned.h"
#include "moebius/runtime/stream.h"

namespace moebius::train {

// What a run computes on.
struct DeviceChoice {
    int gpu = -1;         // its index; −1: the CPU
    std::string why_cpu;  // where auto took the CPU
};
// `wanted`: auto, cpu or cuda. auto takes the first GPU that can be used, and the CPU only where none is
// visible. `free_bytes` gives what is free on the GPU that is taken, and is asked of no other. Throws
// DeviceError, which names device=cpu, for cuda without a GPU, for GPUs that are visible but cannot be used,
// and for one that is full.
DeviceChoice choose_device(const std::string& wanted, const CudaDevices& found,
                           const std::function<int64_t(int gpu)>& free_bytes);

class Machine {
  public:
    // `device` as choose_device has it, of the devices that are here.
    Machine(const std::string& device, int threads);

    // `forced` outlives what it is given to.
    Exec exec(const ForcedVariants* forced = nullptr);
    const Device& device() const { return device_; }
    bool on_gpu() const { return device_.kind() == DeviceKind::Cuda; }
    int threads() const { return threads_.size(); }
    // What copies go from and to; pinned where the device is a GPU.
    std::pmr::memory_resource& host_memory() { return host_memory_; }
    PoolReport memory() const { return arena_->report(); }
    // "device: cpu (AMD EPYC, avx512), 16 threads", and why no GPU where auto took the CPU.
    std::string line() const;

  private:
    std::string why_cpu_;  // where auto took the CPU
    Device device_;
    OwnedStream stream_;
    PinnedMemory host_memory_;
    std::unique_ptr<Arena> arena_;
    ThreadPool threads_;
};

// FLOP/s of the device's matrix units in that type (F8E4M3: where it has none, in bf16), from its data
// sheet; 0: not known.
double peak_flops(const Device& device, DType dtype);

// The NVIDIA kernel driver's version, "580.65.06"; "" where there is none.
std::string driver_version();
std::string cuda_version_text(int version);  // 13000 → "13.0"; 0 → "none"

}  // namespace moebius::train
