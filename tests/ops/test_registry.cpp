// What `moebius info` says of an op's variants.
#include "moebius/ops/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace moebius::ops {
namespace {

constexpr DeviceKind kGpu = DeviceKind::Cuda, kCpu = DeviceKind::Cpu;

const OpInfo kOp{"product",
                 {{"sm100", kGpu, 100, 100, true, true, true},
                  {"sm90", kGpu, 90, 90, true},
                  {"ampere", kGpu, 80, 89, true},
                  {"library", kGpu, 80, 999, false},
                  {"unordered", kGpu, 80, 999, true, false},
                  {"cuda_any", kGpu, 80, 999, true},
                  {"cpu", kCpu, 0, 0, true},
                  {"cpu_naive", kCpu, 0, 0, true}}};

TEST(DescribeVariants, TheStarIsAtTheOneThatRunsAndTheReasonsAreAboveIt) {
    EXPECT_EQ(describe_variants(kOp, kGpu, 90),
              "sm100 (for compute capability 10.0; not yet run on such a card), *sm90, ampere, "
              "library (not in this build), unordered (only if forced: other bits in each run), cuda_any, "
              "cpu, cpu_naive");
    EXPECT_EQ(describe_variants(kOp, kGpu, 120),
              "sm100 (for compute capability 10.0; not yet run on such a card), "
              "sm90 (for compute capability 9.0), ampere (for compute capability 8.0 to 8.9), "
              "library (not in this build), unordered (only if forced: other bits in each run), *cuda_any, "
              "cpu, cpu_naive");
    EXPECT_EQ(describe_variants(kOp, kCpu, 0),
              "sm100 (for a GPU; not yet run on such a card), sm90 (for a GPU), ampere (for a GPU), "
              "library (not in this build), "
              "unordered (for a GPU; only if forced: other bits in each run), cuda_any (for a GPU), *cpu, "
              "cpu_naive");
}

TEST(DescribeVariants, WithoutOneForTheDeviceThereIsNoStar) {
    EXPECT_EQ(
        describe_variants({"late", {{"late", kGpu, 90, 999, true}, {"cpu", kCpu, 0, 0, true}}}, kGpu, 80),
        "late (for compute capability 9.0 and later), cpu (for the CPU)");
    EXPECT_EQ(describe_variants({"absent", {{"absent", kGpu, 80, 999, false}}}, kGpu, 90),
              "absent (not in this build)");
}

TEST(DescribeVariants, EveryOpHasOneForTheCpu) {
    for (const OpInfo& op : registry()) {
        const std::string text = describe_variants(op, kCpu, 0);
        EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 1) << op.name << ": " << text;
    }
}

}  // namespace
}  // namespace moebius::ops
