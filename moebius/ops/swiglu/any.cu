#include <type_traits>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/swiglu/cuda.h"
#include "moebius/ptx/glu.h"
#include "moebius/ptx/reduce.h"
#include "moebius/ptx/rows_in_use.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

// One definition of precision for every kernel on a type: ptx/glu.h.
template <class T>
inline constexpr bool kPrecise = std::is_same_v<T, float>;

template <class T>
struct Glu {
    DeviceRows<const T> x, dy;  // (M, 2I), (M, I); dy in the backward
    DeviceRows<T> dx, y;        // y may be null in the backward
    const float* scales;        // may be null
    float* dscales;             // may be null
    ptx::SplitSizes sizes;
    int64_t intermediate, block;  // columns of gates side by side, then as many of ups
    ptx::GluConstants constants;

    __device__ float scale(int64_t row) const { return scales != nullptr ? scales[row] : 1.0f; }
    // In x; its up lies `block` further.
    __device__ int64_t gate_column(int64_t column) const {
        return block == intermediate ? column : column / block * 2 * block + column % block;
    }
};

// threadIdx.x: vectors of a row; threadIdx.y: rows.
template <bool kClamped, int N, class T>
__global__ void __launch_bounds__(128) scaled_glu_any(const Glu<T> a) {
    const int64_t used = ptx::rows_in_use(a.sizes);
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= used) return;
    const float scale = a.scale(row);
#pragma unroll 2
    for (int64_t column = int64_t{threadIdx.x} * N; column < a.intermediate;
         column += int64_t{blockDim.x} * N) {
        const T* x = a.x.row(row) + a.gate_column(column);
        float gate[N], up[N];
        ptx::load_floats<N>(x, gate);
        ptx::load_floats<N>(x + a.block, up);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const ptx::GluPair pair = ptx::glu_pair<kClamped, kPrecise<T>>(gate[i], up[i], a.constants);
            gate[i] = ptx::glu_forward(pair, scale);
        }
        ptx::store_floats<N>(a.y.row(row) + column, gate);
    }
}

// A block a row. dx may be x: a thread reads its pairs before it writes their gradients. Half-warps lie
// beside each other as scaled_glu_backward_warps says.
template <bool kClamped, int kThreads, int N, class T>
__global__ void __launch_bounds__(kThreads) scaled_glu_backward_any(const Glu<T> a) {
    const int64_t row = blockIdx.x;
    if (row >= ptx::rows_in_use(a.sizes)) return;
    const float scale = a.scale(row);
    float dscale = 0.0f;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int first = (lane / 16 * (kThreads / 32) + warp) * 16 * N + lane % 16 * N;
    for (int64_t column = first; column < a.intermediate; column += kThreads * N) {
        const int64_t at = a.gate_column(column);
        float gate[N], up[N], dy[N], y[N];
        ptx::load_floats<N>(a.x.row(row) + at, gate);
        ptx::load_floats<N>(a.x.row(row) + at + a.block, up);
        ptx::load_floats<N>(a.dy.row(row) + column, dy);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const ptx::GluPair pair = ptx::glu_pair<kClamped, kPrecise<T>>(gate[i], up[i], a.constants);
            const ptx::GluGradients gradients = ptx::glu_backward<kClamped>(pair, dy[i], scale);
            gate[i] = gradients.dgate;
            up[i] = gradients.dup;
            y[i] = gradients.activation;
            dscale += gradients.dscale;
        }
        ptx::store_floats<N>(a.dx.row(row) + at, gate);
        ptx::store_floats<N>(a.dx.row(row) + at + a.block, up);
        if (a.y) ptx::store_floats<N>(a.y.row(row) + column, y);
    }
    if (a.dscales == nullptr) return;
    dscale = ptx::block_sum<kThreads>(dscale);
    if (threadIdx.x == 0) a.dscales[row] = dscale;
}

// What both directions have in common.
template <class T>
Glu<T> glu_of(const GluOptions& options, const View& x, const View& scales, const View& splits) {
    const int64_t intermediate = x.size(1) / 2;
    return {.x = {x.as<T>(), x.stride[0]},
            .scales = device_data<float>(scales),
            .sizes = {splits.data, splits.dtype == DType::I64, splits ? splits.numel() : 0, x.size(0)},
            .intermediate = intermediate,
            .block = options.interleave > 0 ? options.interleave : intermediate,
            .constants = {options.limit, options.alpha, options.offset}};
}

// Calls f(elements a vector, whether clamped) as constants.
template <class T, class F>
void with_shape(bool vectors, const GluOptions& options, F&& f) {
    const auto with_kind = [&](auto n) {
        if (options.kind == GluKind::SwiGlu) return f(n, std::false_type{});
        f(n, std::true_type{});
    };
    if (vectors) return with_kind(std::integral_constant<int, kVector<T>>{});
    with_kind(std::integral_constant<int, 1>{});
}

}  // namespace

void scaled_glu(const ScaledGluArgs& args, const Exec& exec) {
    if (args.y.size(1) == 0) return;
    with_device_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        Glu<T> a = glu_of<T>(args.options, args.x, args.scales, args.split_sizes);
        a.y = device_rows<T>(args.y);
        const bool vectors = a.block % kVector<T> == 0 && rows_in_vectors(args.x, kVector<T>) &&
                             rows_in_vectors(args.y, kVector<T>);
        with_shape<T>(vectors, args.options, [&](auto n, auto clamped) {
            const dim3 block = row_block(a.intermediate, n());
            launch("scaled_glu", scaled_glu_any<clamped(), n(), T>,
                   {grid_for(args.x.size(0), block.y), block}, exec, a);
        });
    });
}

void scaled_glu_backward(const ScaledGluBackwardArgs& args, const Exec& exec) {
    const int64_t rows = args.x.size(0);
    with_device_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        Glu<T> a = glu_of<T>(args.options, args.x, args.scales, args.split_sizes);
        a.dy = {args.dy.as<T>(), args.dy.stride[0]};
        a.dx = device_rows<T>(args.dx);
        a.y = device_rows<T>(args.y);
        a.dscales = device_data<float>(args.dscales);
        const bool vectors = a.block % kVector<T> == 0 && rows_in_vectors(args.x, kVector<T>) &&
                             rows_in_vectors(args.dy, kVector<T>) && rows_in_vectors(args.dx, kVector<T>) &&
                             rows_in_vectors(args.y, kVector<T>);
        with_shape<T>(vectors, args.options, [&](auto n, auto clamped) {
            const bool narrow = scaled_glu_backward_warps(a.intermediate, n()) == 1;
            launch("scaled_glu_backward",
                   narrow ? scaled_glu_backward_any<clamped(), 32, n(), T>
                          : scaled_glu_backward_any<clamped(), 256, n(), T>,
                   {grid_for(rows, 1), narrow ? 32u : 256u}, exec, a);
        });
    });
}

}  // namespace moebius::ops::cuda
