// What grouped_gemm_quantized refuses; its numbers are tested by its cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"
#include "moebius/tensor/quantized.h"

namespace moebius::ops {
namespace {

struct Product {
    Device device = Device::cpu();
    HostArena pool;
    ThreadPool threads{1};
    Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    Quantized x, w;
    Tensor out;
    std::vector<int64_t> sizes{3, 2};

    explicit Product(ScaleKind scale = ScaleKind::Block128) {
        x = Quantized::empty("x", {.scale = scale, .column = true, .matrix = {5, 32, 2, false}}, exec);
        w = Quantized::empty("w", {.scale = scale, .column = true, .matrix = {16, 32, 2, true}}, exec);
        out = Tensor::empty("out", {5, 16}, DType::F32, exec);
        for (const Quantized* q : {&x, &w}) {
            for (const Operand& operand : {q->row(), q->column()}) {
                fill_zero(operand.data, exec);
                fill_zero(operand.scale, exec);
            }
        }
    }
    GroupedGemmQuantizedArgs args() {
        return {.a = x.row(), .b = w.row(), .out = out, .split_sizes = View(sizes.data(), DType::I64, {2})};
    }
    std::string refusal(const GroupedGemmQuantizedArgs& args) {
        try {
            grouped_gemm_quantized(args, exec);
        } catch (const Error& error) {
            return error.what();
        }
        return "accepted";
    }
};

TEST(GroupedGemmQuantized, TakesItsOwn) {
    Product p;
    EXPECT_EQ(p.refusal(p.args()), "accepted");
}

TEST(GroupedGemmQuantized, NamesWhatDoesNotFit) {
    Product p, mx(ScaleKind::MX32);
    GroupedGemmQuantizedArgs args = p.args();
    args.b = mx.w.row();
    EXPECT_THAT(p.refusal(args), testing::HasSubstr("f8e4m3 with block128 and f8e4m3 with mx32"));
    args = p.args();
    args.b = p.w.column();
    EXPECT_THAT(p.refusal(args), testing::HasSubstr("shapes don't fit"));
    args = mx.args();
    args.a.layout = ScaleLayout::Swizzled;
    EXPECT_THAT(p.refusal(args), testing::HasSubstr("compact scales"));
    args = p.args();
    args.out.dtype = DType::I32;
    EXPECT_THAT(p.refusal(args), testing::HasSubstr("f32 or bf16, not i32"));
    p.sizes = {3, 3};
    EXPECT_THAT(p.refusal(p.args()), testing::HasSubstr("more than the 5 rows"));
    p.sizes = {-1, 3};
    EXPECT_THAT(p.refusal(p.args()), testing::HasSubstr("negative"));
}

TEST(GroupedGemmQuantized, TransposedOperandsHoldOnlyWholeBlocks) {
    Product p;
    const Tensor dw = Tensor::empty("dw", {2, 32, 32}, DType::F32, p.exec);
    GroupedGemmQuantizedArgs args{.kind = GemmKind::Wgrad,
                                  .a = p.x.column(),
                                  .b = p.x.column(),
                                  .out = dw,
                                  .split_sizes = View(p.sizes.data(), DType::I64, {2})};
    EXPECT_EQ(p.refusal(args), "accepted");
    p.sizes = {129, 2};  // three blocks of 128, of two
    EXPECT_THAT(p.refusal(args), testing::HasSubstr("sum to 384, more than the 256"));
}

// Shapes and addresses alone: nothing is read.
struct MxProduct {
    GemmKind kind = GemmKind::Forward;
    int64_t experts = 2, rows = 100, n = 48, k = 80;
    DType b = DType::F8E4M3, out = DType::BF16;

