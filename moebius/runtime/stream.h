// Streams and events. On the CPU they exist, so that callers need not ask, and do nothing: work is done when
// the call returns.
#pragma once

#include "moebius/runtime/device.h"

namespace moebius {

// A stream of its own, non-blocking (it does not wait for the default stream). It outlives all work and
// memory ordered on it: a pool that got blocks back on it too.
class OwnedStream {
  public:
    explicit OwnedStream(const Device& device);
    ~OwnedStream();
    OwnedStream(OwnedStream&& other) noexcept;
    OwnedStream& operator=(OwnedStream&& other) noexcept;
    Stream get() const { return stream_; }
    operator Stream() const { return stream_; }

    // Waits for all work in it. Throws DeviceError if some failed.
    void synchronize() const;

  private:
    bool on_gpu_ = false;
    Stream stream_;
};

// A point in a stream's work.
class Event {
  public:
    // `timed`: seconds_since works (such an event costs a little more).
    explicit Event(const Device& device, bool timed = false);
    ~Event();
    Event(Event&& other) noexcept;
    Event& operator=(Event&& other) noexcept;

    void record(Stream stream);
    // Work that comes into `stream` later starts after the point of the last record. Not recorded yet: no
    // wait.
    void wait(Stream stream) const;
    bool done() const;
    void synchronize() const;
    // Both recorded and done.
    double seconds_since(const Event& earlier) const;

  private:
    bool on_gpu_ = false;
    void* handle_ = nullptr;
    double recorded_ = 0;  // CPU: seconds of the clock
};

}  // namespace moebius
