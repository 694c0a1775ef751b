// The grouped MLP out of the ops of its chain, for cards without a fused kernel: equal to the unfused chain
// because it is that chain. Scratch: C (M, 2I) where the caller doesn't keep it, the activation (M, I);
// backward: dC (M, 2I) unless it may be written over C,
// the activation and its gradient (M, I each).
#include "moebius/ops/grouped_gemm/grouped_gemm.h"
#include "moebius/ops/grouped_mlp/cuda.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::cuda {
namespace {

size_t matrix_bytes(DType dtype, int64_t rows, int64_t columns) {
    return static_cast<size_t>(bytes_of(dtype, rows * columns));
}

}  // namespace

void grouped_mlp(const GroupedMlpArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    const DType dtype = a.x.dtype;
    const Scratch pre("grouped_mlp.c", a.c ? 0 : matrix_bytes(dtype, rows, 2 * intermediate), exec);
    const Scratch act("grouped_mlp.activation", matrix_bytes(dtype, rows, intermediate), exec);
    const View c = a.c ? a.c : View(pre.as<void>(), dtype, {rows, 2 * intermediate});
    const View activation(act.as<void>(), dtype, {rows, intermediate});
    grouped_gemm({.kind = GemmKind::Forward,
                  .a = a.x,
                  .b = a.gate_up,
                  .out = c,
                  .split_sizes = a.split_sizes,
                  .bias = {},
                  .bias_scale = {}},
                 exec);
    scaled_glu(
        {.options = a.options, .x = c, .scales = a.scales, .split_sizes = a.split_sizes, .y = activation},
        exec);
    grouped_gemm({.kind = GemmKind::Forward,
                  .a = activation,
                  .b = a.down,
                  .out = a.y,
                  .split_sizes = a.split_sizes,
                  .bias = {},
                  .bias_scale = {}},
                 exec);
}

namespace {

void product(const GroupedMlpBackwardArgs& a, GemmKind kind, const View& left, const View& right,
             const View& out, float beta, const Exec& exec) {
    grouped_gemm({.kind = kind,
                  .a = left,
                  .b = right,
                  .out = out,
                  .split_sizes = a.split_sizes,
                  .bias = {},
                  .bias_scale = {},
                  .beta = beta},
                 exec);
}

}  // namespace

void gradient_of_down(const GroupedMlpBackwardArgs& a, const View& activation, const Exec& exec) {
    product(a, GemmKind::Wgrad, a.dy, activation, a.ddown, a.beta_down, exec);
}

void gradients_from_dc(const GroupedMlpBackwardArgs& a, const View& dc, const Exec& exec) {
    product(a, GemmKind::Wgrad, dc, a.x, a.dgate_up, a.beta_gate_up, exec);
    product(a, GemmKind::Dgrad, dc, a.gate_up, a.dx, 0, exec);
}

void grouped_mlp_backward(const GroupedMlpBackwardArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    const DType dtype = a.x.dtype;
    const GradientOfC dc(a, exec);
    {
        const Scratch act("grouped_mlp.activation", matrix_bytes(dtype, rows, intermediate), exec);
        const View activation(act.as<void>(), dtype, {rows, intermediate});
        {
            const Scratch upstream("grouped_mlp.dactivation", matrix_bytes(dtype, rows, intermediate), exec);
            const View dactivation(upstream.as<void>(), dtype, {rows, intermediate});
            product(a, GemmKind::Dgrad, a.dy, a.down, dactivation, 0, exec);
            scaled_glu_backward({.options = a.options,
                                 .x = a.c,
                                 .scales = a.scales,
                                 .split_sizes = a.split_sizes,
                                 .dy = dactivation,
                                 .dx = dc,
                                 .dscales = a.dscales,
                                 .y = activation},
                                exec);
        }
        gradient_of_down(a, activation, exec);
    }
    gradients_from_dc(a, dc, exec);
}

}  // namespace moebius::ops::cuda
