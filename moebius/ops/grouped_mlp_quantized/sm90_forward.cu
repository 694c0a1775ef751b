// Forward on Hopper: the gate-up product with the activation's codes made beside it, then the down product.
#include <algorithm>

#include "moebius/ops/grouped_gemm/sm90_maps.h"
#include "moebius/ops/grouped_mlp_quantized/composed.h"
#include "moebius/ops/grouped_mlp_quantized/sm90.h"
#include "moebius/ops/grouped_mlp_quantized/sm90_quantize.cuh"
#include "moebius/runtime/launch.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::sm90 {
namespace quantized {
namespace {

template <Scaling kScaling, bool kPromote>
using GateUp =
    ProductTraits<kScaling, false, kPromote, ptx::Codes::E4M3, ptx::Codes::E4M3, /*kPairedB=*/true>;

// T: GateUp.
template <class T, bool kClamped>
void gate_up(const GroupedMlpQuantizedArgs& a, const Exec& exec) {
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    const int64_t rows = a.c.size(0), intermediate = a.c.size(1) / 2, experts = a.split_sizes.size(0),
                  depth = a.x.data.size(1);
    ProductArgs product{};
    product.a = tensor_map(a.x.data, kTileRows);
    product.b = tensor_map(a.gate_up.data, kHalfColumns);
    constexpr bool kGiven = T::kScaling == Scaling::Tensor;
    if constexpr (T::kScalesA) product.scale_a = scale_map(a.x.scale, kScaleRows);
    product.scales_a = static_cast<const float*>(a.x.scale.data);
    product.scales_b = static_cast<const float*>(a.gate_up.scale.data);
    product.split_sizes = a.split_sizes.data;
    product.split_is_i64 = a.split_sizes.dtype == DType::I64;
    product.capacity = static_cast<int>(rows);
    product.depth = static_cast<int>(depth);
    product.columns = product.second = static_cast<int>(intermediate);
    TilePlan& plan = product.plan;
    plan.experts = static_cast<int>(experts);
    plan.unit_rows = kTileRows;
    plan.column_units = static_cast<int>(units(intermediate, T::kColumns));
    plan.band = choose_band(plan.column_units, kTileColumns * depth);
    const View &c = a.c, &row = a.activation.row.data, &column = a.activation.column.data;
    using Finish = QuantizeActivation<kClamped, kGiven>;
    const typename Finish::Args finish{
        .gate = sm90::Matrix(c.columns(0, intermediate)),
        .up = sm90::Matrix(c.columns(intermediate, intermediate)),
        .row = static_cast<uint8_t*>(row.data),
        .column = static_cast<uint8_t*>(column.data),
        .row_scale = a.activation.row.scale.as<float>(),
        .column_scale = column ? a.activation.column.scale.as<float>() : nullptr,
        .columns = intermediate,
        .padded = column ? column.size(1) : 0,
        .row_scales = kGiven ? 0 : a.activation.row.scale.size(1),
        .scales = a.scales ? a.scales.as<float>() : nullptr,
        .epsilon = a.activation.rule.amax_epsilon,
        .given = kGiven ? cuda::tiles::quantize_of(a.activation, {}, DType::BF16, false, exec)
                        : cuda::tiles::Quantize{},
        .constants = {a.options.limit, a.options.alpha, a.options.offset}};
    const int64_t most = plan.column_units * (units(rows, kTileRows) + std::min(experts, rows));
    launch("grouped_mlp_quantized.gate_up", grouped_product_quantized_sm90<T, Finish>,
           {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(exec.device->sm_count(), most))),
            .block = dim3(kThreads),
            .shared_bytes = shared_bytes(experts)},
           exec, product, finish);
}

template <class T>
void gate_up(const GroupedMlpQuantizedArgs& a, const Exec& exec) {
    a.options.kind == GluKind::SwiGlu ? gate_up<T, false>(a, exec) : gate_up<T, true>(a, exec);
}

}  // namespace
}  // namespace quantized

void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    if (a.c.size(0) == 0) return;
    quantized::gate_up<quantized::GateUp<quantized::Scaling::RowBlocks, true>>(a, exec);
    composed::down_product(a, exec);
}

void grouped_mlp_quantized_given(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    // The scales are written, and the largest magnitudes, where no expert has a row too: not here.
    if (a.c.size(0) == 0) return composed::grouped_mlp_quantized(a, outer);
    if (a.fast_accumulation) {
        quantized::gate_up<quantized::GateUp<quantized::Scaling::Tensor, false>>(a, exec);
    } else {
        quantized::gate_up<quantized::GateUp<quantized::Scaling::Tensor, true>>(a, exec);
    }
    composed::down_product(a, exec);
}

}  // namespace moebius::ops::sm90
