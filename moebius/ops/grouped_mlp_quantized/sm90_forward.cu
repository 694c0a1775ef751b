// Forward on Hopper: the gate-up product with the activation's codes made beside it, or the activation and
// its largest magnitudes where scales are made of these, then the down product.
#include <algorithm>

#include "moebius/ops/grouped_gemm/sm90_maps.h"
#include "moebius/ops/grouped_mlp_quantized/composed.h"
#include "moebius/ops/grouped_mlp_quantized/sm90.h"
#include "moebius/ops/grouped_mlp_quantized/sm90_quantize.cuh"
#include "moebius/ops/quantize/quantize.h"
#include "moebius/runtime/launch.h"
#include "moebius/runtime/loan_pool.h"
#include "moebius/runtime/transfer.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::sm90 {
namespace quantized {
namespace {

template <Scaling kScaling, bool kPromote>
using GateUp =
    ProductTraits<kScaling, false, kPromote, ptx::Codes::E4M3, ptx::Codes::E4M3, /*kPairedB=*/true>;

// Of ActivationScales::Amax: the activation in bf16, and each expert's largest magnitude, zero before.
struct Wide {
    View activation, amax;
};

// T: GateUp.
template <class T, ActivationScales kScales, bool kClamped>
void gate_up(const GroupedMlpQuantizedArgs& a, const Exec& exec, const Wide& wide) {
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    const int64_t rows = a.c.size(0), intermediate = a.c.size(1) / 2, experts = a.split_sizes.size(0),
                  depth = a.x.data.size(1);
    ProductArgs product{};
    product.a = tensor_map(a.x.data, kTileRows);
    product.b = tensor_map(a.gate_up.data, kHalfColumns);
    using Finish = QuantizeActivation<kClamped, kScales>;
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
    const auto given = Finish::kGiven ? cuda::tiles::quantize_of(a.activation, {}, DType::BF16, false, exec)
                                      : cuda::tiles::Quantize{};
    const typename Finish::Args finish{
        .gate = sm90::Matrix(c.columns(0, intermediate)),
        .up = sm90::Matrix(c.columns(intermediate, intermediate)),
        .row = static_cast<uint8_t*>(row.data),
        .column = static_cast<uint8_t*>(column.data),
        .row_scale = a.activation.row.scale.as<float>(),
        .column_scale = column ? a.activation.column.scale.as<float>() : nullptr,
        .columns = intermediate,
        .padded = column ? column.size(1) : 0,
        .row_scales = Finish::kBlocks ? a.activation.row.scale.size(1) : 0,
        .scales = a.scales ? a.scales.as<float>() : nullptr,
        .epsilon = a.activation.rule.amax_epsilon,
        .given = given,
        .activation = wide.activation ? sm90::Matrix(wide.activation) : sm90::Matrix(),
        .observed = wide.amax ? reinterpret_cast<unsigned*>(wide.amax.as<float>()) : given.observed,
        .constants = {a.options.limit, a.options.alpha, a.options.offset}};
    const int64_t most = plan.column_units * (units(rows, kTileRows) + std::min(experts, rows));
    launch("grouped_mlp_quantized.gate_up", grouped_product_quantized_sm90<T, Finish>,
           {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(exec.device->sm_count(), most))),
            .block = dim3(kThreads),
            .shared_bytes = shared_bytes(experts)},
           exec, product, finish);
}

template <class T, ActivationScales kScales>
void gate_up(const GroupedMlpQuantizedArgs& a, const Exec& exec, const Wide& wide = {}) {
    a.options.kind == GluKind::SwiGlu ? gate_up<T, kScales, false>(a, exec, wide)
                                      : gate_up<T, kScales, true>(a, exec, wide);
}

// Of operands with scales of whole tensors.
template <ActivationScales kScales>
void gate_up_tensor(const GroupedMlpQuantizedArgs& a, const Exec& exec, const Wide& wide = {}) {
    a.fast_accumulation ? gate_up<GateUp<Scaling::Tensor, false>, kScales>(a, exec, wide)
                        : gate_up<GateUp<Scaling::Tensor, true>, kScales>(a, exec, wide);
}

}  // namespace
}  // namespace quantized

void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    using namespace quantized;
    const Exec exec = without_cost(outer);
    if (a.c.size(0) == 0) return;
    gate_up<GateUp<Scaling::RowBlocks, true>, ActivationScales::Blocks>(a, exec);
    composed::down_product(a, exec);
}

void grouped_mlp_quantized_given(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    // The scales are written, and the largest magnitudes, where no expert has a row too: not here.
    if (a.c.size(0) == 0) return composed::grouped_mlp_quantized(a, outer);
    const Exec exec = without_cost(outer);
    quantized::gate_up_tensor<quantized::ActivationScales::Given>(a, exec);
    composed::down_product(a, exec);
}

void grouped_mlp_quantized_amax(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    if (a.c.size(0) == 0) return composed::grouped_mlp_quantized(a, outer);  // as above
    const Exec exec = without_cost(outer);
    {
        const QuantizeRule& rule = a.activation.rule;
        const Shape shape{a.c.size(0), a.c.size(1) / 2};
        const auto amax_bytes = static_cast<size_t>(a.split_sizes.size(0)) * sizeof(float);
        const Scratch found("grouped_mlp_quantized.amax", rule.observed_amax ? 0 : amax_bytes, exec);
        // y is written when the activation has been read. One that fits is no wider than y, so that it lies
        // in rows that y has too.
        LoanPool until_y(exec);
        until_y.lend(0, a.y.data, static_cast<size_t>(a.y.bytes()));
        Exec with_y = exec;
        with_y.pool = &until_y;
        const Scratch memory("grouped_mlp_quantized.activation",
                             static_cast<size_t>(bytes_of(DType::BF16, shape.numel())), with_y);
        const quantized::Wide wide{.activation = View(memory.as<void>(), DType::BF16, shape),
                                   .amax = rule.observed_amax
                                               ? rule.observed_amax
                                               : View(found.as<void>(), DType::F32, {a.split_sizes.size(0)})};
        zero(wide.amax.data, amax_bytes, exec);
        quantized::gate_up_tensor<quantized::ActivationScales::Amax>(a, exec, wide);
        quantize({.source = {.values = wide.activation, .split_sizes = a.split_sizes},
                  .row = a.activation.row,
                  .column = a.activation.column,
                  .amax_epsilon = rule.amax_epsilon,
                  .amax = wide.amax,
                  .counts = rule.counts},
                 exec);
    }
    composed::down_product(a, exec);
}

}  // namespace moebius::ops::sm90
