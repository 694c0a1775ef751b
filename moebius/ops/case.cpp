#include "moebius/ops/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "moebius/base/error.h"
#include "moebius/runtime/graph.h"
#include "moebius/runtime/stream.h"
#include "moebius/runtime/transfer.h"

namespace moebius::ops {
namespace {

constexpr uint64_t kSeed = 20260917;
constexpr int64_t kGuardBytes = 256;
constexpr uint8_t kGuard = 0xA5, kPoison = 0xFF;

double read(const void* data, DType dtype, int64_t index) {
    switch (dtype) {
        case DType::F64:
            return static_cast<const double*>(data)[index];
        case DType::F32:
            return static_cast<const float*>(data)[index];
        case DType::BF16:
            return to_float(static_cast<const BF16*>(data)[index]);
        case DType::I64:
            return static_cast<double>(static_cast<const int64_t*>(data)[index]);
        case DType::I32:
            return static_cast<const int32_t*>(data)[index];
        case DType::U8:
            return static_cast<const uint8_t*>(data)[index];
        default:
            break;
    }
    MOEBIUS_CHECK(false, "cases have no ", name(dtype));
}

void write(void* data, DType dtype, int64_t index, double value) {
    switch (dtype) {
        case DType::F64:
            static_cast<double*>(data)[index] = value;
            return;
        case DType::F32:
            static_cast<float*>(data)[index] = static_cast<float>(value);
            return;
        case DType::BF16:
            static_cast<BF16*>(data)[index] = to_bf16(static_cast<float>(value));
            return;
        case DType::I64:
            static_cast<int64_t*>(data)[index] = static_cast<int64_t>(value);
            return;
        case DType::I32:
            static_cast<int32_t*>(data)[index] = static_cast<int32_t>(value);
            return;
        case DType::U8:
            static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(value);
            return;
        default:
            break;
    }
    MOEBIUS_CHECK(false, "cases have no ", name(dtype));
}

double rounded(double value, DType dtype) {
    alignas(8) char word[8];
    write(word, dtype, 0, value);
    return read(word, dtype, 0);
}

// One tensor's memory between guards.
class Buffer {
  public:
    explicit Buffer(const TensorSpec& spec) : spec_(spec) {
        view_ = View(nullptr, spec.dtype, spec.shape);
        if (spec.row_padding > 0) view_.stride[0] += spec.row_padding;
        const int64_t rows = spec.shape.rank() > 0 ? spec.shape[0] : 1;
        inner_ = rows > 0 ? spec.shape.numel() / rows : 0;
        row_stride_ = inner_ + spec.row_padding;
        bytes_ = bytes_of(spec.dtype, rows * row_stride_);
        memory_.assign(static_cast<size_t>(bytes_ + 2 * kGuardBytes + 64), kGuard);
        const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuardBytes;
        view_.data = reinterpret_cast<void*>((address + 63) / 64 * 64);
        const uint8_t start = spec.role == Role::Output ? kPoison : kGuard;
        for (int64_t row = 0; row < rows; ++row) {
            std::memset(element(row * inner_), start, static_cast<size_t>(bytes_of(spec.dtype, inner_)));
        }
    }
    const View& view() const { return view_; }
    int64_t numel() const { return spec_.shape.numel(); }
    double get(int64_t index) const { return read(view_.data, spec_.dtype, offset(index)); }
    void set(int64_t index, double value) { write(view_.data, spec_.dtype, offset(index), value); }
    bool poisoned(int64_t index) const {
        const auto* byte = static_cast<const uint8_t*>(element(index));
        const int64_t size = bits(spec_.dtype) / 8;
        return std::all_of(byte, byte + size, [](uint8_t b) { return b == kPoison; });
    }
    // Bytes before, after and between rows that no longer hold the guard pattern.
    int64_t damaged() const {
        const auto* begin = memory_.data();
        const auto* end = begin + memory_.size();
        int64_t count = 0;
        for (const uint8_t* byte = begin; byte < end; ++byte) {
            if (!inside(byte) && *byte != kGuard) ++count;
        }
        return count;
    }
    bool whole_output() const {
        return spec_.role == Role::Output && !spec_.written && spec_.row_padding == 0;
    }
    // The tensor with its guards.
    uint8_t* region() { return static_cast<uint8_t*>(view_.data) - kGuardBytes; }
    const uint8_t* region() const { return static_cast<const uint8_t*>(view_.data) - kGuardBytes; }
    size_t region_bytes() const { return static_cast<size_t>(bytes_ + 2 * kGuardBytes); }
    // Everything as it was when the region held `bytes`.
    void restore(const std::vector<uint8_t>& bytes) {
        std::fill(memory_.begin(), memory_.end(), kGuard);
        std::copy(bytes.begin(), bytes.end(), region());
    }

