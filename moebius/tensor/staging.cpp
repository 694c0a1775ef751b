#include "moebius/tensor/staging.h"

namespace moebius {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;
constexpr int64_t kWidest = 8;  // bytes of an element

}  // namespace

HostStaging::HostStaging(const Exec& exec, int64_t piece_bytes) : exec_(exec) {
    const bool in_place = exec.device->kind() == DeviceKind::Cpu;
    piece_bytes_ = piece_bytes > 0 ? piece_bytes : in_place ? 0 : kPieceBytes;
}

void* HostStaging::buffer() const {
    if (!buffer_) {
        const int64_t bytes = std::max(piece_bytes_, kWidest);
        buffer_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    }
    return buffer_.get();
}

void HostStaging::fetch(const View& device, const View& host) const {
    copy_to_host(host.data, device.data, static_cast<size_t>(host.bytes()), exec_);
    synchronize(exec_);
}

void HostStaging::store(const View& host, const View& device) const {
    copy_to_device(device.data, host.data, static_cast<size_t>(host.bytes()), exec_);
    synchronize(exec_);
}

}  // namespace moebius
