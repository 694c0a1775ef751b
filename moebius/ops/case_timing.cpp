// Seconds of a case, by the clock on the CPU, by events on a GPU.
#include <algorithm>
#include <chrono>

#include "moebius/base/error.h"
#include "moebius/ops/case_buffers.h"
#include "moebius/runtime/graph.h"
#include "moebius/runtime/stream.h"
#include "moebius/runtime/transfer.h"

namespace moebius::ops {
namespace {

std::vector<double> time_on_cpu(const Case& c, const Exec& exec, int runs) {
    const Buffers buffers = make_buffers(c);
    std::vector<double> samples;
    for (int i = -2; i < runs; ++i) {
        const auto start = std::chrono::steady_clock::now();
        c.run(buffers.views, exec);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        if (i >= 0) samples.push_back(elapsed.count());
    }
    return samples;
}

std::vector<double> time_on_gpu(const Case& c, const Exec& exec, int runs, std::string& no_graph) {
    Buffers buffers = make_buffers(c, exec.threads);
    Placed placed(buffers, exec, {});
    placed.to_device();
    // Twice the L2 cache, written before every run. It takes tens of microseconds, in which the host gets
    // ahead.
    const auto flush_bytes = static_cast<size_t>(2 * exec.device->l2_bytes());
    const Scratch flush("flush", flush_bytes, exec);
    for (int i = 0; i < 2; ++i) c.run(placed.views(), exec);
    synchronize(exec);
    Graph graph;
    try {
        Exec quiet = exec;
        quiet.cost = nullptr;
        graph.capture(quiet, [&] { c.run(placed.views(), quiet); });
    } catch (const DeviceError& error) {
        no_graph = error.what();
    }
    std::vector<Event> begin, end;
    for (int i = -2; i < runs; ++i) {
        zero(flush.as<void>(), flush_bytes, exec);
        begin.emplace_back(*exec.device, true);
        end.emplace_back(*exec.device, true);
        begin.back().record(exec.stream);
        if (graph) {
            graph.replay(exec.stream);
        } else {
            c.run(placed.views(), exec);
        }
        end.back().record(exec.stream);
    }
    synchronize(exec);
    std::vector<double> samples;
    for (size_t i = 2; i < begin.size(); ++i) samples.push_back(end[i].seconds_since(begin[i]));
    return samples;
}

}  // namespace

Timing time_case(const Case& c, const Exec& exec, int runs) {
    Timing timing;
    timing.samples = exec.device->kind() == DeviceKind::Cpu ? time_on_cpu(c, exec, runs)
                                                            : time_on_gpu(c, exec, runs, timing.no_graph);
    std::vector<double> sorted = timing.samples;
    std::sort(sorted.begin(), sorted.end());
    timing.least = sorted.front();
    timing.most = sorted.back();
    timing.median = 0.5 * (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]);
    return timing;
}

}  // namespace moebius::ops