  private:
    int64_t offset(int64_t index) const { return index / inner_ * row_stride_ + index % inner_; }
    void* element(int64_t index) const {
        return static_cast<char*>(view_.data) + (inner_ ? offset(index) : 0) * (bits(spec_.dtype) / 8);
    }
    bool inside(const uint8_t* byte) const {
        const int64_t at = byte - static_cast<const uint8_t*>(view_.data);
        if (at < 0 || at >= bytes_) return false;
        const int64_t size = bits(spec_.dtype) / 8;
        return at / size % row_stride_ < inner_;
    }

    TensorSpec spec_;
    View view_;
    int64_t inner_ = 0, row_stride_ = 0, bytes_ = 0;
    std::vector<uint8_t> memory_;
};

struct Buffers {
    std::map<std::string, Buffer> all;
    Views views;
};

// f(begin, end) over pieces of [0, count), on the threads if there are some.
template <class F>
void in_pieces(int64_t count, ThreadPool* threads, F&& f) {
    constexpr int64_t kPiece = 1 << 16;
    if (threads == nullptr || count < 2 * kPiece) return f(int64_t{0}, count);
    threads->run((count + kPiece - 1) / kPiece,
                 [&](int64_t piece, int) { f(piece * kPiece, std::min(count, (piece + 1) * kPiece)); });
}

Buffers make_buffers(const Case& c, ThreadPool* threads = nullptr) {
    Buffers buffers;
    for (const TensorSpec& spec : c.tensors) {
        Buffer buffer(spec);
        if (spec.role != Role::Output) {
            const Philox random(kSeed, c.op + "/" + c.name + "/" + spec.name);
            in_pieces(buffer.numel(), threads, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                    buffer.set(i,
                               spec.value ? spec.value(i, random) : random.normal(static_cast<uint64_t>(i)));
                }
            });
        }
        const auto [place, fresh] = buffers.all.emplace(spec.name, std::move(buffer));
        MOEBIUS_CHECK(fresh, c.op, "/", c.name, " has two tensors '", spec.name, "'");
        buffers.views.views[spec.name] = place->second.view();
    }
    return buffers;
}

// The case's tensors where the op gets them: the host's own on the CPU, copies with their guards on a GPU.
class Placed {
  public:
    Placed(Buffers& host, const Exec& exec, const CheckOptions& options)
        : exec_(exec), on_gpu_(exec.device->kind() == DeviceKind::Cuda) {
        const int64_t guard = options.bare ? 0 : kGuardBytes;
        std::pmr::memory_resource* const shared = options.shared;
        if (!on_gpu_) {
            views_ = host.views;
            return;
        }
        for (auto& [name, buffer] : host.all) {
            // With guards, an address that the tensor's alignment, 64, divides, and nothing larger.
            static_assert(kGuardBytes % (2 * kAlignment) == 0);
            const size_t skip = options.bare ? 0 : kAlignment;
            const size_t region_bytes =
                buffer.region_bytes() - static_cast<size_t>(2 * (kGuardBytes - guard));
            const size_t bytes = region_bytes + skip;
            std::shared_ptr<void> memory;
            if (shared) {
                memory = {shared->allocate(bytes), [=](void* data) { shared->deallocate(data, bytes); }};
            } else {
                memory = {
                    exec.pool->allocate("case", bytes, exec.stream),
                    [pool = exec.pool, stream = exec.stream](void* data) { pool->release(data, stream); }};
            }
            uint8_t* const region = static_cast<uint8_t*>(memory.get()) + skip;
            View view = buffer.view();
            view.data = region + guard;
            views_.views[name] = view;
            const bool raw = options.bare && buffer.whole_output();
            regions_[name] = {std::move(memory), region, buffer.region() + kGuardBytes - guard, region_bytes,
                              raw};
        }
    }
    const Views& views() const { return views_; }

