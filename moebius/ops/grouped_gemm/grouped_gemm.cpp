#include "moebius/ops/grouped_gemm/grouped_gemm.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm/cpu.h"
#include "moebius/ops/grouped_gemm/cuda.h"
#include "moebius/ops/grouped_gemm/sm90.h"
#include "moebius/ops/grouped_gemm/sm90_config.h"

namespace moebius::ops {
namespace {

constexpr Variant<GroupedGemmArgs> kGemm[] = {
    {"sm90", DeviceKind::Cuda, 90, 90, sm90::why_not, MOEBIUS_CUDA(sm90::grouped_gemm)},
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<GroupedGemmArgs>, MOEBIUS_CUDA(cuda::grouped_gemm)},
    {"cpu_packed", DeviceKind::Cpu, 0, 0, always<GroupedGemmArgs>, cpu::grouped_gemm_packed},
    {"cpu_loop", DeviceKind::Cpu, 0, 0, always<GroupedGemmArgs>, cpu::grouped_gemm_loop},
};
constexpr Variant<GroupedBiasGradArgs> kBiasGrad[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<GroupedBiasGradArgs>,
     MOEBIUS_CUDA(cuda::grouped_bias_grad)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<GroupedBiasGradArgs>, cpu::grouped_bias_grad},
};

bool is_float(const View& view) {
    return view.dtype == DType::F32 || view.dtype == DType::BF16;
}
bool dense_columns(const View& view) {
    const int last = view.rank() - 1;
    return view.size(last) <= 1 || view.stride[static_cast<size_t>(last)] == 1;
}
bool is_index(const View& view) {
    return view.rank() == 1 && view.contiguous() && (view.dtype == DType::I32 || view.dtype == DType::I64);
}

struct Sizes {
    int64_t m, e, n, k;  // rows, experts, out features, in features
};
Sizes sizes(const GroupedGemmArgs& a) {
    const View& weight = a.kind == GemmKind::Wgrad ? a.out : a.b;
    return {a.a.size(0), weight.size(0), weight.size(1), weight.size(2)};
}

void check_shapes(const GroupedGemmArgs& a) {
    const bool wgrad = a.kind == GemmKind::Wgrad;
    bool fits = a.a.rank() == 2 && a.b.rank() == (wgrad ? 2 : 3) && a.out.rank() == (wgrad ? 3 : 2);
    if (fits) {
        const Sizes s = sizes(a);
        const Shape x{s.m, s.k}, y{s.m, s.n}, w{s.e, s.n, s.k};
        fits = a.a.shape == (a.kind == GemmKind::Forward ? x : y) && a.b.shape == (wgrad ? x : w) &&
               a.out.shape == (a.kind == GemmKind::Forward ? y
                               : wgrad                     ? w
                                                           : x) &&
               a.split_sizes.shape == Shape{s.e};
        if (a.bias) fits = fits && a.kind == GemmKind::Forward && a.bias.shape == Shape{s.e, s.n};
        if (a.bias_scale) fits = fits && a.bias && a.bias_scale.shape == Shape{s.m};
    }
    if (!fits) {
        throw Error(fmt::format("grouped_gemm: shapes don't fit: a {}, b {}, out {}, split_sizes {}{}{}",
                                a.a.shape.str(), a.b.shape.str(), a.out.shape.str(),
                                a.split_sizes.shape.str(), a.bias ? ", bias " + a.bias.shape.str() : "",
                                a.bias_scale ? ", bias_scale " + a.bias_scale.shape.str() : ""));
    }
}

void validate(const GroupedGemmArgs& a) {
    check_shapes(a);
    if (!is_float(a.a) || !is_float(a.b) || !is_float(a.out) || !is_index(a.split_sizes) ||
        (a.bias && !is_float(a.bias)) || (a.bias_scale && a.bias_scale.dtype != DType::F32)) {
        throw Error(fmt::format(
            "grouped_gemm takes f32 or bf16 operands and i32 or i64 split_sizes, not a {}, b {}, out {}, "
            "split_sizes {}",
            name(a.a.dtype), name(a.b.dtype), name(a.out.dtype), name(a.split_sizes.dtype)));
    }
    MOEBIUS_CHECK(dense_columns(a.a) && dense_columns(a.b) && dense_columns(a.out),
                  "grouped_gemm: columns must be dense");
    MOEBIUS_CHECK((!a.bias || dense_columns(a.bias)) && (!a.bias_scale || a.bias_scale.contiguous()));
    MOEBIUS_CHECK(a.beta == 0 || a.beta == 1, "grouped_gemm: beta = ", a.beta);
}

void validate(const GroupedBiasGradArgs& a) {
    MOEBIUS_CHECK(a.dy.rank() == 2 && is_float(a.dy) && dense_columns(a.dy) && is_index(a.split_sizes));
    const int64_t m = a.dy.size(0), n = a.dy.size(1), experts = a.split_sizes.size(0);
    const bool fits = a.dbias.shape == Shape{experts, n} && (!a.bias || a.bias.shape == Shape{experts, n}) &&
                      (!a.bias_scale || a.bias_scale.shape == Shape{m}) &&
                      (!a.dbias_scale || (a.bias && a.dbias_scale.shape == Shape{m}));
    if (!fits) {
        throw Error(fmt::format("grouped_bias_grad: shapes don't fit: dy {}, split_sizes {}, dbias {}",
                                a.dy.shape.str(), a.split_sizes.shape.str(), a.dbias.shape.str()));
    }
    MOEBIUS_CHECK(is_float(a.dbias) && dense_columns(a.dbias));
    MOEBIUS_CHECK(!a.bias || (is_float(a.bias) && dense_columns(a.bias)));
    for (const View* view : {&a.bias_scale, &a.dbias_scale})
        MOEBIUS_CHECK(!*view || (view->dtype == DType::F32 && view->contiguous()));
    MOEBIUS_CHECK(a.beta == 0 || a.beta == 1, "grouped_bias_grad: beta = ", a.beta);
}

}  // namespace

Cost cost(const GroupedGemmArgs& a) {
    const Sizes s = sizes(a);
    const auto flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    const int64_t bytes = a.a.bytes() + a.b.bytes() + (a.beta != 0 ? 2 : 1) * a.out.bytes();
    return {flops, static_cast<double>(bytes)};
}

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec) {
    validate(args);
    dispatch<GroupedGemmArgs>("grouped_gemm", kGemm, args, exec, cost(args));
}
std::vector<VariantInfo> grouped_gemm_variants() {
    return describe<GroupedGemmArgs>(kGemm);
}

void grouped_bias_grad(const GroupedBiasGradArgs& args, const Exec& exec) {
    validate(args);
    const Cost cost{2.0 * static_cast<double>(args.dy.numel()), static_cast<double>(args.dy.bytes())};
    dispatch<GroupedBiasGradArgs>("grouped_bias_grad", kBiasGrad, args, exec, cost);
}
std::vector<VariantInfo> grouped_bias_grad_variants() {
    return describe<GroupedBiasGradArgs>(kBiasGrad);
}

}  // namespace moebius::ops
