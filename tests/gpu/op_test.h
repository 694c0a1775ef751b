// One op's cases and mutants on the card, in this process; gpu_tests.cpp has the processes around it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"
#include "moebius/runtime/stream.h"
#include "tests/gpu/guarded_pool.h"

namespace moebius::gpu_tests {

using namespace moebius::ops;

// Beside the ops: its "variants" are ops.
inline constexpr const char *kLarge = "64-bit offsets", *kMx = "MX as bf16";

struct Options {
    std::vector<std::string> ops;
    std::string variant, part, json, child;
    int jobs = 4, timeout = 120, from = 0;
    bool list = false, bare = false, small = false, own = false;
};

// What happened in one (op, variant), the word "mutants" being one more variant.
struct Count {
    int cases = 0, passed = 0, failed = 0, skipped = 0;
    std::map<std::string, int> reasons;  // of what was skipped

    void add(const Count& other) {
        cases += other.cases;
        passed += other.passed;
        failed += other.failed;
        skipped += other.skipped;
        for (const auto& [reason, count] : other.reasons) reasons[reason] += count;
    }
};
using Counts = std::map<std::string, Count>;

// As lines that the parent reads.
void print_counts(const Counts& counts);

std::vector<Case> cases_of(const std::string& op, const Options& options);

// From here on this process tells its parent what it does, and says where it was if it crashes.
void tell_parent();

class OpTest {
  public:
    OpTest(OpInfo op, const Options& options);
    Counts run_cases();
    Counts run_large();
    Counts run_mx();
    Counts run_mutants();

  private:
    // A check beside the ops' cases, which reports as test_large_offsets does.
    template <class Check>
    Counts run_check(const char* name, Check check);
    // A case may crash the process: what came before it is told at once, and the parent goes on behind it.
    bool begin(int index, const Case& c);
    void end();
    // After an error that the card keeps, only a new process helps.
    void check_alive();
    void fail(Count& count, const Case& c, const std::string& variant, const std::string& message);
    void skip(Count& count, const std::string& reason);
    // A forced variant, which then also runs a second time and from a graph; `repeats`: to the same bits.
    struct Way {
        const ForcedVariants* forced = nullptr;
        bool repeats = true;
    };
    void run_one(const Case& c, PreparedCase& prepared, const std::string& variant, const Way& way);
    // What is wrong with the case under `exec`; "" for nothing.
    std::string wrong_of(const Case& c, PreparedCase& prepared, const Exec& exec, const Way& way);

    OpInfo op_;
    const Options& options_;
    Device device_;
    OwnedStream stream_;
    std::unique_ptr<Arena> arena_;
    GuardedPool guarded_;
    SeparatePool separate_;
    ThreadPool threads_;
    Exec exec_;
    Counts counts_;
    std::set<uint64_t> results_;  // bits that the variants gave in the case that runs
};

}  // namespace moebius::gpu_tests
