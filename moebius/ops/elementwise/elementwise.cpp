#include "moebius/ops/elementwise/elementwise.h"

#include "moebius/ops/elementwise/cpu.h"
#include "moebius/ops/elementwise/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<ConvertArgs> kConvert[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<ConvertArgs>, MOEBIUS_CUDA(cuda::convert)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<ConvertArgs>, cpu::convert}};
constexpr Variant<AddArgs> kAdd[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<AddArgs>, MOEBIUS_CUDA(cuda::add)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<AddArgs>, cpu::add}};
constexpr Variant<JitterArgs> kJitter[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<JitterArgs>, MOEBIUS_CUDA(cuda::jitter)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<JitterArgs>, cpu::jitter}};
constexpr Variant<SumArgs> kSum[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<SumArgs>, MOEBIUS_CUDA(cuda::sum_into)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<SumArgs>, cpu::sum_into}};

}  // namespace

Cost cost(const ConvertArgs& a) {
    return {0, static_cast<double>(a.x.bytes() + a.out.bytes())};
}
Cost cost(const AddArgs& a) {
    return {static_cast<double>(a.x.numel()), static_cast<double>(a.x.bytes() + a.y.bytes() + a.out.bytes())};
}
Cost cost(const JitterArgs& a) {
    return {static_cast<double>(a.x.numel()), static_cast<double>(a.x.bytes() + a.out.bytes())};
}
Cost cost(const SumArgs& a) {
    return {static_cast<double>(a.x.numel()), static_cast<double>(a.x.bytes())};
}

void convert(const ConvertArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.contiguous() && a.out.contiguous() && a.x.numel() == a.out.numel(), a.x.shape.str());
    dispatch<ConvertArgs>("convert", kConvert, a, exec, cost(a));
}

void add(const AddArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.contiguous() && a.y.contiguous() && a.out.contiguous() && a.x.shape == a.y.shape &&
                      a.x.shape == a.out.shape && a.x.dtype == a.y.dtype && a.x.dtype == a.out.dtype,
                  a.x.shape.str(), " + ", a.y.shape.str());
    dispatch<AddArgs>("add", kAdd, a, exec, cost(a));
}

void jitter(const JitterArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.contiguous() && a.out.contiguous() && a.x.shape == a.out.shape &&
                      a.x.dtype == a.out.dtype && a.epsilon >= 0 && a.epsilon < 1,
                  a.x.shape.str(), ", epsilon ", a.epsilon);
    dispatch<JitterArgs>("jitter", kJitter, a, exec, cost(a));
}

void sum_into(const SumArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(a.x.contiguous() && a.out.numel() == 1, a.x.shape.str());
    dispatch<SumArgs>("sum_into", kSum, a, exec, cost(a));
}

std::vector<VariantInfo> convert_variants() {
    return describe<ConvertArgs>(kConvert);
}
std::vector<VariantInfo> add_variants() {
    return describe<AddArgs>(kAdd);
}
std::vector<VariantInfo> jitter_variants() {
    return describe<JitterArgs>(kJitter);
}
std::vector<VariantInfo> sum_into_variants() {
    return describe<SumArgs>(kSum);
}

}  // namespace moebius::ops
