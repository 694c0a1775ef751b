// The MX products of Blackwell without such a card: descriptors against values worked out from the PTX ISA's
// tables, and whole products computed by a plain model of what the ISA says of TMA, of copies of scales and
// of the tensor cores, from the descriptors, boxes, words of scales and places in memory that the kernel
// uses.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "moebius/ops/grouped_gemm_quantized/sm100.h"
#include "moebius/tensor/operand.h"
#include "tests/ops/sm100_model.h"

namespace moebius::ops::sm100 {
namespace {

// ---- Against the tables ----------------------------------------------------------------------------------

TEST(GroupedGemmSm100, InstructionDescriptorsAreTheTables) {
    // N >> 3 = 32 from bit 17 on, bit 23 for E8M0, M >> 7 = 1 from bit 27 on.
    EXPECT_EQ(mx_instruction({}), 0x08C00000u);
    EXPECT_EQ(mx_instruction({.columns = 128}), 0x08A00000u);
    EXPECT_EQ(mx_instruction({.a_is_e5m2 = true}), 0x08C00080u);
    EXPECT_EQ(mx_instruction({.b_is_e5m2 = true}), 0x08C00400u);
    EXPECT_EQ(mx_instruction({.a_is_mn_major = true}), 0x08C08000u);
    EXPECT_EQ(mx_instruction({.b_is_mn_major = true}), 0x08C10000u);
    EXPECT_EQ(mx_instruction_at(0x08C00000u, 1), 0x28C00010u);
    EXPECT_EQ(mx_instruction_at(0x08C00000u, 3), 0x68C00030u);
}

TEST(GroupedGemmSm100, SharedDescriptorsAreTheTables) {
    // Address / 16 from bit 0, leading offset / 16 from 16, stride / 16 = 64 from 32, 1 at 46, swizzle 2
    // at 61.
    EXPECT_EQ(k_major_codes(0x0400), 0x4000404000010040u);
    EXPECT_EQ(mn_major_codes(0xC000, 16384), 0x4000404004000C00u);
    EXPECT_EQ(shared_descriptor_at(k_major_codes(0x0400), 32), 0x4000404000010042u);
    // No swizzle, 8 rows of 16 bytes 128 bytes apart.
    EXPECT_EQ(scale_rows(0x30000), 0x0000400800003000u);
}

TEST(GroupedGemmSm100, TensorMemoryHoldsTwoTilesSumsAndTheScales) {
    for (int number = 0; number < 4; ++number) {
        const int here = sum_column(number), next = sum_column(number + 1);
        EXPECT_GE(here, 0);
        EXPECT_LE(here + kTileColumns, kSumColumns);
        // What both have is what the epilogue reads first.
        const int first = std::max(here, next), last = std::min(here, next) + kTileColumns;
        EXPECT_EQ(here + overlap_column(number), first);
        EXPECT_EQ(last - first, kOverlap);
    }
    std::set<int> columns;
    for (int stage = 0; stage < kStages; ++stage) {
        for (int box = 0; box < kBoxes; ++box) {
            for (int i = 0; i < kScaleColumns; ++i) columns.insert(scale_column(stage, box) + i);
        }
    }
    EXPECT_EQ(columns.size(), static_cast<size_t>(kStages * kBoxes * kScaleColumns));
    EXPECT_GE(*columns.begin(), kSumColumns);
    EXPECT_LT(*columns.rbegin(), kTensorMemoryColumns);
    // B's 256 lines: one address, the second 128 right behind the first.
    EXPECT_EQ(scale_column(2, 2), scale_column(2, 1) + kScaleColumns);
}

TEST(GroupedGemmSm100, ScalesOfABoxLieAsInTheTensorCoresLayout) {
    for (int i = 0; i < 128; ++i) {
        for (int j = 0; j < 4; ++j)
            EXPECT_EQ(static_cast<int64_t>(scale_place(i, j)), swizzled_place(i, j, 1));
    }
}

TEST(GroupedGemmSm100, SharedMemoryIsCutAtWholeSwizzles) {
    EXPECT_EQ(kStageBytes % 1024, 0u);
    EXPECT_EQ(kBoxBytes % 1024, 0u);
    EXPECT_EQ(kScalesAt % 128, 0u);
    EXPECT_EQ(kStageScaleBytes % 16, 0u);
    EXPECT_EQ(kStagingAt % 16, 0u);
    EXPECT_EQ(kBarriersAt % 8, 0u);
    EXPECT_EQ(kAddressAt % 4, 0u);
    EXPECT_LT(shared_bytes(512), 227u * 1024);
}

// ---- Whole products ---------------------------------------------------------------------------------------

template <class T>
void expect_products(const Problem& p) {
    Simulation<T> simulation(p);
    simulation.run();
    simulation.compare();
}

TEST(GroupedGemmSm100, ForwardOnTheModelIsTheProduct) {
    expect_products<ForwardTraits>({});
    expect_products<ForwardTraits>(
        {.sizes = {5, 130}, .capacity = 135, .n = 272, .k = 128});  // words of scales
}
TEST(GroupedGemmSm100, GatesAndUpsOnTheModelAreTheProduct) {
    expect_products<GateUpTraits>({.sizes = {130, 0, 9}, .capacity = 150, .n = 2 * 160, .k = 272});
}
TEST(GroupedGemmSm100, DgradOnTheModelIsTheProduct) {
    expect_products<DgradTraits>({});
}
TEST(GroupedGemmSm100, WgradOnTheModelIsTheProduct) {
    expect_products<WgradTraits>({});
    expect_products<WgradTraits>({.sizes = {0, 33, 95, 0}, .capacity = 140, .n = 16, .k = 272});
}

// ---- What it does not take -------------------------------------------------------------------------------

struct Shapes {
    GemmKind kind = GemmKind::Forward;
    int64_t experts = 2, rows = 100, n = 48, k = 80;
    ScaleKind scale = ScaleKind::MX32;

