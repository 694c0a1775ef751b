// moebius_kernel_bench: times the benchmark cases of the operations on a GPU, with nothing but CUDA and fmt
// to build it. A line a case; with --json also a JSON object a line into a file.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"
#include "moebius/runtime/stream.h"
#include "tests/gpu/command_line.h"

using namespace moebius;
using namespace moebius::ops;

namespace {

constexpr const char* kHelp =
    "moebius_kernel_bench [FILTER] [--variant NAME] [--all-variants] [--small] [--runs N] [--warm S] "
    "[--check FLOPS] [--json FILE] [--list]\n"
    "  FILTER          cases whose \"op/name\" contains it\n"
    "  --variant NAME  through this variant of the case's op\n"
    "  --all-variants  through each CUDA variant that takes the case\n"
    "  --small         also the cases of the CPU's benchmark\n"
    "  --runs N        runs that count (default 20)\n"
    "  --warm S        each case runs S seconds before those (default 0)\n"
    "  --check FLOPS   cases up to so many operations are compared with their reference first (default "
    "2e9)\n";

struct Options {
    std::string filter, variant, json;
    bool all_variants = false, small = false, list = false;
    int runs = 20;
    double check = 2e9, warm = 0;
};

Options parse(int argc, char** argv) {
    Options options;
    gpu_tests::CommandLine line(kHelp);
    line.word(options.filter);
    line.text("--variant", options.variant);
    line.flag("--all-variants", options.all_variants);
    line.flag("--small", options.small);
    line.flag("--list", options.list);
    line.number("--runs", options.runs, 1);
    line.number("--warm", options.warm);
    line.number("--check", options.check);
    line.text("--json", options.json);
    line.parse(argc, argv);
    return options;
}

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options),
          device_(Device::cuda(0)),
          stream_(device_),
          pool_(make_arena(device_)),
          threads_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {
        exec_ = {.device = &device_, .stream = stream_, .pool = pool_.get(), .threads = &threads_};
        if (!options.json.empty()) {
            json_ = std::fopen(options.json.c_str(), "w");
            if (json_ == nullptr) throw Error(options.json + ": can't be written");
        }
        const CudaDevices devices = visible_cuda_devices();
        toolkit_ =
            fmt::format("CUDA {}.{}", devices.runtime_version / 1000, devices.runtime_version % 1000 / 10);
        fmt::print("{} (compute capability {}, {} SMs), driver for CUDA {}.{}, moebius {}\n",
                   device_.description(), device_.cc(), device_.sm_count(), devices.driver_version / 1000,
                   devices.driver_version % 1000 / 10, build_info().text);
        fmt::print("{:<64} {:<14} {:>11} {:>11} {:>9} {:>8}  {}\n", "case", "variant", "median us",
                   "least us", "TFLOP/s", "GB/s", "checked");
    }
    ~Bench() {
        if (json_) std::fclose(json_);
    }

    // The number of lines.
    int run(const Case& c) {
        std::vector<std::string> variants{options_.variant};
        if (options_.all_variants) {
            variants.clear();
            for (const OpInfo& op : registry()) {
                for (const VariantInfo& v : op.variants) {
                    if (op.name == c.op && v.kind == DeviceKind::Cuda && v.in_build)
                        variants.push_back(v.name);
                }
            }
        }
        int lines = 0;
        for (const std::string& variant : variants) lines += run(c, variant) ? 1 : 0;
        return lines;
    }

  private:
    bool run(const Case& c, const std::string& variant) {
        const std::string label = c.op + "/" + c.name;
        const ForcedVariants forced{{c.op, variant}};
        Exec exec = exec_;
        if (!variant.empty()) exec.forced = &forced;
        // Choice and cost, from a dry run.
        VariantLog log;
        Cost cost;
        const std::string reason = dry(c, exec, log, cost);
        if (!reason.empty()) {
            fmt::print("{:<64} {:<14} skipped: {}\n", label, variant, reason.substr(0, reason.find('\n')));
            std::fflush(stdout);
            return false;
        }
        std::string chosen = variant;
        for (const VariantLog::Entry& entry : log.entries()) {
            if (entry.op == c.op) chosen = entry.chosen;
        }
        std::string checked = "no: too large";
        // What only moves bytes has few operations, and a reference that takes as long.
        if (cost.flops <= options_.check && cost.bytes <= options_.check / 16) {
            const CheckResult result = check(c, c.run, exec);
            if (!result.passed) throw Error(fmt::format("{} by {}: {}", label, chosen, result.message));
            checked = "yes";
        }
        const Timing timing = time_case(c, exec, options_.runs, options_.warm);
        const double tflops = cost.flops / timing.median * 1e-12, gbs = cost.bytes / timing.median * 1e-9;
        fmt::print("{:<64} {:<14} {:>11.2f} {:>11.2f} {:>9.1f} {:>8.0f}  {}{}\n", label, chosen,
                   timing.median * 1e6, timing.least * 1e6, tflops, gbs, checked,
                   timing.no_graph.empty() ? "" : "; not in a graph: " + timing.no_graph);
        std::fflush(stdout);
        if (json_) {
            fmt::print(json_,
                       "{{\"case\": \"{}\", \"variant\": \"{}\", \"dtype\": \"{}\", \"card\": \"{}\", "
                       "\"toolkit\": \"{}\", \"commit\": \"{}\", \"dirty\": {}, ",
                       label, chosen, name(c.dtype), device_.description(), toolkit_, build_info().commit,
                       build_info().dirty);
            fmt::print(json_,
                       "\"median_seconds\": {:.6e}, \"least_seconds\": {:.6e}, \"most_seconds\": {:.6e}, "
                       "\"runs\": {}, \"samples\": [{:.6e}], \"flops\": {:.6e}, \"bytes\": {:.6e}, "
                       "\"checked\": {}, \"graph\": {}}}\n",
                       timing.median, timing.least, timing.most, options_.runs,
                       fmt::join(timing.samples, ", "), cost.flops, cost.bytes, checked == "yes",
                       timing.no_graph.empty());
            std::fflush(json_);
        }
        return true;
    }

    // "" or why no variant takes it.
    std::string dry(const Case& c, const Exec& exec, VariantLog& log, Cost& cost) {
        Exec dry = exec;
        dry.dry = true;
        dry.log = &log;
        dry.cost = &cost;
        CountingPool pool(kCudaAlignment);
        dry.pool = &pool;
        Views views;
        for (const TensorSpec& spec : c.tensors) {
            View view(pool.allocate("case", 0, {}), spec.dtype, spec.shape);
            if (spec.row_padding > 0) view.stride[0] += spec.row_padding;
            views.views[spec.name] = view;
        }
        try {
            c.run(views, dry);
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    }

    const Options& options_;
    Device device_;
    OwnedStream stream_;
    std::unique_ptr<Arena> pool_;
    ThreadPool threads_;
    Exec exec_;
    std::string toolkit_;
    std::FILE* json_ = nullptr;
};

int run(const Options& options) {
    std::vector<Case> cases;
    for (Case& c : all_cases()) {
        const bool wanted = c.bench && (c.large || options.small);
        if (wanted && (c.op + "/" + c.name).find(options.filter) != std::string::npos)
            cases.push_back(std::move(c));
    }
    if (options.list) {
        for (const Case& c : cases) fmt::print("{}/{}\n", c.op, c.name);
        return 0;
    }
    if (cases.empty()) throw Error(fmt::format("no benchmark case has '{}' in its name", options.filter));
    Bench bench(options);
    int lines = 0;
    for (const Case& c : cases) lines += bench.run(c);
    return lines > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    return gpu_tests::run_main(argc, argv, "moebius_kernel_bench", kHelp,
                               [&] { return run(parse(argc, argv)); });
}
