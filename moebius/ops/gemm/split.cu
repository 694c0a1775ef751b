#include "moebius/ops/gemm/split.h"

#include <cuda_bf16.h>

#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Split {
    const float* x;
    int64_t row_stride, part_stride, columns, count;
    __nv_bfloat16 *high, *middle, *low;
};

__global__ void __launch_bounds__(kThreads) split_f32_any(Split p) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= p.count) return;
    const int64_t row = i / p.columns, column = i - row * p.columns, at = row * p.part_stride + column;
    const float x = p.x[row * p.row_stride + column];
    // Towards zero: rounding to nearest could carry the largest numbers over to infinity.
    const __nv_bfloat16 high = __float2bfloat16_rz(x);
    const bool finite = fabsf(x) <= 3.402823466e38f;
    const float rest =
        finite ? x - __bfloat162float(high) : 0.0f;  // exact: the low 16 bits of the significand
    const __nv_bfloat16 middle = __float2bfloat16_rz(rest);
    p.high[at] = finite ? high : __float2bfloat16_rn(x);
    p.middle[at] = middle;
    p.low[at] = __float2bfloat16_rn(rest - __bfloat162float(middle));
}

}  // namespace

void split_f32(const View& x, const View& high, const View& middle, const View& low, const Exec& exec) {
    const Split split{x.as<float>(),
                      x.stride[0],
                      high.stride[0],
                      x.size(1),
                      x.numel(),
                      static_cast<__nv_bfloat16*>(high.data),
                      static_cast<__nv_bfloat16*>(middle.data),
                      static_cast<__nv_bfloat16*>(low.data)};
    launch("gemm.split", split_f32_any, {.grid = grid_for(split.count, kThreads), .block = dim3(kThreads)},
           exec, split);
}

}  // namespace moebius::ops::cuda
