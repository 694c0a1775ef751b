#include "moebius/train/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"
#include "moebius/runtime/full_card.h"

namespace moebius::train {
namespace {

constexpr double kGiB = 1 << 30;

// Why none of the visible cards can be used.
std::string why_unusable(const CudaDevices& found) {
    std::vector<std::string> reasons;
    for (const CudaDevice& card : found.all)
        reasons.push_back(fmt::format("GPU {}: {}", card.index, card.why_not));
    return fmt::format("{}", fmt::join(reasons, "; "));
}

Device make_device(const std::string& wanted, std::string& why_cpu) {
    // Whoever wants the CPU leaves the driver alone.
    const DeviceChoice choice =
        choose_device(wanted, wanted == "cpu" ? CudaDevices{} : visible_cuda_devices(),
                      [](int gpu) { return cuda_backend::open(gpu).free; });
    why_cpu = choice.why_cpu;
    return choice.gpu >= 0 ? Device::cuda(choice.gpu) : Device::cpu_from_environment();
}

}  // namespace

DeviceChoice choose_device(const std::string& wanted, const CudaDevices& found,
                           const std::function<int64_t(int gpu)>& free_bytes) {
    constexpr const char* kWayOut = "device=cpu uses the CPU";
    if (wanted == "cpu") return {};
    const int usable = found.first_usable();
    if (usable >= 0) {
        const std::string full = why_too_full(found.all[static_cast<size_t>(usable)], free_bytes(usable));
        if (!full.empty()) throw DeviceError(fmt::format("device = {}: {}", wanted, full));
        return {.gpu = usable};
    }
    if (!found.all.empty()) {
        throw DeviceError(fmt::format("device = {}: no GPU that is visible can be used: {}; {}", wanted,
                                      why_unusable(found), kWayOut));
    }
    if (found.unusable)
        throw DeviceError(fmt::format("device = {}: {}; {}", wanted, found.why_none, kWayOut));
    if (wanted == "cuda")
        throw DeviceError(fmt::format("device = cuda needs a GPU: {}; {}", found.why_none, kWayOut));
    return {.why_cpu = found.why_none};
}

Machine::Machine(const std::string& device, int threads)
    : device_(make_device(device, why_cpu_)),
      stream_(device_),
      host_memory_(device_),
      arena_(make_arena(device_)),
      threads_(threads) {}

Exec Machine::exec(const ForcedVariants* forced) {
    return {
        .device = &device_, .stream = stream_, .pool = arena_.get(), .threads = &threads_, .forced = forced};
}

std::string Machine::line() const {
    if (on_gpu()) {
        return fmt::format("device: cuda (GPU {}: {}, compute capability {}.{}, {:.1f} GiB), {} threads",
                           device_.index(), device_.description(), device_.cc() / 10, device_.cc() % 10,
                           static_cast<double>(device_.memory_bytes()) / kGiB, threads_.size());
    }
    return fmt::format("device: cpu ({}, {}), {} threads{}", device_.description(), name(device_.isa()),
                       threads_.size(), why_cpu_.empty() ? "" : "; " + why_cpu_);
}

double peak_flops(const Device& device, DType dtype) {
    struct Row {
        const char* name;
        double bf16, fp32, fp8;  // fp8: 0 where tensor cores have none
    };
    // Dense, at boost clock; fp32 without TF32.
    constexpr Row kRows[] = {
        {"H200", 989.4e12, 66.9e12, 1978.9e12},           {"GH200", 989.4e12, 66.9e12, 1978.9e12},
        {"H100 80GB HBM3", 989.4e12, 66.9e12, 1978.9e12}, {"H100 NVL", 835.5e12, 60.3e12, 1670.7e12},
        {"H100 PCIe", 756.4e12, 51.2e12, 1512.9e12},      {"A100", 311.9e12, 19.5e12, 0}};
    if (device.kind() != DeviceKind::Cuda) return 0;
    for (const Row& row : kRows) {
        if (device.description().find(row.name) == std::string::npos) continue;
        if (dtype == DType::F8E4M3 && row.fp8 > 0) return row.fp8;
        return dtype == DType::F32 ? row.fp32 : row.bf16;
    }
    return 0;
}

std::string driver_version() {
    std::string version;
    std::ifstream("/sys/module/nvidia/version") >> version;
    return version;
}

std::string cuda_version_text(int version) {
    if (version == 0) return "none";
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace moebius::train
