#include "moebius/ops/swiglu/swiglu.h"

#include "moebius/ops/swiglu/cpu.h"
#include "moebius/ops/swiglu/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<ScaledGluArgs> kScaledGlu[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<ScaledGluArgs>, MOEBIUS_CUDA(cuda::scaled_glu)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<ScaledGluArgs>, cpu::scaled_glu}};
constexpr Variant<ScaledGluBackwardArgs> kScaledGluBackward[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<ScaledGluBackwardArgs>,
     MOEBIUS_CUDA(cuda::scaled_glu_backward)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<ScaledGluBackwardArgs>, cpu::scaled_glu_backward}};

// (M, columns) of x's dtype, elements of a row side by side.
void check_matrix(const View& x, const View& other, int64_t columns, const char* what) {
    MOEBIUS_CHECK(other.rank() == 2 && other.size(0) == x.size(0) && other.size(1) == columns &&
                      other.dtype == x.dtype && other.stride[1] == 1,
                  what, ": ", name(other.dtype), " ", other.shape.str(), " beside x ", name(x.dtype), " ",
                  x.shape.str());
}

void check_scalars(const View& x, const View& scalars, const char* what) {
    MOEBIUS_CHECK(scalars.rank() == 1 && scalars.size(0) == x.size(0) && scalars.dtype == DType::F32 &&
                      scalars.contiguous(),
                  what, ": ", name(scalars.dtype), " ", scalars.shape.str(), " for ", x.size(0), " rows");
}

void check_inputs(const GluOptions& options, const View& x, const View& scales, const View& split_sizes) {
    MOEBIUS_CHECK(x.rank() == 2 && x.size(1) % 2 == 0 && x.stride[1] == 1, "x: ", x.shape.str());
    MOEBIUS_CHECK(
        options.interleave >= 0 && (options.interleave == 0 || x.size(1) / 2 % options.interleave == 0),
        "interleave ", options.interleave, " of ", x.size(1) / 2, " gates");
    MOEBIUS_CHECK(options.kind == GluKind::SwiGlu || options.limit > 0, "limit ", options.limit);
    if (scales) check_scalars(x, scales, "scales");
    MOEBIUS_CHECK(!split_sizes || (split_sizes.rank() == 1 && split_sizes.contiguous() &&
                                   (split_sizes.dtype == DType::I32 || split_sizes.dtype == DType::I64)),
                  "split_sizes: ", name(split_sizes.dtype), " ", split_sizes.shape.str());
}

double bytes(const View& view) {
    return view ? static_cast<double>(view.bytes()) : 0.0;
}

}  // namespace

// A sigmoid counts as four operations. Rows are a capacity: the true count is not known here.
Cost cost(const ScaledGluArgs& a) {
    return {7.0 * static_cast<double>(a.y.numel()), bytes(a.x) + bytes(a.scales) + bytes(a.y)};
}
Cost cost(const ScaledGluBackwardArgs& a) {
    return {16.0 * static_cast<double>(a.dy.numel()),
            bytes(a.x) + bytes(a.scales) + bytes(a.dy) + bytes(a.dx) + bytes(a.dscales) + bytes(a.y)};
}

void scaled_glu(const ScaledGluArgs& a, const Exec& exec) {
    check_inputs(a.options, a.x, a.scales, a.split_sizes);
    check_matrix(a.x, a.y, a.x.size(1) / 2, "y");
    dispatch<ScaledGluArgs>("scaled_glu", kScaledGlu, a, exec, cost(a));
}

void scaled_glu_backward(const ScaledGluBackwardArgs& a, const Exec& exec) {
    check_inputs(a.options, a.x, a.scales, a.split_sizes);
    check_matrix(a.x, a.dy, a.x.size(1) / 2, "dy");
    check_matrix(a.x, a.dx, a.x.size(1), "dx");
    MOEBIUS_CHECK(a.dx.data != a.x.data || a.dx.stride[0] == a.x.stride[0], "dx over x in another layout");
    if (a.dscales) check_scalars(a.x, a.dscales, "dscales");
    if (a.y) check_matrix(a.x, a.y, a.x.size(1) / 2, "y");
    dispatch<ScaledGluBackwardArgs>("scaled_glu_backward", kScaledGluBackward, a, exec, cost(a));
}

std::vector<VariantInfo> scaled_glu_variants() {
    return describe<ScaledGluArgs>(kScaledGlu);
}
std::vector<VariantInfo> scaled_glu_backward_variants() {
    return describe<ScaledGluBackwardArgs>(kScaledGluBackward);
}

}  // namespace moebius::ops
