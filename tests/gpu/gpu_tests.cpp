// gpu_tests: every op's cases on a GPU, through every CUDA variant of the op.
//
// A case passes if its outputs are right (the tolerances of the CPU's tests), nothing else was written, the
// scratch was given back and nothing was written around it, and a second run and one replayed from a CUDA
// graph give the same bits. Mutants must be found. Each op runs in processes of its own: an error of the
// device ends only that op, as a failure.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"
#include "moebius/runtime/pinned.h"
#include "moebius/runtime/stream.h"
#include "tests/gpu/guarded_pool.h"
#include "tests/gpu/large_offsets.h"

using namespace moebius;
using namespace moebius::ops;

namespace {

// Beside the ops: its "variants" are ops.
constexpr const char* kLarge = "64-bit offsets";

constexpr const char* kHelp =
    "gpu_tests [--op NAME]… [--variant NAME] [--case PART] [--jobs N] [--timeout SECONDS] [--json FILE] "
    "[--list]\n"
    "          [--bare] [--small]\n"
    "  --case PART   only cases whose name contains PART\n"
    "  --jobs N      ops tested at one time (default 4)\n"
    "  --timeout S   seconds without progress after which an op's process is ended as hung (default 120)\n"
    "  --list        ops, their CUDA variants and numbers of cases\n"
    "  --bare        for compute-sanitizer: one process, memory of its own for every tensor, no graphs, no "
    "mutants\n"
    "  --small       with --bare: at most 6 cases a variant, the smallest of each group\n";

struct Options {
    std::vector<std::string> ops;
    std::string variant, part, json, child;
    int jobs = 4, timeout = 120, from = 0;
    bool list = false, bare = false, small = false;
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

bool has_cuda(const OpInfo& op) {
    for (const VariantInfo& v : op.variants) {
        if (v.kind == DeviceKind::Cuda && v.in_build) return true;
    }
    return false;
}

// Everything is asked for, not a part.
bool whole_run(const Options& options) {
    return options.ops.empty() && options.variant.empty() && options.part.empty() && !options.bare;
}

std::vector<Case> cases_of(const std::string& op, const Options& options) {
    std::vector<Case> cases;
    for (Case& c : all_cases()) {
        if (c.op == op && !c.bench && c.name.find(options.part) != std::string::npos)
            cases.push_back(std::move(c));
    }
    return cases;
}

// One op on the card, in this process.
class OpTest {
  public:
    OpTest(OpInfo op, const Options& options)
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

    Counts run_cases() {
        std::map<std::string, int> of_group;
        int index = 0;
        for (const Case& c : cases_of(op_.name, options_)) {
            if (!begin(index++, c)) continue;
            // Cases of a group come in order of size, mostly.
            if (options_.small && ++of_group[std::string(name(c.dtype)) + c.group] > 3) continue;
            PreparedCase prepared(c, &threads_);
            for (const VariantInfo& variant : op_.variants) {
                if (variant.kind != DeviceKind::Cuda || !variant.in_build) continue;
                if (!options_.variant.empty() && variant.name != options_.variant) continue;
                const ForcedVariants forced{{op_.name, variant.name}};
                run_one(c, prepared, variant.name, &forced);
            }
            if (options_.variant.empty() && !options_.bare) run_one(c, prepared, "(default)", nullptr);
            end();
        }
        return counts_;
    }

    Counts run_large() {
        Exec exec = exec_;
        exec.pool = arena_.get();
        moebius::gpu_tests::test_large_offsets(exec, [&](const std::string& op, const std::string& problem) {
            Count& count = counts_[op];
            ++count.cases;
            if (problem.starts_with("skipped: ")) {
                skip(count, problem.substr(9));
            } else if (problem.empty()) {
                ++count.passed;
            } else {
                ++count.failed;
                std::printf("FAILED %s/%s: %s\n", kLarge, op.c_str(), problem.c_str());
                std::fflush(stdout);
            }
        });
        return counts_;
    }

