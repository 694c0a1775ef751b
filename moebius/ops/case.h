// One list of cases an op drives its correctness test, gradients, thread and instruction-set checks, mutants,
// the support matrix and the benchmark. Not part of the library.
//
// A case names its tensors, runs the op on views of them, and says in plain loops what must come out. The
// same loops run in double (the reference) and in float (a naive implementation, whose error sets the
// tolerance: at most twice it).
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moebius/base/philox.h"
#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

enum class Role { Input, Output, InOut };

struct TensorSpec {
    std::string name;
    Shape shape;
    DType dtype = DType::F32;
    Role role = Role::Input;
    // Value of an element (rounded to dtype); default N(0, 1). Outputs start poisoned (all bits set).
    std::function<double(int64_t index, const Philox& random)> value;
    // Outputs: which elements the op must write; the others must keep their bits. Default: all.
    std::function<bool(int64_t index)> written;
    bool exact = false;       // the output must equal the reference bit for bit
    int64_t row_padding = 0;  // extra elements between rows of axis 0, which nobody may touch
    // fp32 roundings on the way to an element (terms of a sum, steps of a chain): with few elements a naive
    // run may be exact by luck, so √roundings half ulps are always allowed.
    int64_t roundings = 0;
};

// A tensor of a reference run: values as Real, row-major.
template <class Real>
struct HostTensor {
    Shape shape;
    DType dtype = DType::F32;
    std::vector<Real> values;

    Real& operator[](int64_t index) { return values[static_cast<size_t>(index)]; }
    Real operator[](int64_t index) const { return values[static_cast<size_t>(index)]; }
    Real& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * shape[1] + j)]; }
    Real& at(int64_t i, int64_t j, int64_t k) {
        return values[static_cast<size_t>((i * shape[1] + j) * shape[2] + k)];
    }
    int64_t integer(int64_t index) const { return static_cast<int64_t>(values[static_cast<size_t>(index)]); }
    int64_t size(int axis) const { return shape[axis]; }
};

template <class Real>
struct Host {
    std::map<std::string, HostTensor<Real>> tensors;

    HostTensor<Real>& operator[](const std::string& name) {
        const auto found = tensors.find(name);
        MOEBIUS_CHECK(found != tensors.end(), "case has no tensor '", name, "'");
        return found->second;
    }
    // By a literal, as the references' innermost loops have it: after the first time found by its address.
    template <size_t n>
    HostTensor<Real>& operator[](const char (&literal)[n]) {
        for (const auto& [address, tensor] : literals_.seen) {
            if (address == literal) return *tensor;
        }
        HostTensor<Real>& tensor = (*this)[std::string(literal)];
        literals_.seen.emplace_back(literal, &tensor);
        return tensor;
    }
    bool has(const std::string& name) const { return tensors.count(name) > 0; }

  private:
    // They point into one map: a copy begins with none.
    struct Literals {
        std::vector<std::pair<const char*, HostTensor<Real>*>> seen;
        Literals() = default;
        Literals(const Literals&) {}
        Literals& operator=(const Literals&) {
            seen.clear();
            return *this;
        }
    } literals_;
};

// Where the real chain stores an intermediate in `dtype`: the naive run rounds there, the reference does not.
double stored(double value, DType dtype);
float stored(float value, DType dtype);

// The views that the op gets; a name the case doesn't have gives an empty view.
struct Views {
    std::map<std::string, View> views;
    View operator[](const std::string& name) const {
        const auto found = views.find(name);
        return found == views.end() ? View() : found->second;
    }
};

using RunOp = std::function<void(const Views&, const Exec&)>;

// A wrong implementation. The check must find it.
struct Mutant {
    std::string name;
    RunOp run;
};

// For a backward op's case: `forward` in double computes forward's outputs from the same host tensors; the
// derivative of Σ outputs · upstream along a random direction of each `wrt` input, by central differences,
// must equal <gradient, direction>.
struct GradientCheck {
    std::function<void(Host<double>&)> forward;  // may add tensors to the host (its outputs)
    std::vector<std::pair<std::string, std::string>>
        outputs;  // forward's output → its upstream gradient, an input here
    std::vector<std::pair<std::string, std::string>> wrt;  // input → its gradient, an output of this case
};

