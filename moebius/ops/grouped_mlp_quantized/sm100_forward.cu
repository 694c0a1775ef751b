// Forward on Blackwell: the gate-up product with the activation's codes made beside it, then the down
// product.
#include "moebius/ops/grouped_gemm_quantized/sm100_launch.cuh"
#include "moebius/ops/grouped_mlp_quantized/composed.h"
#include "moebius/ops/grouped_mlp_quantized/sm100.h"
#include "moebius/ops/grouped_mlp_quantized/sm100_quantize.cuh"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::sm100 {
namespace {

template <bool kClamped>
void gate_up(const GroupedMlpQuantizedArgs& a, const Exec& exec) {
    const int64_t rows = a.c.size(0), intermediate = a.c.size(1) / 2;
    const Operand &row = a.activation.row, &column = a.activation.column;
    auto* const c = static_cast<__nv_bfloat16*>(a.c.data);
    launch_product<GateUpTraits, QuantizeActivation<kClamped>>(
        "grouped_mlp_quantized.mx_gate_up",
        {.a = a.x,
         .b = a.gate_up,
         .split_sizes = a.split_sizes,
         .out = a.c,
         .capacity = rows,
         .rows = 0,
         .columns = intermediate,
         .depth = a.x.data.size(1),
         .second = intermediate},
        {.gate = c,
         .up = c + intermediate,
         .c_stride = a.c.stride[0],
         .row = static_cast<uint8_t*>(row.data.data),
         .column = static_cast<uint8_t*>(column.data.data),
         .row_scale = static_cast<uint8_t*>(row.scale.data),
         .column_scale = static_cast<uint8_t*>(column.scale.data),
         .columns = static_cast<int>(intermediate),
         .scales = a.scales ? a.scales.as<float>() : nullptr,
         .reciprocal = 1.0f / largest_finite(row.format.element),
         .constants = {a.options.limit, a.options.alpha, a.options.offset}},
        exec);
}

}  // namespace

void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    if (a.c.size(0) == 0) return;
    if (a.options.kind == GluKind::SwiGlu) {
        gate_up<false>(a, exec);
    } else {
        gate_up<true>(a, exec);
    }
    composed::down_product(a, exec);
}

}  // namespace moebius::ops::sm100
