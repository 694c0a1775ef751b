// Prints the support matrix: op × variant × dtype × case group, with the number of cases that ran and passed.
// CI compares it with tests/matrix.txt. A variant that cannot run here is listed with the reason.
#include <cstdio>
#include <map>
#include <string>
#include <tuple>

#include "moebius/base/error.h"
#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"

using namespace moebius;
using namespace moebius::ops;

namespace {

struct Count {
    int ran = 0, mutants = 0, gradients = 0;
    std::string skipped;
};

}  // namespace

int main() {
    const Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads(2);
    std::map<std::string, std::vector<Case>> by_op;
    for (Case& c : all_cases()) {
        if (!c.bench) by_op[c.op].push_back(std::move(c));
    }
    int failed = 0;
    std::printf("%-22s %-14s %-6s %-12s %6s %9s %8s\n", "op", "variant", "dtype", "group", "cases",
                "gradients", "mutants");
    for (const OpInfo& op : registry()) {
        for (const VariantInfo& variant : op.variants) {
            const ForcedVariants forced{{op.name, variant.name}};
            Exec exec{.device = &device, .pool = &pool, .threads = &threads, .forced = &forced};
            std::map<std::pair<std::string, std::string>, Count> rows;
            for (const Case& c : by_op[op.name]) {
                Count& row = rows[{std::string(name(c.dtype)), c.group}];
                try {
                    const CheckResult result = check(c, c.run, exec);
                    if (!result.passed) {
                        ++failed;
                        std::fprintf(stderr, "FAILED %s/%s with %s: %s\n", op.name.c_str(), c.name.c_str(),
                                     variant.name.c_str(), result.message.c_str());
                    }
                    ++row.ran;
                    row.gradients += c.gradient.has_value();
                    row.mutants += static_cast<int>(c.mutants.size());
                } catch (const Error& error) {
                    if (row.skipped.empty()) row.skipped = error.what();
                }
            }
            for (const auto& [key, row] : rows) {
                std::printf("%-22s %-14s %-6s %-12s %6d %9d %8d%s\n", op.name.c_str(), variant.name.c_str(),
                            key.first.c_str(), key.second.c_str(), row.ran, row.gradients, row.mutants,
                            row.skipped.empty() ? "" : ("  skipped: " + row.skipped).c_str());
            }
        }
    }
    return failed == 0 ? 0 : 1;
}
