#include "moebius/runtime/device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"
#include "moebius/runtime/full_card.h"

namespace moebius {
namespace {

std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("model name")) {
            const size_t colon = line.find(": ");
            return colon == std::string::npos ? line : line.substr(colon + 2);
        }
    }
    return "unknown CPU";
}

constexpr int kLeastComputeCapability = 80;

}  // namespace

int CudaDevices::first_usable() const {
    for (const CudaDevice& card : all) {
        if (card.why_not.empty()) return card.index;
    }
    return -1;
}

CudaDevices visible_cuda_devices() noexcept {
    CudaDevices devices;
    try {
        devices = cuda_backend::visible();
        for (CudaDevice& card : devices.all) {
            if (card.cc < kLeastComputeCapability) {
                card.why_not = fmt::format("{} has compute capability {}.{}, kernels need {}.{} or later",
                                           card.name, card.cc / 10, card.cc % 10,
                                           kLeastComputeCapability / 10, kLeastComputeCapability % 10);
            }
        }
    } catch (const std::exception& error) {
        devices.all.clear();
        devices.why_none = error.what();
    }
    return devices;
}

Device Device::cuda(int index) {
    const CudaDevices devices = visible_cuda_devices();
    if (devices.all.empty()) throw DeviceError(devices.why_none + "; device=cpu uses the CPU");
    if (index < 0 || index >= static_cast<int>(devices.all.size())) {
        throw DeviceError(
            fmt::format("there is no GPU {}: {} are visible, counted from 0; device=cpu uses the CPU", index,
                        devices.all.size()));
    }
    const CudaDevice& card = devices.all[static_cast<size_t>(index)];
    if (!card.why_not.empty()) {
        throw DeviceError(fmt::format("GPU {} is too old: {}; device=cpu uses the CPU", index, card.why_not));
    }
    const std::string full = why_too_full(card, cuda_backend::open(index).free);
    if (!full.empty()) throw DeviceError(full);
    Device device;
    device.kind_ = DeviceKind::Cuda;
    device.index_ = index;
    device.cc_ = card.cc;
    device.sm_count_ = card.sm_count;
    device.memory_bytes_ = card.memory_bytes;
    device.l2_bytes_ = card.l2_bytes;
    device.isa_ = detect_isa();
    device.description_ = card.name;
    return device;
}

void Device::make_current() const {
    if (kind_ == DeviceKind::Cuda) cuda_backend::make_current(index_);
}

Device Device::cpu(std::string_view forced_isa) {
    Device device;
    device.isa_ = forced_isa.empty() ? detect_isa() : isa_from_name(forced_isa);
    device.description_ = cpu_model();
    return device;
}

Device Device::cpu_from_environment() {
    const char* forced = std::getenv("MOEBIUS_CPU_ISA");
    return cpu(forced == nullptr ? "" : forced);
}

}  // namespace moebius
