// Times every operation: each dtype, each variant of the CPU.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "bench/bench.h"
#include "moebius/base/error.h"
#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"

namespace moebius::bench {
namespace {

using CaseList = std::vector<const ops::Case*>;

int64_t elements(const ops::Case& c) {
    int64_t total = 0;
    for (const ops::TensorSpec& spec : c.tensors) total += spec.shape.numel();
    return total;
}

// An operation's cases of one dtype: what is timed, and what the tests compare with plain loops, largest
// first.
struct Cases {
    CaseList timed, small;
};

// A scalar operation has no case of a benchmark's size: the tests' largest one is timed.
std::map<DType, Cases> cases_of(const std::string& op, const std::vector<ops::Case>& all) {
    std::map<DType, Cases> by_type;
    for (const ops::Case& c : all) {
        if (c.op != op || c.large) continue;
        Cases& cases = by_type[c.dtype];
        (c.bench ? cases.timed : cases.small).push_back(&c);
    }
    for (auto& [dtype, cases] : by_type) {
        std::stable_sort(cases.small.begin(), cases.small.end(),
                         [](const auto* a, const auto* b) { return elements(*a) > elements(*b); });
        if (cases.timed.empty()) cases.timed.push_back(cases.small.front());
    }
    return by_type;
}

// Of the CPU and in this build, in the order of the operation's table.
std::vector<std::string> variants_of(const ops::OpInfo& op) {
    std::vector<std::string> names;
    for (const ops::VariantInfo& variant : op.variants) {
        if (variant.kind == DeviceKind::Cpu && variant.in_build) names.push_back(variant.name);
    }
    return names;
}

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

std::string label(const ops::Case& c) {
    return c.op + "/" + c.name;
}

struct Limits {
    int runs = 10;
    double seconds = 1e9;  // of one case
};

// What a case's name begins with: the kind of a product, the scales of a quantizer, else its dtype or shape.
std::string kind_of(const ops::Case& c) {
    return c.name.substr(0, c.name.find('.'));
}

// Compares the variant with plain loops, in the largest of the tests' cases that it takes, one of that kind
// if there is one: a reference of the timed shapes would take minutes, and the tests compare all cases.
// Returns the case's name.
std::string check(CaseList small, const std::string& kind, const Exec& exec) {
    std::stable_partition(small.begin(), small.end(), [&](const auto* c) { return kind_of(*c) == kind; });
    for (const ops::Case* c : small) {
        ops::PreparedCase prepared(*c, exec.threads);
        if (!prepared.why_not(c->run, exec).empty()) continue;
        const ops::CheckResult result = prepared.check(c->run, exec);
        if (!result.passed) throw Error(fmt::format("{}: {}", label(*c), result.message));
        return label(*c);
    }
    throw Error("no case of the tests takes this variant");
}

Json measure(const ops::Case& c, const std::string& variant, Exec exec, const Limits& limits) {
    VariantLog log;
    Cost cost;
    exec.log = &log;
    exec.cost = &cost;
    const ops::Timing timing = ops::time_case(c, exec, limits.runs, 0, limits.seconds);
    for (const VariantLog::Entry& entry : log.entries()) {
        if (entry.op == c.op && entry.chosen != variant)
            throw Error(fmt::format("{}: {} ran, not {}", label(c), entry.chosen, variant));
    }
    return {{"case", label(c)},
            {"dtype", name(c.dtype)},
            {"variant", variant},
            {"seconds", timing.samples},
            {"flops", cost.flops / ops::kWarmUpRuns},
            {"bytes", cost.bytes / ops::kWarmUpRuns},
            {"shapes", shapes(c)}};
}

}  // namespace

int run_ops(Options options) {
    const auto threads = static_cast<int>(options.number("threads", 2));
    const auto milliseconds = static_cast<double>(options.number("milliseconds", 500));
    const Limits limits{.runs = static_cast<int>(options.number("runs", 10)), .seconds = milliseconds / 1e3};
    options.done(1);
    const std::string filter = options.rest().empty() ? "" : options.rest()[0];
    if (threads < 1 || limits.runs < 1) throw Error("--threads and --runs are at least 1");
    Machine machine(threads);
    print({{"machine", machine_json(machine)}});
    ReferenceProduct product(machine.exec);
    const std::vector<ops::Case> all = ops::all_cases();
    int found = 0;
    for (const ops::OpInfo& op : ops::registry()) {
        double sgemm_seconds = 0;  // once an operation
        for (const auto& [dtype, cases] : cases_of(op.name, all)) {
            const std::vector<std::string> variants = variants_of(op);
            for (const std::string& variant : variants) {
                const ForcedVariants forced{{op.name, variant}};
                Exec exec = machine.exec;
                exec.forced = &forced;
                // Variants below the first are slower ones, to compare with: one case is enough.
                CaseList timed = cases.timed;
                if (variant != variants.front()) timed.resize(1);
                std::map<std::string, std::string> checked;  // kind → the case that was compared
                for (const ops::Case* c : timed) {
                    if (label(*c).find(filter) == std::string::npos) continue;
                    std::string& by = checked[kind_of(*c)];
                    if (by.empty()) by = check(cases.small, kind_of(*c), exec);
                    if (sgemm_seconds == 0) sgemm_seconds = product.median_seconds(3);
                    Json line = measure(*c, variant, exec, limits);
                    line["checked"] = by;
                    line["sgemm_seconds"] = sgemm_seconds;
                    print(line);
                    ++found;
                }
            }
        }
    }
    if (found == 0) throw Error(fmt::format("no case has '{}' in its name", filter));
    return 0;
}

}  // namespace moebius::bench
