#include "moebius/runtime/graph.h"

#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"

namespace moebius {

Graph::~Graph() {
    if (handle_) cuda_backend::destroy_graph(handle_);
}

Graph::Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), nodes_(other.nodes_) {}

Graph& Graph::operator=(Graph&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(nodes_, other.nodes_);
    return *this;
}

void Graph::replay(Stream stream) const {
    MOEBIUS_CHECK(handle_ != nullptr, "replay of a graph that was not captured");
    cuda_backend::launch_graph(handle_, stream);
}

Graph::Capture::Capture(Graph& graph, const Exec& exec) : graph_(graph), stream_(exec.stream) {
    if (exec.device->kind() != DeviceKind::Cuda)
        throw DeviceError("graphs are captured on a GPU only, this is the CPU");
    graph_ = Graph();
    cuda_backend::begin_capture(stream_);
    open_ = true;
}

Graph::Capture::~Capture() {
    if (open_) cuda_backend::abandon_capture(stream_);
}

void Graph::Capture::finish() {
    open_ = false;
    graph_.handle_ = cuda_backend::end_capture(stream_, graph_.nodes_);
}

}  // namespace moebius