    static Operand operand(DType element, Direction direction, const MatrixShape& matrix) {
        const Format format = make_format(element, ScaleKind::MX32, direction, matrix.weight, true);
        const OperandShapes shapes = operand_shapes(format, direction, matrix);
        return {.data = View(nullptr, element, shapes.data),
                .scale = View(nullptr, shapes.scale_dtype, shapes.scale),
                .format = format};
    }
    GroupedGemmQuantizedArgs args() const {
        const bool forward = kind == GemmKind::Forward, wgrad = kind == GemmKind::Wgrad;
        const MatrixShape x{rows, k, experts, false}, y{rows, n, experts, false}, w{n, k, experts, true};
        const Shape shape = forward ? Shape{rows, n} : wgrad ? Shape{experts, n, k} : Shape{rows, k};
        return {.kind = kind,
                .a = operand(DType::F8E5M2, wgrad ? Direction::Column : Direction::Row, forward ? x : y),
                .b = operand(b, forward ? Direction::Row : Direction::Column, wgrad ? x : w),
                .out = View(nullptr, out, shape),
                .split_sizes = View(nullptr, DType::I64, {experts})};
    }
    std::string refusal() const { return sm90::why_not_bf16(args(), {}); }
};

TEST(GroupedGemmQuantized, HopperTakesMxOperands) {
    for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
        EXPECT_EQ(MxProduct{.kind = kind}.refusal(), "");
        EXPECT_EQ((MxProduct{.kind = kind, .out = DType::F32}.refusal()), "");
        EXPECT_EQ((MxProduct{.kind = kind, .b = DType::F8E5M2}.refusal()), "");
    }
}

TEST(GroupedGemmQuantized, HopperSaysWhyItDoesNotTakeMxOperands) {
    EXPECT_EQ(MxProduct{.k = 88}.refusal(), "a has 88 columns, not a multiple of 16");
    EXPECT_EQ((MxProduct{.kind = GemmKind::Dgrad, .k = 88}.refusal()),
              "b has 88 columns, not a multiple of 16");
    EXPECT_EQ(MxProduct{.n = 44}.refusal(), "out has 44 columns, not a multiple of 8");
    EXPECT_EQ(MxProduct{.k = 0}.refusal(), "a has no columns");
    EXPECT_EQ(MxProduct{.experts = 513}.refusal(), "has 513 experts, more than 512");

    GroupedGemmQuantizedArgs args = MxProduct{}.args();
    args.beta = 1;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "adds to what is there in wgrad only");
    args = MxProduct{.kind = GemmKind::Wgrad}.args();
    args.beta = 1;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "");
}

TEST(GroupedGemmQuantized, OnHopperEachKindOfScalesHasItsVariant) {
    GroupedGemmQuantizedArgs args = MxProduct{}.args();
    EXPECT_EQ(sm90::why_not(args, {}), "takes tensor and block128 scales, not mx32");
    args.a.format.scale = args.b.format.scale = ScaleKind::Block128;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "takes mx32 scales, not block128");
}

// What is widened before the product runs, in how many segments.
TEST(GroupedGemmQuantized, MxOperandsAreWidenedWhileHopperMultiplies) {
    const auto plan = [](const MxProduct& product) { return sm90::plan_widening(product.args()); };
    const sm90::WideningPlan large = plan({.experts = 8, .rows = 32768, .n = 28672, .k = 4096});
    EXPECT_EQ(large.each, 1);
    EXPECT_EQ(large.segments, 8);
    EXPECT_EQ(large.at_once, 1);
    const sm90::WideningPlan small = plan({.experts = 64, .rows = 131072, .n = 2048, .k = 2048});
    EXPECT_EQ(small.each, 4);
    EXPECT_EQ(small.segments, 16);
    EXPECT_EQ(small.at_once, 1);
    // 512 rows an expert: the product is too short for the idle warps.
    EXPECT_EQ(plan({.experts = 128, .rows = 65536, .n = 1536, .k = 2048}).at_once, 8);
    const sm90::WideningPlan dense = plan({.experts = 1, .rows = 16384, .n = 4096, .k = 4096});
    EXPECT_EQ(dense.segments, 1);
    EXPECT_EQ(dense.at_once, 1);
    const sm90::WideningPlan uneven = plan({.experts = 33, .rows = 64, .n = 48, .k = 80});
    EXPECT_EQ(uneven.each, 3);
    EXPECT_EQ(uneven.segments, 11);
    EXPECT_EQ(uneven.at_once, 11);
    EXPECT_EQ(plan({.experts = 2, .rows = 0}).at_once, 2);
}

