// fp32 times bf16 on the tensor cores: the fp32 operand as three of bf16 (exactly), the three products summed
// in fp32. Nine times the rate of fp32 arithmetic for the gradients of logits, whose other operand is bf16.
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/gemm/cublaslt.h"
#include "moebius/ops/gemm/split.h"
#include "moebius/runtime/transfer.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::cublaslt {
namespace {

// The product of one part of `a`, into an fp32 sum.
GemmArgs part_of(const GemmArgs& args, const View& part, const View& sum, float beta) {
    return {.kind = args.kind, .a = part, .b = args.b, .out = sum, .beta = beta};
}

// A dgrad of few experts or letters as one product three times as deep: (low | middle | high) · (W; W; W).
// The library then adds the small products first, to whatever `out` is, and rounds once.
GemmArgs side_by_side(const GemmArgs& args, void* parts, void* weights) {
    const int64_t depth = 3 * args.a.size(1);
    GemmArgs deep = args;
    deep.a = View(parts, DType::BF16, {args.a.size(0), depth});
    deep.b = View(weights, DType::BF16, {depth, args.b.size(1)});
    return deep;
}

void gemm_side_by_side(const GemmArgs& args, const Exec& exec) {
    const int64_t features = args.a.size(1);
    const Scratch parts("gemm.split", 3 * static_cast<size_t>(args.a.numel()) * sizeof(BF16), exec);
    const Scratch weights("gemm.split.weight", 3 * static_cast<size_t>(args.b.numel()) * sizeof(BF16), exec);
    const GemmArgs deep = side_by_side(args, parts.as<void>(), weights.as<void>());
    const View low = deep.a.columns(0, features), middle = deep.a.columns(features, features);
    cuda::split_f32(args.a, deep.a.columns(2 * features, features), middle, low, exec);
    for (int64_t part = 0; part < 3; ++part)
        copy(deep.b.rows(part * features, features).data, args.b.data, static_cast<size_t>(args.b.bytes()),
             exec);
    cublaslt::gemm(deep, exec);
}

}  // namespace

std::string split_unavailable(const GemmArgs& args, const Exec& exec) {
    // Addresses as they will be: scratch is aligned, and so is a sum that is not `out` itself.
    if (split_side_by_side(args)) return unavailable(side_by_side(args, nullptr, nullptr), exec);
    const View part(nullptr, DType::BF16, args.a.shape);
    const View sum = args.out.dtype == DType::F32 ? args.out : View(nullptr, DType::F32, args.out.shape);
    return unavailable(part_of(args, part, sum, 0), exec);
}

void gemm_split(const GemmArgs& args, const Exec& outer) {
    const Exec exec = without_cost(outer);
    if (split_side_by_side(args)) return gemm_side_by_side(args, exec);
    const size_t elements = static_cast<size_t>(args.a.numel());
    // Each part begins at an aligned address.
    const size_t step = (elements + 127) / 128 * 128;
    const Scratch parts("gemm.split", 3 * step * sizeof(BF16), exec);
    const auto part = [&](size_t index) {
        return View(parts.as<BF16>() + index * step, DType::BF16, args.a.shape);
    };
    const View high = part(0), middle = part(1), low = part(2);
    cuda::split_f32(args.a, high, middle, low, exec);
    // The small products first. Into bf16 goes their sum, rounded once.
    const auto sum_into = [&](const View& sum, float beta) {
        cublaslt::gemm(part_of(args, low, sum, beta), exec);
        cublaslt::gemm(part_of(args, middle, sum, 1), exec);
        cublaslt::gemm(part_of(args, high, sum, 1), exec);
    };
    if (args.out.dtype == DType::F32) return sum_into(args.out, args.beta);
    const Scratch wide("gemm.split.sum", static_cast<size_t>(args.out.numel()) * sizeof(float), exec);
    const View sum(wide.as<float>(), DType::F32, args.out.shape);
    if (args.beta != 0) convert({.x = args.out, .out = sum}, exec);
    sum_into(sum, args.beta);
    convert({.x = sum, .out = args.out}, exec);
}

}  // namespace moebius::ops::cublaslt
