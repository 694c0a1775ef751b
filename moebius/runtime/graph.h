// Device work recorded once and replayed as a whole (a CUDA graph).
#pragma once

#include "moebius/runtime/exec.h"

namespace moebius {

class Graph {
  public:
    Graph() = default;
    ~Graph();
    Graph(Graph&& other) noexcept;
    Graph& operator=(Graph&& other) noexcept;

    // Calls enqueue(); what it puts into exec.stream (and into streams that it makes wait on that one, and
    // that it makes that one wait on in the end) is recorded instead of run. Addresses stay as they are at
    // replay, so buffers that the work uses outlive the graph; memory that a pool gave and got back during
    // the capture is used by every replay, and by others on this stream only between replays. enqueue must
    // not wait for the device. If it throws, there is no graph. Only on a GPU: on the CPU throws DeviceError.
    template <class F>
    void capture(const Exec& exec, F&& enqueue) {
        Capture recording(*this, exec);
        enqueue();
        recording.finish();
    }

    explicit operator bool() const { return handle_ != nullptr; }
    // Puts the whole of it into the stream.
    void replay(Stream stream) const;
    int64_t nodes() const { return nodes_; }

  private:
    class Capture {
      public:
        Capture(Graph& graph, const Exec& exec);
        ~Capture();
        void finish();

      private:
        Graph& graph_;
        Stream stream_;
        bool open_ = false;
    };

    void* handle_ = nullptr;
    int64_t nodes_ = 0;
};

}  // namespace moebius
