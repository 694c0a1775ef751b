#include "moebius/runtime/device.h"

#include <cstdlib>
#include <fstream>

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

}  // namespace

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
