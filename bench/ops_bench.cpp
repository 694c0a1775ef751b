// Times every benchmark case of the operations.
#include <fmt/format.h>

#include "bench/bench.h"
#include "moebius/base/error.h"
#include "moebius/ops/case.h"

namespace moebius::bench {
namespace {

// Shapes of a case's tensors, "a": [8192, 256].
Json shapes(const ops::Case& c) {
    Json json = Json::object();
    for (const ops::TensorSpec& spec : c.tensors) {
        Json shape = Json::array();
        for (int axis = 0; axis < spec.shape.rank(); ++axis) shape.push_back(spec.shape[axis]);
        json[spec.name] = std::move(shape);
    }
    return json;
}

// One case; throws Error if it doesn't compute what it must.
Json measure(const ops::Case& c, const Exec& exec, int runs, bool checked) {
    const std::string label = c.op + "/" + c.name;
    if (checked) {
        const ops::CheckResult result = ops::check(c, c.run, exec);
        if (!result.passed) throw Error(fmt::format("{}: {}", label, result.message));
    }
    VariantLog log;
    Exec counted = exec;
    counted.log = &log;
    Cost cost;
    counted.cost = &cost;
    ops::time_case(c, counted, 1);
    std::string variant;
    double most = -1;
    for (const VariantLog::Entry& entry : log.entries()) {
        if (entry.op == c.op && entry.cost.flops + entry.cost.bytes > most) {
            most = entry.cost.flops + entry.cost.bytes;
            variant = entry.chosen;
        }
    }
    // time_case runs the case that often besides the runs that it counts.
    constexpr double kRunsCounted = 3;
    const ops::Timing timing = ops::time_case(c, exec, runs);
    return {{"case", label},
            {"dtype", name(c.dtype)},
            {"variant", variant},
            {"seconds", timing.samples},
            {"flops", cost.flops / kRunsCounted},
            {"bytes", cost.bytes / kRunsCounted},
            {"checked", checked},
            {"shapes", shapes(c)}};
}

}  // namespace

int run_ops(Options options) {
    const auto threads = static_cast<int>(options.number("threads", 2));
    const auto runs = static_cast<int>(options.number("runs", 10));
    const bool checked = options.number("check", 1) != 0;
    options.done(1);
    const std::string filter = options.rest().empty() ? "" : options.rest()[0];
    if (threads < 1 || runs < 1) throw Error("--threads and --runs are at least 1");
    Machine machine(threads);
    print({{"machine", machine_json(machine)}});
    ReferenceProduct product(machine.exec);
    int found = 0;
    for (const ops::Case& c : ops::all_cases()) {
        if (!c.bench || c.large || (c.op + "/" + c.name).find(filter) == std::string::npos) continue;
        ++found;
        Json line = measure(c, machine.exec, runs, checked);
        line["sgemm_seconds"] = product.median_seconds(3);
        print(line);
    }
    if (found == 0) throw Error(fmt::format("no benchmark case has '{}' in its name", filter));
    return 0;
}

}  // namespace moebius::bench
