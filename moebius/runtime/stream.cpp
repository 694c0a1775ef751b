#include "moebius/runtime/stream.h"

#include <chrono>
#include <utility>

#include "moebius/runtime/cuda_backend.h"

namespace moebius {

OwnedStream::OwnedStream(const Device& device) : on_gpu_(device.kind() == DeviceKind::Cuda) {
    if (on_gpu_) {
        device.make_current();
        stream_ = cuda_backend::create_stream();
    }
}

OwnedStream::~OwnedStream() {
    if (on_gpu_) cuda_backend::destroy_stream(stream_);
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : on_gpu_(std::exchange(other.on_gpu_, false)), stream_(std::exchange(other.stream_, {})) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
    std::swap(on_gpu_, other.on_gpu_);
    std::swap(stream_, other.stream_);
    return *this;
}

void OwnedStream::synchronize() const {
    if (on_gpu_) cuda_backend::synchronize(stream_);
}

Event::Event(const Device& device, bool timed) : on_gpu_(device.kind() == DeviceKind::Cuda) {
    if (on_gpu_) {
        device.make_current();
        handle_ = cuda_backend::create_event(timed);
    }
}

Event::~Event() {
    if (on_gpu_) cuda_backend::destroy_event(handle_);
}

Event::Event(Event&& other) noexcept
    : on_gpu_(std::exchange(other.on_gpu_, false)),
      handle_(std::exchange(other.handle_, nullptr)),
      recorded_(other.recorded_) {}

Event& Event::operator=(Event&& other) noexcept {
    std::swap(on_gpu_, other.on_gpu_);
    std::swap(handle_, other.handle_);
    std::swap(recorded_, other.recorded_);
    return *this;
}

void Event::record(Stream stream) {
    if (on_gpu_) {
        cuda_backend::record_event(handle_, stream);
    } else {
        recorded_ =
            std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
}

void Event::wait(Stream stream) const {
    if (on_gpu_) cuda_backend::wait_event(handle_, stream);
}

bool Event::done() const {
    return !on_gpu_ || cuda_backend::event_done(handle_);
}

void Event::synchronize() const {
    if (on_gpu_) cuda_backend::synchronize_event(handle_);
}

double Event::seconds_since(const Event& earlier) const {
    return on_gpu_ ? cuda_backend::seconds_between(earlier.handle_, handle_) : recorded_ - earlier.recorded_;
}

}  // namespace moebius
