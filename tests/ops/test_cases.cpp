// Every case of every op: against its reference, along its gradient, with 1 to 16 threads, and its mutants.
#include <gtest/gtest.h>

#include <set>

#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"

namespace moebius::ops {
namespace {

class Cases : public testing::TestWithParam<Case> {
  protected:
    Cases() : device_(Device::cpu_from_environment()), threads_(2) {}
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }

    Device device_;
    HostArena pool_;
    ThreadPool threads_;
};

TEST_P(Cases, Correct) {
    const CheckResult result = check(GetParam(), GetParam().run, exec());
    EXPECT_TRUE(result.passed) << result.message;
    EXPECT_EQ(pool_.report().current_bytes, 0) << "scratch was not given back";
}

TEST_P(Cases, SameBitsForAnyThreadCount) {
    const CheckResult result = check_threads(GetParam(), exec(), {1, 2, 3, 5, 8, 16});
    EXPECT_TRUE(result.passed) << result.message;
}

TEST_P(Cases, Gradient) {
    if (!GetParam().gradient) return;
    const CheckResult result = check_gradient(GetParam());
    EXPECT_TRUE(result.passed) << result.message;
}

TEST_P(Cases, MutantsAreCaught) {
    for (const Mutant& mutant : GetParam().mutants) {
        EXPECT_FALSE(check(GetParam(), mutant.run, exec()).passed) << "mutant lives: " << mutant.name;
    }
}

std::vector<Case> small_cases() {
    std::vector<Case> cases;
    for (Case& c : all_cases()) {
        if (!c.bench) cases.push_back(std::move(c));
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Ops, Cases, testing::ValuesIn(small_cases()), [](const auto& info) {
    std::string text = info.param.op + "__" + info.param.name;
    for (char& c : text) {
        if (!isalnum(static_cast<unsigned char>(c))) c = '_';
    }
    return text;
});

TEST(Registry, EveryOpHasCasesAndAMutant) {
    std::set<std::string> with_cases, with_mutants;
    for (const Case& c : all_cases()) {
        with_cases.insert(c.op);
        if (!c.mutants.empty()) with_mutants.insert(c.op);
    }
    for (const OpInfo& op : registry()) {
        EXPECT_TRUE(with_cases.count(op.name)) << op.name << " has no case";
        EXPECT_TRUE(with_mutants.count(op.name)) << op.name << " has no mutant";
    }
}

TEST(Registry, CaseNamesAreUnique) {
    std::set<std::string> seen;
    for (const Case& c : all_cases())
        EXPECT_TRUE(seen.insert(c.op + "/" + c.name).second) << c.op << "/" << c.name;
}

}  // namespace

void PrintTo(const Case& c, std::ostream* out) {
    *out << c.op << "/" << c.name;
}

}  // namespace moebius::ops
