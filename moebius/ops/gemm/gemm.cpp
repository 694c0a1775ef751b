#include "moebius/ops/gemm/gemm.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/ops/gemm/cpu.h"
#include "moebius/ops/gemm/cublaslt.h"
#include "moebius/ops/gemm/cuda.h"

namespace moebius::ops {
namespace {

// Operands of one type; fp32 ones give fp32.
bool library_has(const GemmArgs& a) {
    return a.a.dtype == a.b.dtype && (a.a.dtype != DType::F32 || a.out.dtype == DType::F32);
}

std::string not_for_cublaslt(const GemmArgs& a, const Exec& exec) {
    if (!library_has(a)) {
        return fmt::format("has no product of {} and {} in {}", name(a.a.dtype), name(a.b.dtype),
                           name(a.out.dtype));
    }
    // A dry step may be about a device that is not here.
    return exec.dry ? std::string() : cublaslt::unavailable(a, exec);
}

std::string not_for_split(const GemmArgs& a, const Exec& exec) {
    if (a.a.dtype != DType::F32 || a.b.dtype != DType::BF16) {
        return fmt::format("splits an f32 a beside a bf16 b, not {} and {}", name(a.a.dtype),
                           name(a.b.dtype));
    }
    if (a.out.dtype != DType::F32 && !cublaslt::split_side_by_side(a) && !a.out.contiguous())
        return "writes dense bf16 only";
    return exec.dry ? std::string() : cublaslt::split_unavailable(a, exec);
}

constexpr Variant<GemmArgs> kVariants[] = {
    {"cublaslt", DeviceKind::Cuda, 80, 999, not_for_cublaslt, MOEBIUS_CUDA(cublaslt::gemm)},
    {"cublaslt_split", DeviceKind::Cuda, 80, 999, not_for_split, MOEBIUS_CUDA(cublaslt::gemm_split)},
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<GemmArgs>, MOEBIUS_CUDA(cuda::gemm)},
    {"cpu_packed", DeviceKind::Cpu, 0, 0, always<GemmArgs>, cpu::gemm_packed},
    {"cpu_naive", DeviceKind::Cpu, 0, 0, always<GemmArgs>, cpu::gemm_naive},
};

struct Sizes {
    int64_t m, n, k;  // rows, out features, in features
};

Sizes sizes(const GemmArgs& a) {
    const int64_t m = a.a.size(0);
    if (a.kind == GemmKind::Forward) return {m, a.b.size(0), a.b.size(1)};
    if (a.kind == GemmKind::Dgrad) return {m, a.b.size(0), a.b.size(1)};
    return {m, a.a.size(1), a.b.size(1)};
}

void validate(const GemmArgs& a) {
    for (const View* view : {&a.a, &a.b, &a.out}) {
        MOEBIUS_CHECK(view->rank() == 2 && (view->dtype == DType::F32 || view->dtype == DType::BF16),
                      "gemm takes f32 or bf16 matrices, not ", name(view->dtype), " ", view->shape.str());
        MOEBIUS_CHECK(view->size(1) <= 1 || view->stride[1] == 1, "gemm: columns must be dense");
    }
    const Sizes s = sizes(a);
    bool fits = false;
    switch (a.kind) {
        case GemmKind::Forward:
            fits = a.a.size(1) == s.k && a.out.shape == Shape{s.m, s.n};
            break;
        case GemmKind::Dgrad:
            fits = a.a.size(1) == s.n && a.out.shape == Shape{s.m, s.k};
            break;
        case GemmKind::Wgrad:
            fits = a.b.size(0) == s.m && a.out.shape == Shape{s.n, s.k};
            break;
    }
    if (!fits) {
        throw Error(fmt::format("gemm: shapes don't fit: a {}, b {}, out {}", a.a.shape.str(),
                                a.b.shape.str(), a.out.shape.str()));
    }
    MOEBIUS_CHECK(a.beta == 0 || a.beta == 1, "gemm: beta = ", a.beta);
}

}  // namespace

Cost cost(const GemmArgs& a) {
    const Sizes s = sizes(a);
    const auto flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    const int64_t bytes = a.a.bytes() + a.b.bytes() + (a.beta != 0 ? 2 : 1) * a.out.bytes();
    return {flops, static_cast<double>(bytes)};
}

void gemm(const GemmArgs& args, const Exec& exec) {
    validate(args);
    dispatch<GemmArgs>("gemm", kVariants, args, exec, cost(args));
}

std::string gemm_choice(const GemmArgs& args, const Exec& exec) {
    validate(args);
    const bool asked = exec.device->kind() == DeviceKind::Cuda && library_has(args);
    return asked ? cublaslt::choice(args, exec) : std::string();
}

std::vector<VariantInfo> gemm_variants() {
    return describe<GemmArgs>(kVariants);
}

}  // namespace moebius::ops