    void to_device() {
        if (!on_gpu_) return;
        for (auto& [name, place] : regions_) {
            if (!place.raw) copy_to_device(place.region, place.host, place.bytes, exec_);
        }
        synchronize(exec_);
    }
    void to_host() {
        if (!on_gpu_) return;
        synchronize(exec_);
        for (auto& [name, place] : regions_) copy_to_host(place.host, place.region, place.bytes, exec_);
        synchronize(exec_);
    }

  private:
    struct Place {
        std::shared_ptr<void> memory;
        uint8_t *region, *host;
        size_t bytes;
        bool raw;
    };
    const Exec& exec_;
    bool on_gpu_;
    Views views_;
    std::map<std::string, Place> regions_;
};

template <class Real>
Host<Real> make_host(const Case& c, const Buffers& buffers) {
    Host<Real> host;
    for (const TensorSpec& spec : c.tensors) {
        const Buffer& buffer = buffers.all.at(spec.name);
        HostTensor<Real> tensor{spec.shape, spec.dtype, {}};
        tensor.values.resize(static_cast<size_t>(buffer.numel()));
        if (spec.role != Role::Output) {
            for (int64_t i = 0; i < buffer.numel(); ++i) tensor[i] = static_cast<Real>(buffer.get(i));
        }
        host.tensors[spec.name] = std::move(tensor);
    }
    return host;
}

struct Errors {
    double difference = 0, reference = 0;  // squared norms
    int64_t not_finite = 0, unequal = 0, unwritten = 0, overwritten = 0;
    double relative() const {
        return reference > 0 ? std::sqrt(difference / reference) : std::sqrt(difference);
    }
};

template <class Actual>
Errors compare(const TensorSpec& spec, const HostTensor<double>& reference, Actual&& actual) {
    Errors errors;
    for (int64_t i = 0; i < spec.shape.numel(); ++i) {
        if (spec.written && !spec.written(i)) continue;
        const double want = reference[i], got = actual(i);
        if (std::isfinite(want) && !std::isfinite(got)) ++errors.not_finite;
        if (!std::isfinite(want)) continue;
        if (rounded(want, spec.dtype) != got) ++errors.unequal;
        errors.difference += (got - want) * (got - want);
        errors.reference += want * want;
    }
    return errors;
}

// Half an ulp of a typical element: where the naive run happens to be exact, rounding may still differ.
double floor_of(DType dtype) {
    return dtype == DType::BF16 ? 0x1p-9 : dtype == DType::F64 ? 0x1p-53 : 0x1p-24;
}

