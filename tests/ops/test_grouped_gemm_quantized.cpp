// What grouped_gemm_quantized refuses; its numbers are tested by its cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
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

}  // namespace
}  // namespace moebius::ops
