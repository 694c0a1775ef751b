#include "moebius/ops/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "moebius/base/error.h"
#include "moebius/ops/case_buffers.h"
#include "moebius/runtime/graph.h"
#include "moebius/runtime/transfer.h"

namespace moebius::ops {
namespace {

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
    const int64_t count = spec.shape.numel();
    for (int64_t i = 0; i < count; ++i) {
        if (spec.written && !spec.written(i)) continue;
        const double want = reference[i], got = actual(i);
        if (std::isfinite(want) && !std::isfinite(got)) ++errors.not_finite;
        if (!std::isfinite(want)) {
            // Inf as itself, NaN as any NaN; where no exact result is asked for, the case says nothing here.
            if (std::isnan(want) ? !std::isnan(got) : want != got) ++errors.unequal;
            continue;
        }
        if (want != got && rounded(want, spec.dtype) != got) ++errors.unequal;
        errors.difference += (got - want) * (got - want);
        errors.reference += want * want;
    }
    return errors;
}

// Half an ulp of a typical element: where the naive run happens to be exact, rounding may still differ.
double floor_of(DType dtype) {
    return dtype == DType::BF16 ? 0x1p-9 : dtype == DType::F64 ? 0x1p-53 : 0x1p-24;
}

// `naive_error()`: the relative error of the naive run, for outputs that need not be exact.
template <class NaiveError>
std::string check_output(const TensorSpec& spec, const Buffer& buffer, const HostTensor<double>& reference,
                         NaiveError&& naive_error) {
    Errors errors = compare(spec, reference, [&](int64_t i) { return buffer.get(i); });
    if (spec.role == Role::Output && spec.written) {
        for (int64_t i = 0; i < buffer.numel(); ++i) {
            if (!spec.written(i) && !buffer.poisoned(i)) ++errors.overwritten;
        }
    }
    if (errors.not_finite)
        return fmt::format("{}: {} elements are not finite (or not written)", spec.name, errors.not_finite);
    if (errors.overwritten)
        return fmt::format("{}: {} elements were written that must stay", spec.name, errors.overwritten);
    // 16 bits beside a bf16 weight are the lower half of a float: rounded, not counted.
    const bool integer = spec.dtype != DType::F64 && spec.dtype != DType::F32 && spec.dtype != DType::BF16 &&
                         spec.dtype != DType::I16;
    if (spec.exact || integer) {
        if (errors.unequal)
            return fmt::format("{}: {} elements differ, exact ones asked for", spec.name, errors.unequal);
        return {};
    }
    const double luck = 0x1p-24 * std::sqrt(static_cast<double>(spec.roundings));
    const double limit = std::max(2.0 * naive_error(), floor_of(spec.dtype) + luck);
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
    std::map<std::string, double> naive_errors;          // of outputs, once they are asked for
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

    double naive_error(const TensorSpec& spec) {
        const auto [place, fresh] = naive_errors.emplace(spec.name, 0.0);
        if (fresh) {
            const HostTensor<float>& naive = references.naive[spec.name];
            place->second = ops::compare(spec, references.exact[spec.name], [&](int64_t i) {
                                return rounded(static_cast<double>(naive[i]), spec.dtype);
                            }).relative();
        }
        return place->second;
    }

    CheckResult compare() {
        CheckResult result;
        result.bits = 0xcbf29ce484222325;  // as FNV-1a, by eight bytes
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
            for (size_t i = 0; i < buffer.region_bytes(); i += sizeof(uint64_t)) {
                uint64_t word = 0;
                std::memcpy(&word, buffer.region() + i, std::min(sizeof word, buffer.region_bytes() - i));
                result.bits = (result.bits ^ word) * 0x100000001b3;
                result.bits ^= result.bits >> 32;  // a product's high bits are all that low ones reach
            }
            const std::string wrong =
                check_output(spec, buffer, references.exact[spec.name], [&] { return naive_error(spec); });
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
        const Philox random(kCaseSeed, c.name + "/direction/" + input);
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
    Buffers buffers = make_buffers(c);
    std::map<std::string, std::vector<uint8_t>> before, first;
    for (const auto& [name, buffer] : buffers.all) {
        before[name].assign(buffer.region(), buffer.region() + buffer.region_bytes());
    }
    for (const int count : thread_counts) {
        ThreadPool threads(count);
        Exec with = exec;
        with.threads = &threads;
        for (auto& [name, buffer] : buffers.all) buffer.restore(before[name]);
        c.run(buffers.views, with);
        for (const auto& [name, buffer] : buffers.all) {
            const std::vector<uint8_t> bytes(buffer.region(), buffer.region() + buffer.region_bytes());
            const auto [place, fresh] = first.emplace(name, bytes);
            if (!fresh && place->second != bytes) {
                return {false, fmt::format("{}: {} threads and {} threads give other bits", name,
                                           thread_counts[0], count)};
            }
        }
    }
    return {true, {}};
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
