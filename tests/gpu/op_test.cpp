#include "tests/gpu/op_test.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "moebius/base/error.h"
#include "moebius/runtime/pinned.h"
#include "tests/gpu/large_offsets.h"
#include "tests/gpu/mx_products.h"

namespace moebius::gpu_tests {
namespace {

// What runs now, for the line that a crash leaves.
char current[512] = "(nothing yet)";
bool tells_parent = false;

void set_current(const std::string& what) {
    std::snprintf(current, sizeof current, "%s", what.c_str());
    if (!tells_parent) return;
    std::printf("AT\t%s\n", what.c_str());
    std::fflush(stdout);
}

// A crash (a broken invariant, a touch of the card's memory by the host) says where, and ends the process.
void crashed(int signal) {
    const auto put = [](const char* text) { (void)!write(STDOUT_FILENO, text, std::strlen(text)); };
    put("FAILED ");
    put(current);
    put(signal == SIGABRT ? ": aborted (the lines above say why)\n"
                          : ": touched memory that is not the host's\n");
    _exit(128 + signal);
}

}  // namespace

void print_counts(const Counts& counts) {
    for (const auto& [variant, count] : counts) {
        std::printf("COUNT\t%s\t%d\t%d\t%d\t%d\n", variant.c_str(), count.cases, count.passed, count.failed,
                    count.skipped);
        for (const auto& [reason, times] : count.reasons) {
            std::printf("REASON\t%s\t%d\t%s\n", variant.c_str(), times, reason.c_str());
        }
    }
    std::fflush(stdout);
}

std::vector<Case> cases_of(const std::string& op, const Options& options) {
    std::vector<Case> cases;
    for (Case& c : all_cases()) {
        if (c.op == op && !c.bench && c.name.find(options.part) != std::string::npos)
            cases.push_back(std::move(c));
    }
    return cases;
}

void tell_parent() {
    for (const int crash : {SIGABRT, SIGSEGV, SIGBUS}) signal(crash, crashed);
    tells_parent = true;
}

OpTest::OpTest(OpInfo op, const Options& options)
    : op_(std::move(op)),
      options_(options),
      device_(Device::cuda(0)),
      stream_(device_),
      arena_(make_arena(device_)),
      guarded_(*arena_, device_),
      threads_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency() / 2))) {
    Pool* pool = options_.bare ? static_cast<Pool*>(&separate_) : &guarded_;
    exec_ = {.device = &device_, .stream = stream_, .pool = pool, .threads = &threads_};
}

Counts OpTest::run_cases() {
    std::map<std::string, int> of_group;
    int index = 0;
    for (const Case& c : cases_of(op_.name, options_)) {
        if (!begin(index++, c)) continue;
        // Cases of a group come in order of size, mostly.
        if (options_.small && ++of_group[std::string(name(c.dtype)) + c.group] > 3) continue;
        PreparedCase prepared(c, &threads_);
        results_.clear();
        for (const VariantInfo& variant : op_.variants) {
            if (variant.kind != DeviceKind::Cuda || !variant.in_build) continue;
            if (!options_.variant.empty() && variant.name != options_.variant) continue;
            if (options_.own && (variant.name.starts_with("cudnn") || variant.name.starts_with("cublas")))
                continue;
            ForcedVariants forced{{op_.name, variant.name}};
            // Its cases run forward first.
            if (options_.own && op_.name == "attention_backward") forced["attention"] = "cuda_any";
            run_one(c, prepared, variant.name, {&forced, variant.repeats});
        }
        if (options_.variant.empty() && !options_.bare) run_one(c, prepared, "(default)", {});
        end();
    }
    return counts_;
}

template <class Check>
Counts OpTest::run_check(const char* name, Check check) {
    Exec exec = exec_;
    exec.pool = arena_.get();
    check(exec, [&](const std::string& op, const std::string& problem) {
        Count& count = counts_[op];
        ++count.cases;
        if (problem.starts_with("skipped: ")) {
            skip(count, problem.substr(9));
        } else if (problem.empty()) {
            ++count.passed;
        } else {
            ++count.failed;
            std::printf("FAILED %s/%s: %s\n", name, op.c_str(), problem.c_str());
            std::fflush(stdout);
        }
    });
    return counts_;
}
Counts OpTest::run_large() {
    return run_check(kLarge, test_large_offsets);
}
Counts OpTest::run_mx() {
    return run_check(kMx, test_mx_products);
}

