#include "moebius/ops/rms_norm/rms_norm.h"

#include "moebius/ops/rms_norm/cpu.h"
#include "moebius/ops/rms_norm/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<RmsNormArgs> kRmsNorm[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<RmsNormArgs>, MOEBIUS_CUDA(cuda::rms_norm)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<RmsNormArgs>, cpu::rms_norm}};
constexpr Variant<RmsNormBackwardArgs> kRmsNormBackward[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<RmsNormBackwardArgs>,
     MOEBIUS_CUDA(cuda::rms_norm_backward)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<RmsNormBackwardArgs>, cpu::rms_norm_backward}};

// Rows like those of x: same shape and dtype, elements of a row side by side.
void check_rows(const View& x, const View& other, const char* what) {
    MOEBIUS_CHECK(other.shape == x.shape && other.dtype == x.dtype && other.stride[1] == 1, what, ": ",
                  name(other.dtype), " ", other.shape.str(), " beside x ", name(x.dtype), " ", x.shape.str());
}

void check_vector(const View& vector, int64_t count, const char* what) {
    MOEBIUS_CHECK(vector.rank() == 1 && vector.size(0) == count && vector.contiguous(), what, ": ",
                  vector.shape.str(), ", ", count, " wanted");
}

double bytes(const View& view) {
    return view ? static_cast<double>(view.bytes()) : 0.0;
}

}  // namespace

Cost cost(const RmsNormArgs& a) {
    return {(a.residual ? 5.0 : 4.0) * static_cast<double>(a.x.numel()),
            bytes(a.x) + bytes(a.residual) + bytes(a.weight) + bytes(a.sum) + bytes(a.y) + bytes(a.rstd)};
}
Cost cost(const RmsNormBackwardArgs& a) {
    return {(a.dresidual ? 9.0 : 8.0) * static_cast<double>(a.x.numel()),
            bytes(a.x) + bytes(a.weight) + bytes(a.rstd) + bytes(a.dy) + bytes(a.dresidual) + bytes(a.dx) +
                bytes(a.dweight)};
}

void rms_norm(const RmsNormArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.rank() == 2, a.x.shape.str());
    check_rows(a.x, a.x, "x");
    MOEBIUS_CHECK(a.y || a.rstd, "rms_norm: neither y nor rstd is asked for");
    if (a.y) check_rows(a.x, a.y, "y");
    check_vector(a.weight, a.x.size(1), "weight");
    MOEBIUS_CHECK(!a.residual == !a.sum, "residual and sum come together");
    if (a.residual) {
        check_rows(a.x, a.residual, "residual");
        check_rows(a.x, a.sum, "sum");
    }
    if (a.rstd) check_vector(a.rstd, a.x.size(0), "rstd");
    dispatch<RmsNormArgs>("rms_norm", kRmsNorm, a, exec, cost(a));
}

void rms_norm_backward(const RmsNormBackwardArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.rank() == 2, a.x.shape.str());
    check_rows(a.x, a.x, "x");
    check_rows(a.x, a.dy, "dy");
    check_rows(a.x, a.dx, "dx");
    if (a.dresidual) check_rows(a.x, a.dresidual, "dresidual");
    check_vector(a.weight, a.x.size(1), "weight");
    check_vector(a.dweight, a.x.size(1), "dweight");
    MOEBIUS_CHECK(a.dweight.dtype == DType::F32 || a.dweight.dtype == DType::BF16,
                  "dweight: ", name(a.dweight.dtype));
    check_vector(a.rstd, a.x.size(0), "rstd");
    dispatch<RmsNormBackwardArgs>("rms_norm_backward", kRmsNormBackward, a, exec, cost(a));
}

std::vector<VariantInfo> rms_norm_variants() {
    return describe<RmsNormArgs>(kRmsNorm);
}
std::vector<VariantInfo> rms_norm_backward_variants() {
    return describe<RmsNormBackwardArgs>(kRmsNormBackward);
}

}  // namespace moebius::ops
