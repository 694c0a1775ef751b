// Every case of every op: against its reference, along its gradient, with 1 to 16 threads, and its mutants.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "moebius/ops/case.h"
#include "moebius/ops/registry.h"

namespace moebius::ops {
namespace {

// Op × variant × dtype × case group, with the number of cases that ran, for tests/matrix.txt: CI compares it.
// A variant that cannot run here is listed with the reason. Written at the end to the file that
// MOEBIUS_MATRIX names.
class Matrix : public testing::Environment {
  public:
    void ran(const Case& c, const std::string& variant) {
        Row& row = row_of(c, variant);
        ++row.ran;
        row.gradients += c.gradient.has_value();
        row.mutants += static_cast<int>(c.mutants.size());
    }
    void skipped(const Case& c, const std::string& variant, const std::string& reason) {
        Row& row = row_of(c, variant);
        if (row.reason.empty()) row.reason = "  skipped: " + reason;
    }

    void TearDown() override {
        const char* file = std::getenv("MOEBIUS_MATRIX");
        if (file == nullptr) return;
        std::FILE* out = std::fopen(file, "w");
        ASSERT_NE(out, nullptr) << file;
        fmt::print(out, "{:22} {:14} {:6} {:12} {:>6} {:>9} {:>8}\n", "op", "variant", "dtype", "group",
                   "cases", "gradients", "mutants");
        for (const OpInfo& op : registry()) {
            for (const VariantInfo& variant : op.variants) {
                for (const auto& [key, row] : rows_[{op.name, variant.name}]) {
                    fmt::print(out, "{:22} {:14} {:6} {:12} {:6} {:9} {:8}{}\n", op.name, variant.name,
                               key.first, key.second, row.ran, row.gradients, row.mutants, row.reason);
                }
            }
        }
        EXPECT_EQ(std::fclose(out), 0) << file;
    }

  private:
    struct Row {
        int ran = 0, mutants = 0, gradients = 0;
        std::string reason;
    };
    Row& row_of(const Case& c, const std::string& variant) {
        return rows_[{c.op, variant}][{std::string(name(c.dtype)), c.group}];
    }

    std::map<std::pair<std::string, std::string>, std::map<std::pair<std::string, std::string>, Row>> rows_;
};
Matrix& matrix() {
    // GoogleTest owns it.
    static auto* made = static_cast<Matrix*>(testing::AddGlobalTestEnvironment(new Matrix));
    return *made;
}
const Matrix& made_before_main = matrix();

const std::vector<VariantInfo>& variants_of(const std::string& op) {
    static const std::map<std::string, std::vector<VariantInfo>> all = [] {
        std::map<std::string, std::vector<VariantInfo>> by_name;
        for (OpInfo& info : registry()) by_name[info.name] = std::move(info.variants);
        return by_name;
    }();
    return all.at(op);
}

// The CPU at the instruction set that it has best (or MOEBIUS_CPU_ISA names), and at the one that every
// x86-64 has.
std::vector<Device> instruction_sets() {
    std::vector<Device> devices{Device::cpu_from_environment()};
    if (devices[0].isa() != Isa::Baseline) devices.push_back(Device::cpu(name(Isa::Baseline)));
    return devices;
}

class Cases : public testing::TestWithParam<const Case*> {
  protected:
    Cases() : devices_(instruction_sets()), threads_(2) {}
    Exec exec() { return {.device = &devices_[0], .pool = &pool_, .threads = &threads_}; }

    std::vector<Device> devices_;
    HostArena pool_;
    ThreadPool threads_;
};

TEST_P(Cases, Correct) {
    const Case& c = *GetParam();
    PreparedCase prepared(c);
    bool ran = false;
    for (const VariantInfo& variant : variants_of(c.op)) {
        const ForcedVariants forced{{c.op, variant.name}};
        for (const Device& device : devices_) {
            Exec with = exec();
            with.device = &device;
            with.forced = &forced;
            const std::string reason = prepared.why_not(c.run, with);
            if (!reason.empty()) {
                matrix().skipped(c, variant.name, reason);
                break;
            }
            const CheckResult result = prepared.check(c.run, with);
            EXPECT_TRUE(result.passed)
                << variant.name << ", " << name(device.isa()) << ": " << result.message;
            EXPECT_EQ(pool_.report().current_bytes, 0) << variant.name << ": scratch was not given back";
            if (&device == &devices_[0]) matrix().ran(c, variant.name);
            ran = true;
        }
    }
    EXPECT_TRUE(ran) << "no variant runs it here";
}

TEST_P(Cases, SameBitsForAnyThreadCount) {
    const CheckResult result = check_threads(*GetParam(), exec(), {1, 2, 3, 5, 8, 16});
    EXPECT_TRUE(result.passed) << result.message;
}

TEST_P(Cases, Gradient) {
    if (!GetParam()->gradient) return;
    const CheckResult result = check_gradient(*GetParam());
    EXPECT_TRUE(result.passed) << result.message;
}

TEST_P(Cases, MutantsAreCaught) {
    if (GetParam()->mutants.empty()) return;
    PreparedCase prepared(*GetParam());
    for (const Mutant& mutant : GetParam()->mutants) {
        EXPECT_FALSE(prepared.check(mutant.run, exec()).passed) << "mutant lives: " << mutant.name;
    }
}

// Made once: every process of a death test makes them again.
const std::vector<Case>& cases() {
    static const std::vector<Case> all = all_cases();
    return all;
}
std::vector<const Case*> small_cases() {
    std::vector<const Case*> small;
    for (const Case& c : cases()) {
        if (!c.bench) small.push_back(&c);
    }
    return small;
}

INSTANTIATE_TEST_SUITE_P(Ops, Cases, testing::ValuesIn(small_cases()), [](const auto& info) {
    std::string text = info.param->op + "__" + info.param->name;
    for (char& c : text) {
        if (!isalnum(static_cast<unsigned char>(c))) c = '_';
    }
    return text;
});

TEST(Registry, EveryOpHasCasesAndAMutant) {
    std::set<std::string> with_cases, with_mutants;
    for (const Case& c : cases()) {
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
    for (const Case& c : cases())
        EXPECT_TRUE(seen.insert(c.op + "/" + c.name).second) << c.op << "/" << c.name;
}

}  // namespace

void PrintTo(const Case* c, std::ostream* out) {
    *out << c->op << "/" << c->name;
}

}  // namespace moebius::ops