Counts OpTest::run_mutants() {
    PinnedMemory shared(device_);
    std::pmr::set_default_resource(&shared);
    int index = 0;
    for (const Case& c : cases_of(op_.name, options_)) {
        if (!begin(index++, c) || c.mutants.empty()) continue;
        PreparedCase prepared(c, &threads_);
        for (const Mutant& mutant : c.mutants) {
            Count& count = counts_["mutants"];
            ++count.cases;
            set_current(op_.name + "/" + c.name + ", mutant '" + mutant.name + "'");
            const std::string reason = prepared.why_not(mutant.run, exec_);
            if (!reason.empty()) {
                skip(count, reason);
                continue;
            }
            CheckResult result;
            try {
                result = prepared.check(mutant.run, exec_, {.shared = &shared});
            } catch (const DeviceError& error) {
                fail(count, c, "mutant '" + mutant.name + "'", error.what());
                check_alive();
                continue;
            }
            (void)guarded_.damaged();
            if (result.passed) {
                fail(count, c, "mutants", "a mutant lives: " + mutant.name);
            } else {
                ++count.passed;
            }
        }
        end();
    }
    std::pmr::set_default_resource(nullptr);
    return counts_;
}

bool OpTest::begin(int index, const Case& c) {
    if (index < options_.from) return false;
    set_current(op_.name + "/" + c.name);
    if (!options_.child.empty()) std::printf("CASE\t%d\n", index);
    std::fflush(stdout);
    return true;
}

void OpTest::end() {
    if (options_.child.empty()) return;
    print_counts(counts_);
    counts_.clear();
}

void OpTest::check_alive() {
    try {
        synchronize(exec_);
        const Scratch word("alive", 4, {.device = &device_, .stream = stream_, .pool = arena_.get()});
        fill_bytes(word.as<void>(), 0, 4, exec_);
        synchronize(exec_);
    } catch (const DeviceError&) {
        print_counts(counts_);
        std::printf("the card gives only errors from here on\n");
        std::fflush(stdout);
        std::_Exit(3);
    }
}

void OpTest::fail(Count& count, const Case& c, const std::string& variant, const std::string& message) {
    ++count.failed;
    std::printf("FAILED %s/%s with %s: %s\n", op_.name.c_str(), c.name.c_str(), variant.c_str(),
                message.c_str());
    std::fflush(stdout);
}

void OpTest::skip(Count& count, const std::string& reason) {
    ++count.skipped;
    ++count.reasons[reason.substr(0, reason.find('\n'))];
}

void OpTest::run_one(const Case& c, PreparedCase& prepared, const std::string& variant, const Way& way) {
    Count& count = counts_[variant];
    ++count.cases;
    Exec exec = exec_;
    exec.forced = way.forced;
    const std::string reason = prepared.why_not(c.run, exec);
    if (!reason.empty()) return skip(count, reason);
    set_current(op_.name + "/" + c.name + " with " + variant);
    try {
        const std::string wrong = wrong_of(c, prepared, exec, way);
        if (wrong.empty()) {
            ++count.passed;
        } else {
            fail(count, c, variant, wrong);
        }
    } catch (const Error& error) {
        // Reasons that only the card's libraries know come out of the run, in the words of a dry one.
        if (way.forced && std::string_view(error.what()).starts_with("kernels." + op_.name + " = "))
            return skip(count, error.what());
        fail(count, c, variant, error.what());
        check_alive();
    }
}

std::string OpTest::wrong_of(const Case& c, PreparedCase& prepared, const Exec& exec, const Way& way) {
    const CheckResult first = prepared.check(c.run, exec, {.bare = options_.bare});
    if (!first.passed) return first.message;
    if (c.one_result && way.forced && results_.insert(first.bits).second && results_.size() > 1)
        return "gives other bits than the variants before it";
    if (const std::string scratch = guarded_.damaged(); !scratch.empty()) {
        return "something was written around the scratch '" + scratch + "'";
    }
    if (options_.bare || !way.forced) return {};
    const CheckResult again = prepared.check(c.run, exec);
    if (!again.passed) return "in a second run: " + again.message;
    if (way.repeats && again.bits != first.bits) return "a second run gives other bits";
    // Scratch straight from the arena: guards can't be looked at while the work is captured.
    Exec plain = exec;
    plain.pool = arena_.get();
    try {
        const CheckResult replayed = prepared.check(c.run, plain, {.as_graph = true});
        if (!replayed.passed) return "from a graph: " + replayed.message;
        if (way.repeats && replayed.bits != first.bits) return "a graph gives other bits";
    } catch (const DeviceError& error) {
        return std::string("from a graph: ") + error.what();
    }
    if (guarded_.live() != 0) return "scratch was not given back";
    return {};
}

}  // namespace moebius::gpu_tests
