// The funnel's choice among an op's variants.
#include "moebius/ops/variant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"

namespace moebius::ops {
namespace {

struct NoteArgs {
    std::string* ran;
};
void run_plain(const NoteArgs& a, const Exec&) {
    *a.ran = "plain";
}
void run_loose(const NoteArgs& a, const Exec&) {
    *a.ran = "loose";
}
constexpr Variant<NoteArgs> kNote[] = {
    {"loose", DeviceKind::Cpu, 0, 0, always<NoteArgs>, run_loose, false},
    {"plain", DeviceKind::Cpu, 0, 0, always<NoteArgs>, run_plain},
};

// What ran under these forced names.
std::string ran(const ForcedVariants* forced, VariantLog* log = nullptr) {
    const Device device = Device::cpu();
    std::string name;
    dispatch<NoteArgs>("note", kNote, {&name}, {.device = &device, .forced = forced, .log = log}, {});
    return name;
}

TEST(Variant, WhatDoesNotRepeatRunsOnlyWhereItIsForced) {
    VariantLog log;
    EXPECT_EQ(ran(nullptr, &log), "plain");
    ASSERT_EQ(log.entries().size(), 1u);
    EXPECT_THAT(log.entries()[0].passed_over,
                testing::ElementsAre("loose: gives other bits in each run: only with kernels.note = loose"));
    const ForcedVariants forced{{"note", "loose"}};
    EXPECT_EQ(ran(&forced), "loose");
    EXPECT_TRUE(describe<NoteArgs>(kNote)[1].repeats);
    EXPECT_FALSE(describe<NoteArgs>(kNote)[0].repeats);
}

TEST(Variant, AForcedNameThatIsNotThere) {
    const ForcedVariants forced{{"note", "loos"}};
    EXPECT_THAT(
        [&] { ran(&forced); },
        testing::ThrowsMessage<Error>(testing::HasSubstr("kernels.note = loos: there is no such variant")));
}

}  // namespace
}  // namespace moebius::ops