// 8x7B's products of 32,768 rows: 1.1 to 3.5 GiB of operands in bf16.
TEST(GroupedGemmQuantized, ScratchOfLargeMxOperandsIsBounded) {
    constexpr int64_t kMiB = 1 << 20, kH = 4096, kI = 14336;
    const auto large = [](GemmKind kind, int64_t n, int64_t k) {
        return MxProduct{.kind = kind, .experts = 8, .rows = 32768, .n = n, .k = k}.args();
    };
    for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
        const GroupedGemmQuantizedArgs gate_up = large(kind, 2 * kI, kH);
        EXPECT_LE(sm90::plan_ring(gate_up).bytes(), 616 * kMiB);
        EXPECT_THAT(sm90::why_not_bf16(gate_up, {}), testing::HasSubstr("more than 512; rings need"));
        EXPECT_EQ(sm90::why_not_bf16_ring(gate_up, {}), "");
        if (kind == GemmKind::Wgrad) continue;
        EXPECT_LE(sm90::plan_ring(large(kind, kH, kI)).bytes(), 352 * kMiB);
    }
    // Of the down weight's gradient the columns' side is the larger, and there is no ring of it.
    EXPECT_EQ(sm90::why_not_bf16(large(GemmKind::Wgrad, kH, kI), {}), "");
    const sm90::RingPlan dgrad = sm90::plan_ring(large(GemmKind::Dgrad, 2 * kI, kH));
    EXPECT_EQ(dgrad.band, 4);
    EXPECT_EQ(dgrad.slots, 6);
    EXPECT_EQ(dgrad.b_slots, 2);
    EXPECT_EQ(dgrad.at_once, 4);
    // Of many small experts a card takes several at a time.
    EXPECT_EQ(sm90::why_not_bf16(MxProduct{.experts = 128, .rows = 65536, .n = 1536, .k = 2048}.args(), {}),
              "");
    EXPECT_THAT(sm90::why_not_bf16(MxProduct{.experts = 64, .rows = 131072, .n = 2048, .k = 2048}.args(), {}),
                testing::HasSubstr("would hold both operands in bf16, 1024 MiB"));
    // Any routing of few rows has a segment each.
    EXPECT_EQ(sm90::plan_ring(MxProduct{.experts = 40, .rows = 64, .n = 48, .k = 80}.args()).segments, 41);
    EXPECT_EQ(sm90::plan_ring(MxProduct{.experts = 1, .rows = 0}.args()).b_slots, 1);
}

// Column-wise scales are read as vectors, of Dgrad's weight and of both of Wgrad's operands; row-wise ones
// lie anywhere.
TEST(GroupedGemmQuantized, HopperWantsColumnwiseMxScalesAligned) {
    void* const off = reinterpret_cast<void*>(uintptr_t{8});
    const std::string text = "scale does not begin at a multiple of 16 bytes";
    GroupedGemmQuantizedArgs args = MxProduct{}.args();
    args.a.scale.data = args.b.scale.data = off;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "");
    args = MxProduct{.kind = GemmKind::Dgrad}.args();
    args.a.scale.data = off;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "");
    args.b.scale.data = off;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "b's " + text);
    args = MxProduct{.kind = GemmKind::Wgrad}.args();
    args.a.scale.data = off;
    EXPECT_EQ(sm90::why_not_bf16(args, {}), "a's " + text);
}

}  // namespace
}  // namespace moebius::ops