    Operand operand(DType element, Direction direction, const MatrixShape& matrix) const {
        const Format format = make_format(element, scale, direction, matrix.weight, true);
        const OperandShapes shapes = operand_shapes(format, direction, matrix);
        return {.data = View(nullptr, element, shapes.data),
                .scale = View(nullptr, shapes.scale_dtype, shapes.scale),
                .format = format,
                .transposed = shapes.transposed};
    }
    GroupedGemmQuantizedArgs args() const {
        const bool forward = kind == GemmKind::Forward, wgrad = kind == GemmKind::Wgrad;
        const MatrixShape x{rows, k, experts, false}, y{rows, n, experts, false}, w{n, k, experts, true};
        const Shape shape = forward ? Shape{rows, n} : wgrad ? Shape{experts, n, k} : Shape{rows, k};
        return {.kind = kind,
                .a = operand(DType::F8E5M2, wgrad ? Direction::Column : Direction::Row, forward ? x : y),
                .b = operand(DType::F8E5M2, forward ? Direction::Row : Direction::Column, wgrad ? x : w),
                .out = View(nullptr, DType::BF16, shape),
                .split_sizes = View(nullptr, DType::I64, {experts})};
    }
    std::string refusal() const { return why_not(args(), {}); }
};

TEST(GroupedGemmSm100, TakesMxOperandsOfEitherType) {
    for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
        EXPECT_EQ(Shapes{.kind = kind}.refusal(), "");
        GroupedGemmQuantizedArgs args = Shapes{.kind = kind}.args();
        args.beta = 1;
        EXPECT_EQ(why_not(args, {}), "");
    }
}

TEST(GroupedGemmSm100, SaysWhyNot) {
    EXPECT_EQ((Shapes{.scale = ScaleKind::Block128}.refusal()), "takes mx32 scales, not block128");
    EXPECT_EQ((Shapes{.k = 88}.refusal()), "a has 88 columns, not a multiple of 16");
    EXPECT_EQ((Shapes{.kind = GemmKind::Wgrad, .k = 88}.refusal()), "b has 88 columns, not a multiple of 16");
    EXPECT_EQ((Shapes{.n = 44}.refusal()), "out has 44 columns, not a multiple of 8");
    EXPECT_EQ((Shapes{.k = 0}.refusal()), "a has no columns");
    EXPECT_EQ((Shapes{.experts = 513}.refusal()), "has 513 experts, more than 512");
    GroupedGemmQuantizedArgs args = Shapes{}.args();
    args.b.data.data = reinterpret_cast<void*>(uintptr_t{8});
    EXPECT_EQ(why_not(args, {}), "b does not begin at a multiple of 16 bytes");
}

// ---- What reports say ------------------------------------------------------------------------------------

TEST(GroupedGemmSm100, IsForThatCardAloneAndSaysThatItNeverRan) {
    const std::vector<VariantInfo> variants = grouped_gemm_quantized_variants();
    const auto expected = [&](int cc) { return expected_variant(variants, DeviceKind::Cuda, cc); };
    ASSERT_NE(expected(100), nullptr);
    EXPECT_EQ(expected(100)->name, "sm100");
    EXPECT_TRUE(expected(100)->untried);
    for (const int cc : {80, 89, 90, 103, 120}) {
        EXPECT_NE(expected(cc)->name, "sm100") << cc;
        EXPECT_FALSE(expected(cc)->untried) << cc;
    }
    EXPECT_EQ(expected_variant(variants, DeviceKind::Cpu, 0)->name, "cpu");
    EXPECT_EQ(expected(75), nullptr);
}

}  // namespace
}  // namespace moebius::ops::sm100
