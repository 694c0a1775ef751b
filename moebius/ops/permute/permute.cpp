#include "moebius/ops/permute/permute.h"

#include <fmt/format.h>

#include <limits>

#include "moebius/base/error.h"
#include "moebius/ops/permute/cpu.h"
#include "moebius/ops/permute/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<PermutationArgs> kPermutation[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<PermutationArgs>, MOEBIUS_CUDA(cuda::permutation)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<PermutationArgs>, cpu::permutation}};
constexpr Variant<GatherRowsArgs> kGatherRows[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<GatherRowsArgs>, MOEBIUS_CUDA(cuda::gather_rows)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<GatherRowsArgs>, cpu::gather_rows}};
constexpr Variant<CombineRowsArgs> kCombineRows[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<CombineRowsArgs>, MOEBIUS_CUDA(cuda::combine_rows)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<CombineRowsArgs>, cpu::combine_rows}};
constexpr Variant<PermuteScalarsArgs> kPermuteScalars[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<PermuteScalarsArgs>, MOEBIUS_CUDA(cuda::permute_scalars)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<PermuteScalarsArgs>, cpu::permute_scalars}};

bool dense(const View& view, DType dtype) {
    return view.dtype == dtype && view.contiguous();
}

// Rows of numbers one after another; gaps between rows are allowed.
bool rows_of_numbers(const View& view) {
    return view.rank() == 2 && (view.dtype == DType::F32 || view.dtype == DType::BF16) &&
           (view.size(1) <= 1 || view.stride[1] == 1) &&
           (view.size(0) <= 1 || view.stride[0] >= view.size(1));
}

bool split_list(const View& view) {
    return view.rank() == 1 && view.contiguous() && (view.dtype == DType::I32 || view.dtype == DType::I64);
}

// Copies are counted in int32, on every device alike.
void check_copies(const View& indices) {
    MOEBIUS_CHECK(indices.rank() == 2, indices.shape.str());
    const int64_t tokens = indices.size(0), topk = indices.size(1);
    if (checked_mul(tokens, topk) > std::numeric_limits<int32_t>::max()) {
        throw Error(fmt::format(
            "{} tokens × {} experts a token are {} rows for the experts, more than 2^31 - 1: lower "
            "dataset.micro_batch_size or dataset.token_micro_batch_size",
            tokens, topk, tokens * topk));
    }
}

}  // namespace

Cost cost(const PermutationArgs& a) {
    const auto copies = static_cast<double>(a.topk_indices.numel());
    return {0, 16 * copies};  // the indices twice, both results once
}
Cost cost(const GatherRowsArgs& a) {
    const auto elements = static_cast<double>(a.out.numel());
    const double flops = (a.weights ? elements : 0) + (a.dots ? 2 * elements : 0);
    return {flops, static_cast<double>(2 * a.out.bytes() + (a.dots ? a.dot_with.bytes() : 0))};
}
Cost cost(const CombineRowsArgs& a) {
    const double flops = static_cast<double>(a.y.numel()) * (a.weights ? 2 : 1);
    return {flops, static_cast<double>(a.y.bytes() + a.out.bytes())};
}
Cost cost(const PermuteScalarsArgs& a) {
    return {0, 12 * static_cast<double>(a.values.numel())};
}

void permutation(const PermutationArgs& a, const Exec& exec) {
    check_copies(a.topk_indices);
    MOEBIUS_CHECK(dense(a.topk_indices, DType::I32) && dense(a.row_of, DType::I32) &&
                      a.row_of.shape == a.topk_indices.shape,
                  a.topk_indices.shape.str(), ", row_of ", a.row_of.shape.str());
    MOEBIUS_CHECK(dense(a.source, DType::I32) && a.source.shape == Shape({a.topk_indices.numel()}),
                  a.topk_indices.shape.str(), ", source ", a.source.shape.str());
    MOEBIUS_CHECK(dense(a.split_sizes, DType::I32) && a.split_sizes.rank() == 1, a.split_sizes.shape.str());
    dispatch<PermutationArgs>("permutation", kPermutation, a, exec, cost(a));
}

void gather_rows(const GatherRowsArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(rows_of_numbers(a.x) && rows_of_numbers(a.out) && a.x.dtype == a.out.dtype &&
                      a.x.size(1) == a.out.size(1),
                  "x ", a.x.shape.str(), ", out ", a.out.shape.str());
    MOEBIUS_CHECK(a.topk >= 1 && dense(a.source, DType::I32) && a.source.shape == Shape({a.out.size(0)}),
                  "source ", a.source.shape.str(), " for out ", a.out.shape.str(), ", k = ", a.topk);
    const Shape copies{a.x.size(0), a.topk};
    MOEBIUS_CHECK(!a.weights || (dense(a.weights, DType::F32) && a.weights.shape == copies), "weights ",
                  a.weights.shape.str(), ", not ", copies.str());
    MOEBIUS_CHECK(!a.split_sizes || split_list(a.split_sizes), a.split_sizes.shape.str());
    MOEBIUS_CHECK(static_cast<bool>(a.dots) == static_cast<bool>(a.dot_with), "dots needs dot_with");
    MOEBIUS_CHECK(
        !a.dots || (dense(a.dots, DType::F32) && a.dots.shape == copies && rows_of_numbers(a.dot_with) &&
                    a.dot_with.dtype == a.x.dtype && a.dot_with.shape == a.out.shape),
        "dots ", a.dots.shape.str(), ", dot_with ", a.dot_with.shape.str());
    dispatch<GatherRowsArgs>("gather_rows", kGatherRows, a, exec, cost(a));
}

void combine_rows(const CombineRowsArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(rows_of_numbers(a.y) && rows_of_numbers(a.out) && a.y.dtype == a.out.dtype &&
                      a.y.size(1) == a.out.size(1),
                  "y ", a.y.shape.str(), ", out ", a.out.shape.str());
    MOEBIUS_CHECK(dense(a.row_of, DType::I32) && a.row_of.rank() == 2 && a.row_of.size(0) == a.out.size(0),
                  "row_of ", a.row_of.shape.str(), ", out ", a.out.shape.str());
    MOEBIUS_CHECK(!a.weights || (dense(a.weights, DType::F32) && a.weights.shape == a.row_of.shape),
                  "weights ", a.weights.shape.str(), ", not ", a.row_of.shape.str());
    dispatch<CombineRowsArgs>("combine_rows", kCombineRows, a, exec, cost(a));
}

void permute_scalars(const PermuteScalarsArgs& a, const Exec& exec) {
    MOEBIUS_CHECK(
        dense(a.values, DType::F32) && dense(a.out, DType::F32) && dense(a.source, DType::I32) &&
            a.source.rank() == 1 && a.values.numel() == a.source.numel() && a.out.numel() == a.source.numel(),
        "values ", a.values.shape.str(), ", source ", a.source.shape.str(), ", out ", a.out.shape.str());
    dispatch<PermuteScalarsArgs>("permute_scalars", kPermuteScalars, a, exec, cost(a));
}

std::vector<VariantInfo> permutation_variants() {
    return describe<PermutationArgs>(kPermutation);
}
std::vector<VariantInfo> gather_rows_variants() {
    return describe<GatherRowsArgs>(kGatherRows);
}
std::vector<VariantInfo> combine_rows_variants() {
    return describe<CombineRowsArgs>(kCombineRows);
}
std::vector<VariantInfo> permute_scalars_variants() {
    return describe<PermuteScalarsArgs>(kPermuteScalars);
}

}  // namespace moebius::ops
