#include "moebius/ops/adamw/adamw.h"

#include "moebius/ops/adamw/cpu.h"
#include "moebius/ops/adamw/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<AdamWArgs> kAdamW[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<AdamWArgs>, MOEBIUS_CUDA(cuda::adamw)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<AdamWArgs>, cpu::adamw}};

int64_t count_of(const AdamWArgs& a) {
    return a.master ? a.master.numel() : a.weights.numel();
}

void check_range(const AdamWArgs& a, const View& view, const char* what) {
    MOEBIUS_CHECK(view.numel() == count_of(a) && view.contiguous() &&
                      (view.dtype == DType::F32 || view.dtype == DType::BF16),
                  what, ": ", name(view.dtype), " ", view.shape.str(), " for ", count_of(a), " parameters");
}

void check_master(const AdamWArgs& a) {
    MOEBIUS_CHECK(a.master || a.weights, "neither master nor weights");
    if (a.master) {
        MOEBIUS_CHECK(a.master.dtype == DType::F32 && a.master.contiguous(),
                      "master: ", name(a.master.dtype));
    }
    if (a.weights) {
        check_range(a, a.weights, "weights");
        MOEBIUS_CHECK(a.weights.dtype == DType::BF16, "weights: ", name(a.weights.dtype));
    }
    if (a.remainder) {
        MOEBIUS_CHECK(!a.master && a.weights, "a remainder goes with weights and without a master");
        MOEBIUS_CHECK(
            a.remainder.dtype == DType::I16 && a.remainder.contiguous() && a.remainder.numel() == count_of(a),
            "remainder: ", name(a.remainder.dtype), " ", a.remainder.shape.str());
    }
}

void check_scalar(const View& view, DType dtype, const char* what) {
    MOEBIUS_CHECK(view && view.numel() == 1 && view.dtype == dtype, what, ": ", name(view.dtype), " ",
                  view.shape.str());
}

double bytes(const View& view) {
    return view ? static_cast<double>(view.bytes()) : 0.0;
}

}  // namespace

Cost cost(const AdamWArgs& a) {
    return {16.0 * static_cast<double>(count_of(a)),
            2.0 * (bytes(a.master) + bytes(a.remainder) + bytes(a.m) + bytes(a.v)) + bytes(a.grad) +
                (a.master ? 1.0 : 2.0) * bytes(a.weights)};
}

void adamw(const AdamWArgs& a, const Exec& exec) {
    check_master(a);
    check_range(a, a.grad, "grad");
    check_range(a, a.m, "m");
    check_range(a, a.v, "v");
    check_scalar(a.learning_rate, DType::F32, "learning_rate");
    check_scalar(a.clip, DType::F32, "clip");
    check_scalar(a.step, DType::I64, "step");
    check_scalar(a.bad, DType::I32, "bad");
    MOEBIUS_CHECK(
        a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1 && a.eps >= 0 && a.weight_decay >= 0,
        "beta1 ", a.beta1, ", beta2 ", a.beta2, ", eps ", a.eps, ", weight_decay ", a.weight_decay);
    dispatch<AdamWArgs>("adamw", kAdamW, a, exec, cost(a));
}

std::vector<VariantInfo> adamw_variants() {
    return describe<AdamWArgs>(kAdamW);
}

}  // namespace moebius::ops
