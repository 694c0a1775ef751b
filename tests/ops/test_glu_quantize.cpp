// The activation straight to codes against the activation and then its codes: every byte.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "moebius/base/philox.h"
#include "moebius/ops/glu_quantize/glu_quantize.h"
#include "moebius/tensor/quantized.h"

namespace moebius::ops {
namespace {

constexpr int64_t kRows = 270, kExperts = 4;

struct Tensors {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{2};
    Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    int64_t intermediate;
    Tensor x, dy, scales, sizes;

    Tensors(DType dtype, int64_t intermediate) : intermediate(intermediate) {
        x = random("x", {kRows, 2 * intermediate}, dtype);
        dy = random("dy", {kRows, intermediate}, dtype);
        scales = random("scales", {kRows}, DType::F32);
        sizes = Tensor::empty("sizes", {kExperts}, DType::I64, exec);
        const int64_t split[] = {150, 0, 1, 100};
        copy_from_host(sizes, split, exec);
    }
    // Magnitudes far apart, and now and then something that is no number.
    Tensor random(const char* name, const Shape& shape, DType dtype) {
        Tensor made = Tensor::empty(name, shape, dtype, exec);
        const Philox numbers(7, name);
        for (int64_t i = 0; i < shape.numel(); ++i) {
            const auto index = static_cast<uint64_t>(i);
            auto value = static_cast<float>(std::ldexp(
                numbers.normal(index), static_cast<int>(numbers.below(index ^ 0x800000, 24)) - 20));
            if (i % 997 == 5) value = NAN;
            if (i % 1511 == 7) value = INFINITY;
            if (dtype == DType::BF16) {
                made.view().as<BF16>()[i] = to_bf16(value);
            } else {
                made.view().as<float>()[i] = value;
            }
        }
        return made;
    }
};

// Codes, scales and statistics; what is not written stays 0xEE.
struct Filled {
    Quantized codes;
    Tensor observed, counts;

    Filled(Tensors& s, DType element, ScaleKind kind, int64_t columns, bool power_of_two) {
        codes = Quantized::empty("codes",
                                 {.element = element,
                                  .scale = kind,
                                  .power_of_two = power_of_two,
                                  .column = true,
                                  .matrix = {kRows, columns, kExperts}},
                                 s.exec);
        observed = Tensor::empty("observed", {kExperts}, DType::F32, s.exec);
        counts = Tensor::empty("counts", {kExperts, 2}, DType::I64, s.exec);
        for (const View& view : views()) std::memset(view.data, 0xEE, static_cast<size_t>(view.bytes()));
    }
    std::vector<View> views() const {
        return {codes.row().data,     codes.row().scale, codes.column().data,
                codes.column().scale, observed,          counts};
    }
    QuantizeTarget target(const View& given) const {
        return {.row = codes.row(),
                .column = codes.column(),
                .rule = {.scale = given, .observed_amax = observed, .counts = counts}};
    }
};

void expect_equal(const Filled& one, const Filled& other) {
    const auto a = one.views(), b = other.views();
    for (size_t i = 0; i < a.size(); ++i)
        EXPECT_EQ(std::memcmp(a[i].data, b[i].data, static_cast<size_t>(a[i].bytes())), 0) << "part " << i;
}

void quantize_apart(Tensors& s, const View& values, const Filled& to, const View& given) {
    Tensor amax;
    if (to.codes.spec().scale == ScaleKind::Tensor && !given) {
        amax = Tensor::empty("amax", {kExperts}, DType::F32, s.exec);
        tensor_amax({.source = {.values = values, .split_sizes = s.sizes}, .amax = amax}, s.exec);
    }
    quantize({.source = {.values = values, .split_sizes = s.sizes},
              .row = to.codes.row(),
              .column = to.codes.column(),
              .amax = amax,
              .scale = given,
              .observed_amax = to.observed,
              .counts = to.counts},
             s.exec);
}

class GluQuantize : public testing::TestWithParam<std::tuple<ScaleKind, DType, int64_t, bool>> {};

TEST_P(GluQuantize, GivesTheBytesOfTheTwoOps) {
    const auto [kind, dtype, intermediate, given] = GetParam();
    if (given && kind != ScaleKind::Tensor) return;
    for (const bool interleaved : {false, true}) {
        Tensors s(dtype, intermediate);
        const GluOptions options{.interleave = interleaved ? intermediate / 3 : 0};
        const Tensor scale = Tensor::empty("given", {kExperts}, DType::F32, s.exec);
        for (int64_t e = 0; e < kExperts; ++e) scale.view().as<float>()[e] = 0.5f + static_cast<float>(e);
        const View from = given ? scale.view() : View();
        const Tensor y = Tensor::zeros("y", {kRows, intermediate}, dtype, s.exec),
                     dx = Tensor::zeros("dx", {kRows, 2 * intermediate}, dtype, s.exec),
                     dscales = Tensor::zeros("dscales", {kRows}, DType::F32, s.exec),
                     again = Tensor::zeros("dscales", {kRows}, DType::F32, s.exec);
        const Filled one(s, DType::F8E4M3, kind, intermediate, true),
            apart(s, DType::F8E4M3, kind, intermediate, true);
        scaled_glu_quantize({.options = options,
                             .x = s.x,
                             .scales = s.scales,
                             .split_sizes = s.sizes,
                             .activation = one.target(from)},
                            s.exec);
        scaled_glu({.options = options, .x = s.x, .scales = s.scales, .split_sizes = s.sizes, .y = y},
                   s.exec);
        quantize_apart(s, y, apart, from);
        expect_equal(one, apart);
        const Filled back(s, DType::F8E5M2, kind, 2 * intermediate, kind == ScaleKind::MX32),
            back_apart(s, DType::F8E5M2, kind, 2 * intermediate, kind == ScaleKind::MX32);
        scaled_glu_backward_quantize({.options = options,
                                      .x = s.x,
                                      .scales = s.scales,
                                      .split_sizes = s.sizes,
                                      .dy = s.dy,
                                      .dx = back.target(from),
                                      .dscales = dscales},
                                     s.exec);
        scaled_glu_backward({.options = options,
                             .x = s.x,
                             .scales = s.scales,
                             .split_sizes = s.sizes,
                             .dy = s.dy,
                             .dx = dx,
                             .dscales = again},
                            s.exec);
        quantize_apart(s, dx, back_apart, from);
        expect_equal(back, back_apart);
        EXPECT_EQ(std::memcmp(dscales.view().data, again.view().data, kRows * sizeof(float)), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, GluQuantize,
    testing::Combine(testing::Values(ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32),
                     testing::Values(DType::F32, DType::BF16), testing::Values<int64_t>(150, 384),
                     testing::Bool()),
    [](const auto& info) {
        return std::string(name(std::get<0>(info.param))) + std::string(name(std::get<1>(info.param))) +
               std::to_string(std::get<2>(info.param)) + (std::get<3>(info.param) ? "given" : "");
    });

}  // namespace
}  // namespace moebius::ops