struct Case {
    std::string op;     // as in the registry
    std::string name;   // unique within the op: "bf16.ragged.77x300"
    std::string group;  // basic, edge, bench, …: the column of the support matrix
    DType dtype = DType::F32;
    std::vector<TensorSpec> tensors;
    RunOp run;
    std::function<void(Host<double>&)> reference;
    std::function<void(Host<float>&)> naive;
    std::vector<Mutant> mutants;
    std::optional<GradientCheck> gradient;
    std::function<Cost(const Views&)> cost;  // for the benchmark
    bool bench = false;                      // timed by the benchmark; too large for the tests
    bool large = false;                      // with bench: of a GPU's size, left out on the CPU
    bool one_result = false;                 // all variants on a GPU must give the same bits
};

// Both runs from one generic lambda: set_reference(c, [=](auto& h) { … }), element type: `auto x =
// h["x"][0]`.
template <class F>
void set_reference(Case& c, F f) {
    c.reference = [f](Host<double>& h) { f(h); };
    c.naive = [f](Host<float>& h) { f(h); };
}

struct CheckResult {
    bool passed = true;
    std::string message;  // what failed, with numbers; or the errors found
    uint64_t bits = 0;    // a hash of the outputs' bytes
};

// What the mutants that hand a list of their own to an op keep it in: where they run on a GPU, the default
// memory resource is one that both sides reach.
template <class T>
using SharedVector = std::pmr::vector<T>;

struct CheckOptions {
    // On a GPU: the tensors lie in this memory, which host and device reach, instead of the device's own.
    // Mutants change them on the host; kernels must have been started with CUDA_LAUNCH_BLOCKING=1 then.
    std::pmr::memory_resource* shared = nullptr;
    bool as_graph = false;  // on a GPU: captured and replayed once
    // On a GPU, for compute-sanitizer: no guards, and outputs that are written whole are not poisoned.
    bool bare = false;
};

// A case's inputs and references, made once for many runs; the case outlives it. On a GPU the tensors lie in
// memory from exec.pool between guards like on the CPU.
class PreparedCase {
  public:
    // `threads` may be null: it makes the inputs of large cases faster.
    explicit PreparedCase(const Case& c, ThreadPool* threads = nullptr);
    ~PreparedCase();
    // Runs it once under `exec` (on its device) with `run` (the op's, or a mutant's), from the same inputs
    // every time, and compares every output.
    CheckResult check(const RunOp& run, const Exec& exec, const CheckOptions& options = {});
    // "" if `run` would find a variant under `exec`, else the reason: a dry run.
    std::string why_not(const RunOp& run, const Exec& exec);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// The same for a single run.
CheckResult check(const Case& c, const RunOp& run, const Exec& exec);
// Central differences in double, no device involved.
CheckResult check_gradient(const Case& c);
// Bitwise equality of the outputs with every number of threads given.
CheckResult check_threads(const Case& c, const Exec& exec, const std::vector<int>& thread_counts);
// Median, least and most seconds of n runs after kWarmUpRuns that are not counted; on the CPU of fewer, but
// of kLeastRuns, where all of them take longer than `most_seconds`, and `exec`'s log and cost get the
// uncounted runs alone. On a GPU by events, with the L2 cache overwritten before every run, and replayed from
// a graph, so that the host's time is not in it; where the op can't be captured, run directly;
// `warm_seconds`: first it runs that long there, so that the clocks are those of a card at work. Large
// tensors repeat what is drawn for their first 2²⁴ elements there.
struct Timing {
    double median = 0, least = 0, most = 0;
    std::vector<double> samples;
    std::string no_graph;  // on a GPU: why it was not captured
};
inline constexpr int kWarmUpRuns = 2, kLeastRuns = 3;
Timing time_case(const Case& c, const Exec& exec, int runs, double warm_seconds = 0,
                 double most_seconds = 1e9);

// Splits used by every grouped op: balanced, an empty expert, one row, all rows to one, ragged tails.
struct NamedSplits {
    std::string name;
    std::vector<int64_t> sizes;
    int64_t capacity;  // rows of the buffers, ≥ the sum
};
std::vector<NamedSplits> edge_splits();

// Every op's cases: ops/all_cases.cpp lists the functions, one an op folder.
std::vector<Case> all_cases();

}  // namespace moebius::ops
