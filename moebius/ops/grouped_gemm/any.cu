// The products themselves are gemm's; here are the bias' gradients, for every card from sm_80.
#include <cuda_bf16.h>

#include "moebius/ops/gemm/any_products.h"
#include "moebius/ops/grouped_gemm/cuda.h"
#include "moebius/ptx/split_sizes.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kColumns = 32, kLines = 32;  // threads of a block that sums columns
constexpr int kRowsPerBlock = 8;           // warps of a block that sums rows

struct BiasGrad {
    const void *dy, *bias;
    const float* bias_scale;
    void* dbias;
    float* dbias_scale;
    ptx::SplitSizes sizes;
    int64_t n, dy_stride, bias_stride, dbias_stride;
    bool accumulate, bias_is_bf16, dbias_is_bf16;
};

// A block: 32 columns of one expert. Line l sums rows l, l + 32, …; the lines' sums are added as a tree.
template <class T>
__global__ void __launch_bounds__(kColumns* kLines) grouped_bias_grad_columns_any(BiasGrad p) {
    __shared__ float sums[kLines][kColumns];
    const int column = static_cast<int>(threadIdx.x) % kColumns,
              line = static_cast<int>(threadIdx.x) / kColumns;
    const int64_t blocks = (p.n + kColumns - 1) / kColumns;
    const int64_t expert = blockIdx.x / blocks, j = blockIdx.x % blocks * kColumns + column;
    const ptx::ExpertTile own = ptx::find_expert(p.sizes, expert);
    const T* dy = static_cast<const T*>(p.dy) + own.first * p.dy_stride + j;
    float sum = 0.0f;
    for (int64_t i = line; i < own.rows && j < p.n; i += kLines) {
        const float scale = p.bias_scale ? p.bias_scale[own.first + i] : 1.0f;
        sum = fmaf(ptx::load_float(dy + i * p.dy_stride), scale, sum);
    }
    sums[line][column] = sum;
    for (int half = kLines / 2; half > 0; half /= 2) {
        __syncthreads();  // the lines above have left their sums
        if (line < half) sums[line][column] += sums[line + half][column];
    }
    if (line > 0 || j >= p.n) return;
    const int64_t at = expert * p.dbias_stride + j;
    if (p.dbias_is_bf16) {
        auto* to = static_cast<__nv_bfloat16*>(p.dbias) + at;
        ptx::store_float(to, p.accumulate ? ptx::load_float(to) + sums[0][column] : sums[0][column]);
    } else {
        auto* to = static_cast<float*>(p.dbias) + at;
        *to = p.accumulate ? *to + sums[0][column] : sums[0][column];
    }
}

// A warp a row: dbias_scale = Σ_columns dy · bias.
template <class T>
__global__ void __launch_bounds__(32 * kRowsPerBlock) grouped_bias_grad_rows_any(BiasGrad p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
    const ptx::ExpertTile own = ptx::find_expert_tile(p.sizes, 1, row);
    if (own.expert < 0) return;
    const T* dy = static_cast<const T*>(p.dy) + row * p.dy_stride;
    const int64_t bias = own.expert * p.bias_stride;
    float sum = 0.0f;
    for (int64_t j = lane; j < p.n; j += 32) {
        const float value = p.bias_is_bf16
                                ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[bias + j])
                                : static_cast<const float*>(p.bias)[bias + j];
        sum = fmaf(ptx::load_float(dy + j), value, sum);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) p.dbias_scale[row] = sum;
}

template <class T>
void run_bias_grad(const BiasGrad& p, const Exec& exec) {
    const int64_t blocks = (p.n + kColumns - 1) / kColumns * p.sizes.experts;
    launch("grouped_bias_grad.columns", grouped_bias_grad_columns_any<T>,
           {grid_for(blocks, 1), dim3(kColumns * kLines)}, exec, p);
    if (!p.dbias_scale) return;
    launch("grouped_bias_grad.rows", grouped_bias_grad_rows_any<T>,
           {grid_for(p.sizes.capacity, kRowsPerBlock), dim3(32 * kRowsPerBlock)}, exec, p);
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec) {
    any_products({.name = "grouped_gemm",
                  .kind = args.kind,
                  .a = args.a,
                  .b = args.b,
                  .out = args.out,
                  .split_sizes = args.split_sizes,
                  .bias = args.bias,
                  .bias_scale = args.bias_scale,
                  .accumulate = args.beta != 0},
                 exec);
}

void grouped_bias_grad(const GroupedBiasGradArgs& args, const Exec& exec) {
    BiasGrad p{};
    p.dy = args.dy.data;
    p.dbias = args.dbias.data;
    p.dbias_is_bf16 = args.dbias.dtype == DType::BF16;
    p.sizes = {args.split_sizes.data, args.split_sizes.dtype == DType::I64, args.split_sizes.size(0),
               args.dy.size(0)};
    p.n = args.dy.size(1);
    p.dy_stride = args.dy.stride[0];
    p.dbias_stride = args.dbias.stride[0];
    p.accumulate = args.beta != 0;
    if (args.bias) {
        p.bias = args.bias.data;
        p.bias_stride = args.bias.stride[0];
        p.bias_is_bf16 = args.bias.dtype == DType::BF16;
    }
    if (args.bias_scale) p.bias_scale = args.bias_scale.as<float>();
    if (args.dbias_scale) p.dbias_scale = args.dbias_scale.as<float>();
    if (args.dy.dtype == DType::BF16) {
        run_bias_grad<__nv_bfloat16>(p, exec);
    } else {
        run_bias_grad<float>(p, exec);
    }
}

}  // namespace moebius::ops::cuda
