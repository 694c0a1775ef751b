// The grouped MLP out of the ops of its chain, for cards without a fused kernel: equal to the unfused chain
// because it is that chain. Scratch: C (M, 2I) where the caller doesn't keep it, the activation (M, I);
// backward: dC (M, 2I), the activation and its gradient (M, I each).
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

void gradients_from_dc(const GroupedMlpBackwardArgs& a, const View& dc, const View& activation,
                       const Exec& exec) {
    const auto product = [&](GemmKind kind, const View& left, const View& right, const View& out,
                             float beta) {
        grouped_gemm({.kind = kind,
                      .a = left,
                      .b = right,
                      .out = out,
                      .split_sizes = a.split_sizes,
                      .bias = {},
                      .bias_scale = {},
                      .beta = beta},
                     exec);
    };
    product(GemmKind::Wgrad, a.dy, activation, a.ddown, a.beta_down);
    product(GemmKind::Wgrad, dc, a.x, a.dgate_up, a.beta_gate_up);
    product(GemmKind::Dgrad, dc, a.gate_up, a.dx, 0);
}

void grouped_mlp_backward(const GroupedMlpBackwardArgs& a, const Exec& outer) {
    const Exec exec = without_cost(outer);
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    const DType dtype = a.x.dtype;
    const Scratch wide("grouped_mlp.dc", matrix_bytes(dtype, rows, 2 * intermediate), exec);
    const Scratch upstream("grouped_mlp.dactivation", matrix_bytes(dtype, rows, intermediate), exec);
    const Scratch act("grouped_mlp.activation", matrix_bytes(dtype, rows, intermediate), exec);
    const View dc(wide.as<void>(), dtype, {rows, 2 * intermediate});
    const View dactivation(upstream.as<void>(), dtype, {rows, intermediate});
    const View activation(act.as<void>(), dtype, {rows, intermediate});
    grouped_gemm({.kind = GemmKind::Dgrad,
                  .a = a.dy,
                  .b = a.down,
                  .out = dactivation,
                  .split_sizes = a.split_sizes,
                  .bias = {},
                  .bias_scale = {}},
                 exec);
    scaled_glu_backward({.options = a.options,
                         .x = a.c,
                         .scales = a.scales,
                         .split_sizes = a.split_sizes,
                         .dy = dactivation,
                         .dx = dc,
                         .dscales = a.dscales,
                         .y = activation},
                        exec);
    gradients_from_dc(a, dc, activation, exec);
}

}  // namespace moebius::ops::cuda