std::string check_output(const TensorSpec& spec, const Buffer& buffer, const HostTensor<double>& reference,
                         const HostTensor<float>& naive) {
    Errors errors = compare(spec, reference, [&](int64_t i) { return buffer.get(i); });
    for (int64_t i = 0; i < buffer.numel(); ++i) {
        const bool must = !spec.written || spec.written(i);
        if (spec.role == Role::Output && !must && !buffer.poisoned(i)) ++errors.overwritten;
    }
    if (errors.not_finite)
        return fmt::format("{}: {} elements are not finite (or not written)", spec.name, errors.not_finite);
    if (errors.overwritten)
        return fmt::format("{}: {} elements were written that must stay", spec.name, errors.overwritten);
    const bool integer = spec.dtype == DType::I32 || spec.dtype == DType::I64 || spec.dtype == DType::U8;
    if (spec.exact || integer) {
        if (errors.unequal)
            return fmt::format("{}: {} elements differ, exact ones asked for", spec.name, errors.unequal);
        return {};
    }
    const Errors allowed = compare(
        spec, reference, [&](int64_t i) { return rounded(static_cast<double>(naive[i]), spec.dtype); });
    const double luck = 0x1p-24 * std::sqrt(static_cast<double>(spec.roundings));
    const double limit = std::max(2.0 * allowed.relative(), floor_of(spec.dtype) + luck);
    if (!(errors.relative() <= limit)) {
        return fmt::format(
            "{}: relative error {:.3e}, at most {:.3e} (twice a naive implementation's) allowed", spec.name,
            errors.relative(), limit);
    }
    return {};
}

struct References {
    Host<double> exact;
    Host<float> naive;
};

References make_references(const Case& c, const Buffers& buffers) {
    References references{make_host<double>(c, buffers), make_host<float>(c, buffers)};
    c.reference(references.exact);
    c.naive(references.naive);
    return references;
}

// A case whose outputs are all zero, or has none, would pass on nothing.
std::string check_not_vacuous(const Case& c, Host<double>& reference) {
    double total = 0;
    for (const TensorSpec& spec : c.tensors) {
        if (spec.role == Role::Input) continue;
        for (const double value : reference[spec.name].values)
            total += std::isfinite(value) ? value * value : 0;
    }
    return total > 0 ? "" : "the reference's outputs are all zero: the case shows nothing";
}

}  // namespace

double stored(double value, DType) {
    return value;
}
float stored(float value, DType dtype) {
    return dtype == DType::BF16 ? to_float(to_bf16(value)) : value;
}

struct PreparedCase::State {
    const Case& c;
    Buffers buffers;
    References references;
    std::map<std::string, std::vector<uint8_t>> before;  // regions
    std::string problem;

    State(const Case& made, ThreadPool* threads)
        : c(made), buffers(make_buffers(made, threads)), references(make_references(made, buffers)) {
        problem = check_not_vacuous(c, references.exact);
        for (const auto& [name, buffer] : buffers.all) {
            before[name].assign(buffer.region(), buffer.region() + buffer.region_bytes());
        }
    }

    void restore() {
        for (auto& [name, buffer] : buffers.all) buffer.restore(before[name]);
    }

    CheckResult compare() {
        CheckResult result;
        result.bits = 0xcbf29ce484222325;  // FNV-1a
        for (const TensorSpec& spec : c.tensors) {
            const Buffer& buffer = buffers.all.at(spec.name);
            if (const int64_t damaged = buffer.damaged()) {
                return {false,
                        fmt::format("{}: {} bytes around the tensor were overwritten", spec.name, damaged)};
            }
            if (spec.role == Role::Input) {
                if (!std::equal(before[spec.name].begin(), before[spec.name].end(), buffer.region())) {
                    return {false, spec.name + ": an input was written"};
                }
                continue;
            }
            for (size_t i = 0; i < buffer.region_bytes(); ++i) {
                result.bits = (result.bits ^ buffer.region()[i]) * 0x100000001b3;
            }
            const std::string wrong =
                check_output(spec, buffer, references.exact[spec.name], references.naive[spec.name]);
            if (!wrong.empty()) return {false, wrong, result.bits};
        }
        return result;
    }
};

PreparedCase::PreparedCase(const Case& c, ThreadPool* threads)
    : state_(std::make_unique<State>(c, threads)) {}
PreparedCase::~PreparedCase() = default;