    Counts run_mutants() {
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

  private:
    // A case may crash the process: what came before it is told at once, and the parent goes on behind it.
    bool begin(int index, const Case& c) {
        if (index < options_.from) return false;
        set_current(op_.name + "/" + c.name);
        if (!options_.child.empty()) std::printf("CASE\t%d\n", index);
        std::fflush(stdout);
        return true;
    }
    void end() {
        if (options_.child.empty()) return;
        print_counts(counts_);
        counts_.clear();
    }
    // After an error that the card keeps, only a new process helps.
    void check_alive() {
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

    void fail(Count& count, const Case& c, const std::string& variant, const std::string& message) {
        ++count.failed;
        std::printf("FAILED %s/%s with %s: %s\n", op_.name.c_str(), c.name.c_str(), variant.c_str(),
                    message.c_str());
        std::fflush(stdout);
    }
    void skip(Count& count, const std::string& reason) {
        ++count.skipped;
        ++count.reasons[reason.substr(0, reason.find('\n'))];
    }

    void run_one(const Case& c, PreparedCase& prepared, const std::string& variant,
                 const ForcedVariants* forced) {
        Count& count = counts_[variant];
        ++count.cases;
        Exec exec = exec_;
        exec.forced = forced;
        const std::string reason = prepared.why_not(c.run, exec);
        if (!reason.empty()) return skip(count, reason);
        set_current(op_.name + "/" + c.name + " with " + variant);
        try {
            const std::string wrong = wrong_of(c, prepared, exec, forced != nullptr);
            if (wrong.empty()) {
                ++count.passed;
            } else {
                fail(count, c, variant, wrong);
            }
        } catch (const Error& error) {
            fail(count, c, variant, error.what());
            check_alive();
        }
    }

    // What is wrong with the case under `exec`; "" for nothing. `thorough`: a second run and a graph.
    std::string wrong_of(const Case& c, PreparedCase& prepared, const Exec& exec, bool thorough) {
        const CheckResult first = prepared.check(c.run, exec, {.bare = options_.bare});
        if (!first.passed) return first.message;
        if (const std::string scratch = guarded_.damaged(); !scratch.empty()) {
            return "something was written around the scratch '" + scratch + "'";
        }
        if (options_.bare || !thorough) return {};
        const CheckResult again = prepared.check(c.run, exec);
        if (!again.passed) return "in a second run: " + again.message;
        if (again.bits != first.bits) return "a second run gives other bits";
        // Scratch straight from the arena: guards can't be looked at while the work is captured.
        Exec plain = exec;
        plain.pool = arena_.get();
        try {
            const CheckResult replayed = prepared.check(c.run, plain, {.as_graph = true});
            if (!replayed.passed) return "from a graph: " + replayed.message;
            if (replayed.bits != first.bits) return "a graph gives other bits";
        } catch (const DeviceError& error) {
            return std::string("from a graph: ") + error.what();
        }
        if (guarded_.live() != 0) return "scratch was not given back";
        return {};
    }

    OpInfo op_;
    const Options& options_;
    Device device_;
    OwnedStream stream_;
    std::unique_ptr<Arena> arena_;
    moebius::gpu_tests::GuardedPool guarded_;
    moebius::gpu_tests::SeparatePool separate_;
    ThreadPool threads_;
    Exec exec_;
    Counts counts_;
};

// ---- A process an op: the child writes its counts as lines after each case, the parent adds them up.

int run_child(const OpInfo& op, const Options& options) {
    for (const int crash : {SIGABRT, SIGSEGV, SIGBUS}) signal(crash, crashed);
    tells_parent = true;
    try {
        OpTest test(op, options);
        print_counts(options.child == "mutants" ? test.run_mutants()
                     : options.child == "large" ? test.run_large()
                                                : test.run_cases());
        std::printf("END\n");
        return 0;
    } catch (const Error& error) {
        std::printf("FAILED %s: %s\n", op.name.c_str(), error.what());
        std::fflush(stdout);
        // The card may no longer answer: no destructors.
        std::_Exit(1);
    }
}

struct Child {
    std::string op, phase;
    int from = 0, last = -1;  // cases: the first that it takes, the last that it began
    bool ended = false;       // it came to the end
    pid_t pid = 0;
    FILE* output = nullptr;
    std::string at;     // what it began last
    double moved = 0;   // when it was last seen to write
    off_t written = 0;  // bytes, then
};

double now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Child start(const std::string& op, const std::string& phase, int from, const Options& options) {
    Child child{.op = op, .phase = phase, .from = from, .output = std::tmpfile(), .moved = now()};
    if (child.output == nullptr) throw Error("no temporary file");
    std::fflush(stdout);
    child.pid = fork();
    if (child.pid < 0) throw Error("no process could be started");
    if (child.pid == 0) {
        dup2(fileno(child.output), STDOUT_FILENO);
        dup2(fileno(child.output), STDERR_FILENO);
        // Mutants touch their tensors on the host right after an op.
        if (phase == "mutants") setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
        std::vector<std::string> words{"gpu_tests", "--child",           phase, "--op", op,
                                       "--from",    std::to_string(from)};
        if (!options.variant.empty()) words.insert(words.end(), {"--variant", options.variant});
        if (!options.part.empty()) words.insert(words.end(), {"--case", options.part});
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        execv("/proc/self/exe", arguments.data());
        _exit(127);
    }
    return child;
}

// Reads what the child wrote, passes the failures on, adds the counts up.
Counts finish(Child& child, int status, bool hung) {
    Counts counts;
    std::rewind(child.output);
    char line[4096];
    while (std::fgets(line, sizeof line, child.output)) {
        char variant[256];
        int a = 0, b = 0, c = 0, d = 0, at = 0;
        if (std::sscanf(line, "COUNT\t%255[^\t]\t%d\t%d\t%d\t%d", variant, &a, &b, &c, &d) == 5) {
            Count& count = counts[variant];
            count.cases += a, count.passed += b, count.failed += c, count.skipped += d;
        } else if (std::sscanf(line, "REASON\t%255[^\t]\t%d\t%n", variant, &a, &at) == 2 && at > 0) {
            std::string reason(line + at);
            reason.erase(reason.find_last_not_of('\n') + 1);
            counts[variant].reasons[reason] += a;
        } else if (std::sscanf(line, "CASE\t%d", &a) == 1) {
            child.last = a;
        } else if (std::strncmp(line, "AT\t", 3) == 0) {
            child.at = line + 3;
            child.at.erase(child.at.find_last_not_of('\n') + 1);
        } else if (std::strcmp(line, "END\n") == 0) {
            child.ended = true;
        } else {
            std::fputs(line, stdout);
        }
    }
    std::fclose(child.output);
    // Exit code 3: the child told of the failure itself.
    if (!child.ended && !(WIFEXITED(status) && WEXITSTATUS(status) == 3)) {
        ++counts[child.phase == "mutants" ? "mutants" : "(process)"].failed;
        if (hung) {
            std::printf("FAILED %s (%s): hung, ended after %.0f s at %s\n", child.op.c_str(),
                        child.phase.c_str(), now() - child.moved, child.at.c_str());
        } else {
            std::printf("FAILED %s (%s): its process ended early (%s %d)\n", child.op.c_str(),
                        child.phase.c_str(), WIFSIGNALED(status) ? "signal" : "exit code",
                        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        }
    }
    return counts;
}

constexpr int kMostRestarts = 5;

std::map<std::string, Counts> run_children(const std::vector<OpInfo>& ops, const Options& options) {
    std::vector<std::pair<std::string, std::string>> waiting;
    for (const OpInfo& op : ops) {
        if (!has_cuda(op)) continue;
        waiting.push_back({op.name, "cases"});
        waiting.push_back({op.name, "mutants"});
    }
    if (whole_run(options)) waiting.push_back({kLarge, "large"});
    std::map<std::string, Counts> results;
    std::vector<Child> running;
    std::map<std::string, int> restarts;
    size_t next = 0;
    while (next < waiting.size() || !running.empty()) {
        while (next < waiting.size() && static_cast<int>(running.size()) < options.jobs) {
            running.push_back(start(waiting[next].first, waiting[next].second, 0, options));
            ++next;
        }
        usleep(20000);
        for (size_t i = 0; i < running.size();) {
            int status = 0;
            bool hung = false;
            pid_t ended = waitpid(running[i].pid, &status, WNOHANG);
            if (struct stat file;
                fstat(fileno(running[i].output), &file) == 0 && file.st_size != running[i].written) {
                running[i].written = file.st_size;
                running[i].moved = now();
            }
            if (ended == 0 && now() - running[i].moved > options.timeout) {
                kill(running[i].pid, SIGKILL);
                ended = waitpid(running[i].pid, &status, 0);
                hung = true;
            }
            if (ended == 0) {
                ++i;
                continue;
            }
            Child child = running[i];
            running.erase(running.begin() + static_cast<int64_t>(i));
            for (const auto& [variant, count] : finish(child, status, hung))
                results[child.op][variant].add(count);
            // Goes on behind the case that ended the process, as long as that is no habit.
            if (!child.ended && child.last >= 0 && ++restarts[child.op + child.phase] <= kMostRestarts) {
                running.push_back(start(child.op, child.phase, child.last + 1, options));
            }
        }
    }
    return results;
}

// ---- Reports.

void list(const std::vector<OpInfo>& ops, const Options& options) {
    for (const OpInfo& op : ops) {
        std::string variants;
        for (const VariantInfo& v : op.variants) {
            if (v.kind == DeviceKind::Cuda)
                variants += " " + v.name + (v.in_build ? "" : " (not in this build)");
        }
        std::printf("%-22s %4zu cases  %s\n", op.name.c_str(), cases_of(op.name, options).size(),
                    variants.empty() ? " no CUDA variant" : variants.c_str());
    }
}

Count print_table(const std::vector<OpInfo>& ops, std::map<std::string, Counts>& results) {
    Count total;
    std::printf("%-22s %-16s %7s %7s %7s %8s\n", "op", "variant", "cases", "passed", "failed", "skipped");
    for (const OpInfo& op : ops) {
        if (!has_cuda(op)) {
            std::printf("%-22s no CUDA variant\n", op.name.c_str());
            continue;
        }
        for (const auto& [variant, count] : results[op.name]) {
            std::printf("%-22s %-16s %7d %7d %7d %8d\n", op.name.c_str(), variant.c_str(), count.cases,
                        count.passed, count.failed, count.skipped);
            for (const auto& [reason, times] : count.reasons)
                std::printf("    skipped %d: %s\n", times, reason.c_str());
            total.add(count);
        }
    }
    return total;
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + "\"";
}

void write_json(const Options& options, const std::vector<OpInfo>& ops,
                std::map<std::string, Counts>& results, const Count& total) {
    FILE* file = std::fopen(options.json.c_str(), "w");
    if (file == nullptr) throw Error(options.json + ": can't be written");
    const CudaDevices devices = visible_cuda_devices();
    const BuildInfo& build = build_info();
    std::fprintf(file, "{\n  \"commit\": %s,\n  \"dirty\": %s,\n  \"card\": %s,\n",
                 quoted(std::string(build.commit)).c_str(), build.dirty ? "true" : "false",
                 quoted(devices.all.empty() ? "" : devices.all[0].name).c_str());
    std::fprintf(file, "  \"driver_cuda\": \"%d.%d\",\n  \"runtime_cuda\": \"%d.%d\",\n",
                 devices.driver_version / 1000, devices.driver_version % 1000 / 10,
                 devices.runtime_version / 1000, devices.runtime_version % 1000 / 10);
    std::fprintf(file,
                 "  \"passed\": %d,\n  \"failed\": %d,\n  \"skipped\": %d,\n  \"cases\": %d,\n  \"ops\": {",
                 total.passed, total.failed, total.skipped, total.cases);
    const char* comma = "";
    for (const OpInfo& op : ops) {
        std::fprintf(file, "%s\n    %s: {", comma, quoted(op.name).c_str());
        const char* inner = "";
        for (const auto& [variant, count] : results[op.name]) {
            std::fprintf(
                file, "%s\n      %s: {\"cases\": %d, \"passed\": %d, \"failed\": %d, \"skipped\": %d}", inner,
                quoted(variant).c_str(), count.cases, count.passed, count.failed, count.skipped);
            inner = ",";
        }
        std::fprintf(file, "}");
        comma = ",";
    }
    std::fprintf(file, "\n  }\n}\n");
    std::fclose(file);
}

Options parse(int argc, char** argv) {
    Options options;
    const auto value = [&](int& i) -> std::string {
        if (i + 1 >= argc) throw Error(std::string(argv[i]) + " needs a value");
        return argv[++i];
    };
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--op") {
            options.ops.push_back(value(i));
        } else if (word == "--variant") {
            options.variant = value(i);
        } else if (word == "--case") {
            options.part = value(i);
        } else if (word == "--json") {
            options.json = value(i);
        } else if (word == "--child") {
            options.child = value(i);
        } else if (word == "--jobs") {
            options.jobs = std::max(1, std::atoi(value(i).c_str()));
        } else if (word == "--from") {
            options.from = std::atoi(value(i).c_str());
        } else if (word == "--timeout") {
            options.timeout = std::max(1, std::atoi(value(i).c_str()));
        } else if (word == "--list") {
            options.list = true;
        } else if (word == "--bare") {
            options.bare = true;
        } else if (word == "--small") {
            options.small = true;
        } else {
            throw Error(word + ": there is no such option\n" + kHelp);
        }
    }
    return options;
}

std::vector<OpInfo> chosen_ops(const Options& options) {
    std::vector<OpInfo> ops;
    for (OpInfo& op : registry()) {
        bool wanted = options.ops.empty();
        for (const std::string& name : options.ops) wanted = wanted || name == op.name;
        if (wanted) ops.push_back(std::move(op));
    }
    if (ops.empty()) throw Error("there is no such op; --list lists them");
    return ops;
}

int run(const Options& options) {
    if (options.child == "large") return run_child({.name = kLarge}, options);
    std::vector<OpInfo> ops = chosen_ops(options);
    if (!options.child.empty()) return run_child(ops[0], options);
    if (options.list) {
        list(ops, options);
        return 0;
    }
    std::map<std::string, Counts> results;
    if (options.bare) {
        for (const OpInfo& op : ops) {
            if (has_cuda(op)) results[op.name] = OpTest(op, options).run_cases();
        }
    } else {
        results = run_children(ops, options);
        if (whole_run(options))
            ops.push_back({.name = kLarge, .variants = {{"", DeviceKind::Cuda, 0, 0, true}}});
    }
    const Count total = print_table(ops, results);
    std::printf("passed %d failed %d cases %d\n", total.passed, total.failed, total.cases);
    if (!options.json.empty()) write_json(options, ops, results, total);
    return total.failed == 0 && total.passed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        std::fputs(kHelp, stdout);
        return 0;
    }
    try {
        return run(parse(argc, argv));
    } catch (const Error& error) {
        std::fprintf(stderr, "gpu_tests: %s\n", error.what());
        return 2;
    }
}
