#include "moebius/ops/grouped_mlp_quantized/composed.h"

#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/runtime/loan_pool.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::composed {

void down_product(const GroupedMlpQuantizedArgs& a, const Exec& exec) {
    grouped_gemm_quantized({.kind = GemmKind::Forward,
                            .a = a.activation.row,
                            .b = a.down,
                            .out = a.y,
                            .split_sizes = a.split_sizes,
                            .fast_accumulation = a.fast_accumulation},
                           exec);
}

void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    grouped_gemm_quantized({.kind = GemmKind::Forward,
                            .a = a.x,
                            .b = a.gate_up,
                            .out = a.c,
                            .split_sizes = a.split_sizes,
                            .fast_accumulation = a.fast_accumulation},
                           exec);
    scaled_glu_quantize({.options = a.options,
                         .x = a.c,
                         .scales = a.scales,
                         .split_sizes = a.split_sizes,
                         .activation = a.activation},
                        exec);
    down_product(a, exec);
}

namespace {

void down_gradient(const GroupedMlpQuantizedBackwardArgs& a, const Exec& exec) {
    grouped_gemm_quantized({.kind = GemmKind::Wgrad,
                            .a = a.dy_column,
                            .b = a.activation.column,
                            .out = a.ddown,
                            .split_sizes = a.split_sizes,
                            .beta = a.beta_down,
                            .fast_accumulation = a.fast_wgrad},
                           exec);
}

void gradients_from_dc(const GroupedMlpQuantizedBackwardArgs& a, const Exec& exec) {
    grouped_gemm_quantized({.kind = GemmKind::Wgrad,
                            .a = a.dc.column,
                            .b = a.x,
                            .out = a.dgate_up,
                            .split_sizes = a.split_sizes,
                            .beta = a.beta_gate_up,
                            .fast_accumulation = a.fast_wgrad},
                           exec);
    grouped_gemm_quantized({.kind = GemmKind::Dgrad,
                            .a = a.dc.row,
                            .b = a.gate_up,
                            .out = a.dx,
                            .split_sizes = a.split_sizes,
                            .fast_accumulation = a.fast_dgrad},
                           exec);
}

}  // namespace

void grouped_mlp_quantized_backward(const GroupedMlpQuantizedBackwardArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    const Shape shape{a.c.size(0), a.c.size(1) / 2};
    {
        const Scratch memory("grouped_mlp_quantized.dactivation",
                             static_cast<size_t>(bytes_of(a.c.dtype, shape.numel())), exec);
        const View dactivation(memory.as<void>(), a.c.dtype, shape);
        // Nothing is in dc's codes yet: a product's scratch may be.
        LoanPool dc(exec);
        for (const Operand* codes : {&a.dc.row, &a.dc.column})
            dc.lend(0, codes->data.data, static_cast<size_t>(codes->data.bytes()));
        Exec until_dc = exec;
        until_dc.pool = &dc;
        grouped_gemm_quantized({.kind = GemmKind::Dgrad,
                                .a = a.dy,
                                .b = a.down,
                                .out = dactivation,
                                .split_sizes = a.split_sizes,
                                .fast_accumulation = a.fast_dgrad},
                               until_dc);
        scaled_glu_backward_quantize({.options = a.options,
                                      .x = a.c,
                                      .scales = a.scales,
                                      .split_sizes = a.split_sizes,
                                      .dy = dactivation,
                                      .dx = a.dc,
                                      .activation = a.activation,
                                      .dscales = a.dscales,
                                      .overwrite_x = a.overwrite_c},
                                     exec);
    }
    if (a.ddown) down_gradient(a, exec);
    if (a.gate_up) gradients_from_dc(a, exec);
}

}  // namespace moebius::ops::composed