CheckResult PreparedCase::check(const RunOp& run, const Exec& exec, const CheckOptions& options) {
    if (!state_->problem.empty()) return {false, state_->problem};
    state_->restore();
    Placed placed(state_->buffers, exec, options);
    placed.to_device();
    if (options.as_graph) {
        Graph graph;
        graph.capture(exec, [&] { run(placed.views(), exec); });
        graph.replay(exec.stream);
        synchronize(exec);
    } else {
        run(placed.views(), exec);
    }
    placed.to_host();
    return state_->compare();
}

std::string PreparedCase::why_not(const RunOp& run, const Exec& exec) {
    state_->restore();
    Exec dry = exec;
    dry.dry = true;
    dry.log = nullptr;
    dry.cost = nullptr;
    CountingPool pool;
    dry.pool = &pool;
    try {
        run(state_->buffers.views, dry);
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

CheckResult check(const Case& c, const RunOp& run, const Exec& exec) {
    return PreparedCase(c).check(run, exec);
}

CheckResult check_gradient(const Case& c) {
    MOEBIUS_CHECK(c.gradient, c.op, "/", c.name);
    const Buffers buffers = make_buffers(c);
    Host<double> host = make_host<double>(c, buffers);
    c.reference(host);
    const auto objective = [&](Host<double> at) {
        c.gradient->forward(at);
        double total = 0;
        for (const auto& [output, upstream] : c.gradient->outputs) {
            const auto& y = at[output].values;
            const auto& dy = at[upstream].values;
            for (size_t i = 0; i < y.size(); ++i) total += std::isfinite(y[i] * dy[i]) ? y[i] * dy[i] : 0;
        }
        return total;
    };
    for (const auto& [input, gradient] : c.gradient->wrt) {
        const Philox random(kSeed, c.name + "/direction/" + input);
        constexpr double kStep = 1e-5;
        Host<double> plus = host, minus = host;
        double along = 0, scale = 0;
        auto& values = host[input].values;
        for (size_t i = 0; i < values.size(); ++i) {
            const double u = random.normal(i);
            plus[input].values[i] += kStep * u;
            minus[input].values[i] -= kStep * u;
            along += host[gradient].values[i] * u;
            scale += std::abs(host[gradient].values[i] * u);
        }
        const double difference = (objective(plus) - objective(minus)) / (2 * kStep);
        if (!(scale > 0))
            return {false, fmt::format("{}: the gradient is zero, the check shows nothing", gradient)};
        if (!(std::abs(difference - along) <= 1e-6 * scale)) {
            return {false, fmt::format("{}: central difference {:.9e}, gradient {:.9e}", gradient, difference,
                                       along)};
        }
    }
    return {true, {}};
}

CheckResult check_threads(const Case& c, const Exec& exec, const std::vector<int>& thread_counts) {
    std::map<std::string, std::vector<uint8_t>> first;
    for (const int count : thread_counts) {
        ThreadPool threads(count);
        Exec with = exec;
        with.threads = &threads;
        Buffers buffers = make_buffers(c);
        c.run(buffers.views, with);
        for (const auto& [name, buffer] : buffers.all) {
            // Alignment of the memory differs between runs, so compare the tensor's own bytes.
            const auto* data = static_cast<const uint8_t*>(buffer.view().data);
            std::vector<uint8_t> bytes(
                data, data + (buffer.numel() ? bytes_of(buffer.view().dtype, buffer.numel()) : 0));
            const auto [place, fresh] = first.emplace(name, bytes);
            if (!fresh && place->second != bytes) {
                return {false, fmt::format("{}: {} threads and {} threads give other bits", name,
                                           thread_counts[0], count)};
            }
        }
    }
    return {true, {}};
}

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

std::vector<NamedSplits> edge_splits() {
    return {
        {"balanced", {16, 16, 16, 16}, 64},
        {"empty_expert", {13, 0, 21, 7}, 41},
        {"one_row", {1}, 1},
        {"one_row_of_many", {0, 1, 0, 0}, 4},
        {"all_to_one", {0, 0, 70, 0}, 70},
        {"ragged_tail", {5, 33, 0, 18, 1, 9}, 80},
    };
}

}  // namespace moebius::ops
