// The device that tests of whole models run on: the CPU, or the GPU with MOEBIUS_TEST_DEVICE=cuda.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "moebius/runtime/exec.h"
#include "moebius/runtime/pinned.h"
#include "moebius/runtime/stream.h"

namespace moebius {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kInstrumented = true;
#else
inline constexpr bool kInstrumented = false;
#endif

inline std::string test_device() {
    const char* wanted = std::getenv("MOEBIUS_TEST_DEVICE");
    return wanted == nullptr ? "cpu" : wanted;
}

struct TestMachine {
    Device device = test_device() == "cuda" ? Device::cuda() : Device::cpu_from_environment();
    OwnedStream stream{device};
    PinnedMemory host{device};
    std::unique_ptr<Arena> pool = make_arena(device);
    ThreadPool threads{2};
    Exec exec{.device = &device, .stream = stream, .pool = pool.get(), .threads = &threads};
    bool on_gpu() const { return device.kind() == DeviceKind::Cuda; }
};

}  // namespace moebius
