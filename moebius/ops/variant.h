// The one funnel through which every op runs: it chooses a variant, logs the choice and the reasons against
// the rows above it, honours `dry`, adds the cost, runs inside a profiler's range.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "moebius/runtime/exec.h"
#include "moebius/runtime/profiler_range.h"

// In a row: a kernel's function in builds with CUDA, null ("not in this build") in the others.
#ifdef MOEBIUS_WITH_CUDA
#define MOEBIUS_CUDA(function) function
#else
#define MOEBIUS_CUDA(function) nullptr
#endif
// The same of kernels that take cuDNN's frontend to build.
#ifdef MOEBIUS_WITH_CUDNN
#define MOEBIUS_CUDNN(function) function
#else
#define MOEBIUS_CUDNN(function) nullptr
#endif

namespace moebius::ops {

// A row of an op's table, best first. `why_not` gives the first reason against, with values, or "" for yes.
template <class Args>
struct Variant {
    const char* name;
    DeviceKind kind;
    int min_cc, max_cc;  // compute capability × 10; ignored on the CPU
    std::string (*why_not)(const Args&, const Exec&);
    void (*run)(const Args&, const Exec&);  // null: not in this build
    bool repeats = true;   // two runs give the same bits. False: runs only where it is forced by name
    bool untried = false;  // compiled, but never run on such a card: `info` and fusion reports say so
};

template <class Args>
std::string always(const Args&, const Exec&) {
    return {};
}

struct VariantInfo {
    std::string name;
    DeviceKind kind;
    int min_cc, max_cc;
    bool in_build;
    bool repeats = true;
    bool untried = false;

    // That it runs on a card of this compute capability × 10, as far as that alone says.
    bool covers(DeviceKind device, int cc) const {
        return kind == device && (kind != DeviceKind::Cuda || (cc >= min_cc && cc <= max_cc));
    }
};

// The first row for such a device, the one that runs unless the arguments or a forced name say otherwise.
// Null: there is none.
const VariantInfo* expected_variant(std::span<const VariantInfo> variants, DeviceKind device, int cc);

namespace detail {

struct Candidate {
    VariantInfo info;
    std::string reason;  // from why_not; "" if it would do
};

// Index of the row to run. Throws DeviceError naming the op and every reason if none fits, and Error if a
// forced name does not exist or cannot run.
size_t choose(const char* op, const std::vector<Candidate>& candidates, const Exec& exec, const Cost& cost);

}  // namespace detail

template <class Args>
void dispatch(const char* op, std::span<const Variant<Args>> table, const Args& args, const Exec& exec,
              const Cost& cost) {
    std::vector<detail::Candidate> candidates;
    candidates.reserve(table.size());
    for (const auto& row : table) {
        const bool here = row.kind == exec.device->kind();
        candidates.push_back(
            {{row.name, row.kind, row.min_cc, row.max_cc, row.run != nullptr, row.repeats, row.untried},
             here ? row.why_not(args, exec) : std::string("is for another device")});
    }
    const size_t chosen = detail::choose(op, candidates, exec, cost);
    if (exec.cost) *exec.cost += cost;
    if (exec.dry) return;
    const ProfilerRange range(op);
    table[chosen].run(args, exec);
}

template <class Args>
std::vector<VariantInfo> describe(std::span<const Variant<Args>> table) {
    std::vector<VariantInfo> rows;
    for (const auto& row : table)
        rows.push_back(
            {row.name, row.kind, row.min_cc, row.max_cc, row.run != nullptr, row.repeats, row.untried});
    return rows;
}

}  // namespace moebius::ops
