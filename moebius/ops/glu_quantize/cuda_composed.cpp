// On a GPU, the activation or its gradient, and then the quantization.
#include "moebius/ops/glu_quantize/cuda.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::cuda {
namespace {

// `values` (M, columns) to the target, its amax found first where no scale is given.
void quantize_all(const View& values, const View& split_sizes, const QuantizeTarget& target,
                  const Exec& exec) {
    const QuantizeSource source{.values = values, .split_sizes = split_sizes};
    const int64_t experts = split_sizes.size(0);
    const Scratch found("glu_quantize.amax",
                        finds_amax(target) ? static_cast<size_t>(experts) * sizeof(float) : 0, exec);
    View amax;
    if (finds_amax(target)) {
        amax = View(found.as<void>(), DType::F32, {experts});
        tensor_amax({.source = source, .amax = amax}, exec);
    }
    quantize({.source = source,
              .row = target.row,
              .column = target.column,
              .amax_epsilon = target.rule.amax_epsilon,
              .amax = target.rule.amax ? target.rule.amax : amax,
              .scale = target.rule.scale,
              .observed_amax = target.rule.observed_amax,
              .counts = target.rule.counts},
             exec);
}

}  // namespace

void make_activation_again(const ScaledGluBackwardQuantizeArgs& a, const Exec& exec) {
    if (!a.activation.column) return;
    ops::scaled_glu_quantize({.options = a.options,
                              .x = a.x,
                              .scales = a.scales,
                              .split_sizes = a.split_sizes,
                              .activation = a.activation},
                             without_cost(exec));
}

void scaled_glu_then_quantize(const ScaledGluQuantizeArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    const Shape shape{a.x.size(0), a.x.size(1) / 2};
    const Scratch memory("glu_quantize.activation", static_cast<size_t>(bytes_of(a.x.dtype, shape.numel())),
                         exec);
    const View activation(memory.as<void>(), a.x.dtype, shape);
    scaled_glu(
        {.options = a.options, .x = a.x, .scales = a.scales, .split_sizes = a.split_sizes, .y = activation},
        exec);
    quantize_all(activation, a.split_sizes, a.activation, exec);
}

void scaled_glu_backward_then_quantize(const ScaledGluBackwardQuantizeArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    make_activation_again(a, exec);
    // The kernel reads each element of x before it writes its gradient.
    const Scratch memory("glu_quantize.dx",
                         a.overwrite_x ? 0 : static_cast<size_t>(bytes_of(a.x.dtype, a.x.numel())), exec);
    const View dx = a.overwrite_x ? a.x : View(memory.as<void>(), a.x.dtype, a.x.shape);
    scaled_glu_backward({.options = a.options,
                         .x = a.x,
                         .scales = a.scales,
                         .split_sizes = a.split_sizes,
                         .dy = a.dy,
                         .dx = dx,
                         .dscales = a.dscales},
                        exec);
    quantize_all(dx, a.split_sizes, a.dx, exec);
}

}  // namespace moebius::ops::cuda
