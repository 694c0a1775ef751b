// Seconds of a case, by the clock on the CPU, by events on a GPU.
#include <algorithm>
#include <chrono>
#include <deque>

#include "moebius/base/error.h"
#include "moebius/ops/case_buffers.h"
#include "moebius/runtime/graph.h"
#include "moebius/runtime/stream.h"
#include "moebius/runtime/transfer.h"

namespace moebius::ops {
namespace {

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> time_on_cpu(const Case& c, const Exec& exec, int runs, double most_seconds) {
    const Buffers buffers = make_buffers(c, exec.threads);
    const double begin = seconds_now();
    for (int i = 0; i < kWarmUpRuns; ++i) c.run(buffers.views, exec);
    Exec quiet = exec;
    quiet.cost = nullptr;
    quiet.log = nullptr;
    std::vector<double> samples;
    for (int i = 0; i < runs && (i < kLeastRuns || seconds_now() - begin < most_seconds); ++i) {
        const double start = seconds_now();
        c.run(buffers.views, quiet);
        samples.push_back(seconds_now() - start);
    }
    return samples;
}

// A larger tensor is drawn up to here and goes on with copies of that, made by the card: to draw gigabytes
// and to carry them over takes longer than all runs. No power of two, so that experts differ.
constexpr int64_t kDrawn = (1 << 24) - 8;

bool large(const TensorSpec& spec) {
    return spec.shape.numel() > kDrawn && spec.row_padding == 0 &&
           (spec.dtype == DType::F32 || spec.dtype == DType::BF16 || spec.dtype == DType::F8E4M3 ||
            spec.dtype == DType::F8E5M2);
}

// A case's tensors on the card.
class TimedTensors {
  public:
    TimedTensors(const Case& c, const Exec& exec)
        : small_(part(c, [](const TensorSpec& spec) { return !large(spec); })),
          buffers_(make_buffers(small_, exec.threads)),
          placed_(buffers_, exec, {}) {
        placed_.to_device();
        views_ = placed_.views();
        for (const TensorSpec& spec : c.tensors) {
            if (large(spec)) views_.views[spec.name] = place(c, spec, exec);
        }
        synchronize(exec);
    }
    const Views& views() const { return views_; }

  private:
    // Op and name stay: they choose the random numbers.
    template <class F>
    static Case part(const Case& c, F&& wanted) {
        Case some;
        some.op = c.op;
        some.name = c.name;
        for (const TensorSpec& spec : c.tensors) {
            if (wanted(spec)) some.tensors.push_back(spec);
        }
        return some;
    }

    View place(const Case& c, const TensorSpec& spec, const Exec& exec) {
        const auto bytes = static_cast<size_t>(bytes_of(spec.dtype, spec.shape.numel()));
        char* const data = memory_.emplace_back("case", bytes, exec).as<char>();
        if (spec.role == Role::Output) {
            zero(data, bytes, exec);
        } else {
            Case drawn = part(c, [&](const TensorSpec& other) { return other.name == spec.name; });
            drawn.tensors[0].shape = {kDrawn};
            const Buffers host = make_buffers(drawn, exec.threads);
            auto done = static_cast<size_t>(bytes_of(spec.dtype, kDrawn));
            copy_to_device(data, host.views[spec.name].data, done, exec);
            while (done < bytes) {
                const size_t more = std::min(done, bytes - done);
                copy(data + done, data, more, exec);
                done += more;
            }
            synchronize(exec);  // before the host's buffer goes
        }
        return View(data, spec.dtype, spec.shape);
    }

    Case small_;
    Buffers buffers_;
    Placed placed_;
    std::deque<Scratch> memory_;
    Views views_;
};

std::vector<double> time_on_gpu(const Case& c, const Exec& exec, int runs, double warm_seconds,
                                std::string& no_graph) {
    const TimedTensors tensors(c, exec);
    const Views& views = tensors.views();
    // Twice the L2 cache, written before every run. It takes tens of microseconds, in which the host gets
    // ahead.
    const auto flush_bytes = static_cast<size_t>(2 * exec.device->l2_bytes());
    const Scratch flush("flush", flush_bytes, exec);
    for (int i = 0; i < kWarmUpRuns; ++i) c.run(views, exec);
    synchronize(exec);
    Graph graph;
    try {
        Exec quiet = exec;
        quiet.cost = nullptr;
        graph.capture(quiet, [&] { c.run(views, quiet); });
    } catch (const DeviceError& error) {
        no_graph = error.what();
    }
    const auto run = [&] {
        if (graph) {
            graph.replay(exec.stream);
        } else {
            c.run(views, exec);
        }
    };
    for (const double until = seconds_now() + warm_seconds; seconds_now() < until;) {
        for (int i = 0; i < 4; ++i) run();
        synchronize(exec);
    }
    std::vector<Event> begin, end;
    for (int i = -kWarmUpRuns; i < runs; ++i) {
        zero(flush.as<void>(), flush_bytes, exec);
        begin.emplace_back(*exec.device, true);
        end.emplace_back(*exec.device, true);
        begin.back().record(exec.stream);
        run();
        end.back().record(exec.stream);
    }
    synchronize(exec);
    std::vector<double> samples;
    for (size_t i = kWarmUpRuns; i < begin.size(); ++i) samples.push_back(end[i].seconds_since(begin[i]));
    return samples;
}

}  // namespace

Timing time_case(const Case& c, const Exec& exec, int runs, double warm_seconds, double most_seconds) {
    Timing timing;
    timing.samples = exec.device->kind() == DeviceKind::Cpu
                         ? time_on_cpu(c, exec, runs, most_seconds)
                         : time_on_gpu(c, exec, runs, warm_seconds, timing.no_graph);
    std::vector<double> sorted = timing.samples;
    std::sort(sorted.begin(), sorted.end());
    timing.least = sorted.front();
    timing.most = sorted.back();
    timing.median = 0.5 * (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]);
    return timing;
}

}  // namespace moebius::ops
