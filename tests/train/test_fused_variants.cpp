// What a run says of the variants of its fused operations, and what fusion = strict refuses, of logs made by
// hand.
#include "moebius/train/fused_variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_mlp/sm90_config.h"
#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"
#include "moebius/ops/grouped_mlp_quantized/sm90_config.h"

namespace moebius::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kHopper = 90;
constexpr const char* kOdd = "sm90_fused: intermediate size 1408 is not a multiple of 128";
const std::string kBlackwell = "sm100_fused: needs compute capability 100 to 100, this device has 90";

std::vector<FusedVariant> found(const VariantLog& log, DeviceKind device = DeviceKind::Cuda,
                                int cc = kHopper) {
    return fused_variants(log, ops::registry(), device, cc);
}

std::string refused(const VariantLog& log) {
    try {
        check_strict_fusion(found(log));
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

TEST(FusedVariants, NamesWhatRuns) {
    VariantLog log;
    log.record("gemm", "cublaslt", {"other: is not meant"}, {});
    log.record("grouped_mlp", "sm90_fused", {}, {});
    log.record("grouped_mlp_backward", "sm90_fused", {}, {});
    EXPECT_EQ(describe(found(log)), "grouped_mlp = sm90_fused; grouped_mlp_backward = sm90_fused");
    EXPECT_EQ(refused(log), "");
    EXPECT_EQ(describe(found({})), "");
}

TEST(FusedVariants, APassedOverOneIsSaidWithItsReasonAndRefusedByStrict) {
    VariantLog log;
    log.record("grouped_mlp_quantized", "cuda_composed", {kBlackwell, kOdd}, {});
    log.record("grouped_mlp_quantized_backward", "cuda_composed", {}, {});
    EXPECT_EQ(
        describe(found(log)),
        "grouped_mlp_quantized = cuda_composed, composed of several operations: not sm90_fused: intermediate "
        "size 1408 is not a multiple of 128; grouped_mlp_quantized_backward = cuda_composed, composed of "
        "several operations: no variant for this device fuses them");
    EXPECT_THAT(refused(log), AllOf(HasSubstr("fusion = strict"), HasSubstr("grouped_mlp_quantized runs"),
                                    HasSubstr("sm90_fused: intermediate size 1408 is not a multiple of 128"),
                                    HasSubstr("config_kwargs.intermediate_size"), HasSubstr("fusion=auto"),
                                    HasSubstr("kernels.grouped_mlp_quantized=cuda_composed")));
}

TEST(FusedVariants, OfThePassedOverTheOneForTheRecipeIsNamed) {
    const std::string
        blocks = "sm90_fused: takes scales of kind block128, not tensor",
        given = "sm90_fused_given: intermediate size 1408 is not a multiple of 128",
        amax = "sm90_fused_amax: takes scales of the activation's own amax, not those known before";
    VariantLog log, other;
    log.record("grouped_mlp_quantized", "cuda_composed", {kBlackwell, blocks, given, amax}, {});
    EXPECT_THAT(describe(found(log)), HasSubstr("not " + given));
    EXPECT_THAT(refused(log), HasSubstr("config_kwargs.intermediate_size"));
    other.record("grouped_mlp_quantized", "cuda_composed", {kBlackwell, blocks}, {});
    EXPECT_THAT(describe(found(other)), HasSubstr("not " + blocks));
}

TEST(FusedVariants, OneThatMakesCodesLaterSaysWhyAndIsNotRefused) {
    VariantLog log;
    log.record("grouped_mlp_quantized", "sm90_fused_amax", {kBlackwell}, {});
    EXPECT_EQ(
        describe(found(log)),
        "grouped_mlp_quantized = sm90_fused_amax, the activation's codes by a kernel after it: their scale "
        "is known after the last tile");
    EXPECT_EQ(refused(log), "");
}

TEST(FusedVariants, StrictPassesWhereThisDeviceHasNone) {
    VariantLog hopper, ampere, cpu;
    hopper.record("grouped_mlp_quantized_backward", "cuda_composed", {}, {});
    ampere.record("grouped_mlp", "cuda_composed",
                  {"sm90_fused: needs compute capability 90 to 90, this device has 80"}, {});
    cpu.record("grouped_mlp_quantized", "cpu_composed", {}, {});
    EXPECT_EQ(refused(hopper), "");
    for (const auto& variants :
         {found(hopper), found(ampere, DeviceKind::Cuda, 80), found(cpu, DeviceKind::Cpu, 0)}) {
        EXPECT_NO_THROW(check_strict_fusion(variants));
        EXPECT_THAT(describe(variants), HasSubstr("no variant for this device fuses them"));
    }
}

TEST(FusedVariants, OneThatIsForcedIsMeant) {
    VariantLog log;
    log.record("grouped_mlp", "cuda_composed", {}, {});  // a forced choice passes nothing over
    EXPECT_EQ(refused(log), "");
    EXPECT_THAT(describe(found(log)), HasSubstr("kernels.grouped_mlp asks for it, not for sm90_fused"));
}

TEST(FusedVariants, LayersThatDifferHaveARowEach) {
    VariantLog log;
    log.record("grouped_mlp_quantized", "sm90_fused", {kBlackwell}, {});
    log.record("grouped_mlp_quantized", "cuda_composed", {kBlackwell, kOdd}, {});
    log.record("grouped_mlp_quantized", "cuda_composed", {kOdd}, {});
    EXPECT_THAT(describe(found(log)),
                AllOf(HasSubstr("grouped_mlp_quantized = sm90_fused in 1 calls;"),
                      HasSubstr("grouped_mlp_quantized = cuda_composed in 2 calls, composed")));
    EXPECT_NE(refused(log), "");
}

// The keys are told by what the kernels say of themselves: their own words are asked for here.
TEST(FusedVariants, TheKeyIsTheOneThatMadeTheReason) {
    const auto message = [](const std::string& op, const std::string& reason) {
        EXPECT_NE(reason, "");
        VariantLog log;
        log.record(op, "cuda_composed", {"sm90_fused: " + reason}, {});
        return refused(log);
    };
    const auto quantized = [&](ScaleKind kind, bool power, DType dtype, int64_t experts, int64_t hidden,
                               int64_t intermediate, bool statistics = false) {
        ops::GroupedMlpQuantizedArgs args;
        args.activation.row.format = {.element = DType::F8E4M3, .scale = kind, .power_of_two = power};
        args.x.data = View(nullptr, DType::F8E4M3, {64, hidden});
        args.gate_up.data = View(nullptr, DType::F8E4M3, {experts, 2 * intermediate, hidden});
        args.c = View(nullptr, dtype, {64, 2 * intermediate});
        args.split_sizes = View(nullptr, DType::I64, {experts});
        float amax = 0;
        if (statistics) args.activation.rule.observed_amax = View(&amax, DType::F32, {1});
        return message("grouped_mlp_quantized", ops::sm90::why_not_mlp_quantized(args, {}));
    };
    constexpr ScaleKind kBlock = ScaleKind::Block128;
    constexpr DType kBf16 = DType::BF16;
    const std::string other = "another ", may = " may do";
    const auto names = [&](const char* key) { return HasSubstr(other + key + may); };
    EXPECT_THAT(quantized(ScaleKind::Tensor, true, kBf16, 8, 64, 128), names("fp8_config.fp8_recipe"));
    EXPECT_THAT(quantized(kBlock, false, kBf16, 8, 64, 128), HasSubstr("fp8_recipe_kwargs (use_f32_scales"));
    EXPECT_THAT(quantized(kBlock, true, DType::F32, 8, 64, 128), names("dtype"));
    EXPECT_THAT(quantized(kBlock, true, kBf16, 100000, 64, 128), names("config_kwargs.num_local_experts"));
    EXPECT_THAT(quantized(kBlock, true, kBf16, 8, 65, 128), names("config_kwargs.hidden_size"));
    EXPECT_THAT(quantized(kBlock, true, kBf16, 8, 64, 192), names("config_kwargs.intermediate_size"));
    EXPECT_THAT(quantized(kBlock, true, kBf16, 8, 64, 128, true), names("fp8_stats_config.enabled"));

    const auto wide = [&](DType dtype, int64_t intermediate, int64_t interleave) {
        ops::GroupedMlpArgs args;
        args.options.interleave = interleave;
        args.x = View(nullptr, dtype, {64, 64});
        args.gate_up = View(nullptr, dtype, {8, 2 * intermediate, 64});
        args.down = View(nullptr, dtype, {8, 64, intermediate});
        return message("grouped_mlp", ops::sm90::why_not_mlp(args, {}));
    };
    EXPECT_THAT(wide(DType::F32, 128, 0), names("dtype"));
    EXPECT_THAT(wide(kBf16, 12, 0), names("config_kwargs.intermediate_size"));
    // No key asks for interleaved gates.
    EXPECT_THAT(wide(kBf16, 128, 8), AllOf(HasSubstr("glu_interleave_size = 8"), Not(HasSubstr(may))));
}

}  // namespace
}  // namespace moebius::train
