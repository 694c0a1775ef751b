// gpu_tests: every op's cases on a GPU, through every CUDA variant of the op.
//
// A case passes if its outputs are right (the tolerances of the CPU's tests), nothing else was written, the
// scratch was given back and nothing was written around it, and a second run and one replayed from a CUDA
// graph give the same bits. Mutants must be found. Each op runs in processes of its own: an error of the
// device ends only that op, as a failure.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "tests/gpu/command_line.h"
#include "tests/gpu/op_test.h"

using namespace moebius;
using namespace moebius::gpu_tests;

namespace {

constexpr const char* kHelp =
    "gpu_tests [--op NAME]… [--variant NAME] [--case PART] [--jobs N] [--timeout SECONDS] [--json FILE] "
    "[--list]\n"
    "          [--bare] [--small] [--own]\n"
    "  --case PART   only cases whose name contains PART\n"
    "  --jobs N      ops tested at one time (default 4)\n"
    "  --timeout S   seconds without progress after which an op's process is ended as hung (default 120)\n"
    "  --list        ops, their CUDA variants and numbers of cases\n"
    "  --bare        for compute-sanitizer: one process, memory of its own for every tensor, no graphs, no "
    "mutants\n"
    "  --small       with --bare: at most 6 cases a variant, the smallest of each group\n"
    "  --own         no variants whose kernels are a library's\n";

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

// ---- A process an op: the child writes its counts as lines after each case, the parent adds them up.

int run_child(const OpInfo& op, const Options& options) {
    tell_parent();
    try {
        OpTest test(op, options);
        print_counts(options.child == "mutants" ? test.run_mutants()
                     : options.child == "large" ? test.run_large()
                     : options.child == "mx"    ? test.run_mx()
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
    if (whole_run(options)) {
        waiting.push_back({kLarge, "large"});
        waiting.push_back({kMx, "mx"});
    }
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
    CommandLine line(kHelp);
    line.list("--op", options.ops);
    line.text("--variant", options.variant);
    line.text("--case", options.part);
    line.text("--json", options.json);
    line.number("--jobs", options.jobs, 1);
    line.number("--timeout", options.timeout, 1);
    line.flag("--list", options.list);
    line.flag("--bare", options.bare);
    line.flag("--small", options.small);
    line.flag("--own", options.own);
    // Of a process that this program starts itself.
    line.text("--child", options.child);
    line.number("--from", options.from, 0);
    line.parse(argc, argv);
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
    if (options.child == "mx") return run_child({.name = kMx}, options);
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
        if (whole_run(options)) {
            for (const char* name : {kLarge, kMx})
                ops.push_back({.name = name, .variants = {{"", DeviceKind::Cuda, 0, 0, true}}});
        }
    }
    const Count total = print_table(ops, results);
    std::printf("passed %d failed %d cases %d\n", total.passed, total.failed, total.cases);
    if (!options.json.empty()) write_json(options, ops, results, total);
    return total.failed == 0 && total.passed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    return run_main(argc, argv, "gpu_tests", kHelp, [&] { return run(parse(argc, argv)); });
}
