#include <algorithm>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/rms_norm/cuda.h"
#include "moebius/ptx/reduce.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

// Vectors of a row that a thread keeps in registers between the two passes; what lies further it reads again.
constexpr int kKept = 4;

template <class T, class W>
struct Forward {
    DeviceRows<T> x, residual, sum, y;
    const W* weight;
    float* rstd;  // may be null
    int64_t hidden;
    float eps;
};

// The vector that is normalised, from `column` on; with a residual the sum, as it is stored.
template <int N, class T, class W>
__device__ ptx::Pack<T, N> normalised_vector(const Forward<T, W>& a, int64_t row, int64_t column) {
    ptx::Pack<T, N> result = ptx::load<N>(a.x.row(row) + column);
    if (a.residual) {
        const ptx::Pack<T, N> residual = ptx::load<N>(a.residual.row(row) + column);
        float value[N], other[N];
        ptx::unpack(result, value);
        ptx::unpack(residual, other);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] += other[i];
        result = ptx::pack<T>(value);
        ptx::store(a.sum.row(row) + column, result);
    }
    return result;
}

template <class T, int N>
__device__ float sum_of_squares(const ptx::Pack<T, N>& vector) {
    float value[N], total = 0.0f;
    ptx::unpack(vector, value);
#pragma unroll
    for (int i = 0; i < N; ++i) total += value[i] * value[i];
    return total;
}

template <int N, class T, class W>
__device__ void write_norm(const Forward<T, W>& a, int64_t row, int64_t column, const ptx::Pack<T, N>& vector,
                           float rstd) {
    float value[N], weight[N];
    ptx::unpack(vector, value);
    ptx::load_floats<N>(a.weight + column, weight);
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = value[i] * rstd * weight[i];
    ptx::store(a.y.row(row) + column, ptx::pack<T>(value));
}

// A block a row.
template <int kThreads, int N, class T, class W>
__global__ void __launch_bounds__(kThreads) rms_norm_any(const Forward<T, W> a) {
    constexpr int64_t kStep = kThreads * N;
    const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N;
    ptx::Pack<T, N> kept[kKept];
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        if (first + i * kStep < a.hidden) kept[i] = normalised_vector<N>(a, row, first + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        if (first + i * kStep < a.hidden) total += sum_of_squares(kept[i]);
    }
    for (int64_t column = first + kKept * kStep; column < a.hidden; column += kStep)
        total += sum_of_squares(normalised_vector<N>(a, row, column));

    const float mean = ptx::block_sum<kThreads>(total) / static_cast<float>(a.hidden);
    const float rstd = 1.0f / sqrtf(mean + a.eps);
    if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = rstd;
    if (!a.y) return;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        if (first + i * kStep < a.hidden) write_norm(a, row, first + i * kStep, kept[i], rstd);
    }
    const T* source = a.residual ? a.sum.row(row) : a.x.row(row);
    for (int64_t column = first + kKept * kStep; column < a.hidden; column += kStep)
        write_norm(a, row, column, ptx::load<N>(source + column), rstd);
}

template <class T, class W>
struct Backward {
    DeviceRows<T> x, dy, dresidual, dx;
    const W* weight;
    const float* rstd;
    float* dweight;  // (pieces, hidden): each block's sum over its rows
    int64_t tokens, rows_each, hidden;
};

// x̂ · dy of a vector goes into `dweight`; its product with the weight is returned, summed.
template <int N, class T, class W>
__device__ float project(const Backward<T, W>& a, int64_t column, const ptx::Pack<T, N>& x,
                         const ptx::Pack<T, N>& dy, float rstd, float (&dweight)[N]) {
    float value[N], upstream[N], weight[N], total = 0.0f;
    ptx::unpack(x, value);
    ptx::unpack(dy, upstream);
    ptx::load_floats<N>(a.weight + column, weight);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float along = upstream[i] * (value[i] * rstd);
        dweight[i] += along;
        total += along * weight[i];
    }
    return total;
}

template <int N, class T, class W>
__device__ void write_gradient(const Backward<T, W>& a, int64_t row, int64_t column, const ptx::Pack<T, N>& x,
                               const ptx::Pack<T, N>& dy, const ptx::Pack<T, N>& dresidual, float rstd,
                               float mean) {
    float value[N], upstream[N], weight[N];
    ptx::unpack(x, value);
    ptx::unpack(dy, upstream);
    ptx::load_floats<N>(a.weight + column, weight);
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = (upstream[i] * weight[i] - value[i] * rstd * mean) * rstd;
    if (a.dresidual) {
        float other[N];
        ptx::unpack(dresidual, other);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] += other[i];
    }
    ptx::store(a.dx.row(row) + column, ptx::pack<T>(value));
}

// What a thread holds of a row.
template <class T, int N, int kHeld>
struct RowPart {
    ptx::Pack<T, N> x[kHeld], dy[kHeld], dresidual[kHeld];
    float rstd;

    template <class W>
    __device__ __forceinline__ void load(const Backward<T, W>& a, int64_t row, int64_t first, int64_t step) {
        rstd = a.rstd[row];
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int64_t column = first + i * step;
            if (column >= a.hidden) continue;
            x[i] = ptx::load<N>(a.x.row(row) + column);
            dy[i] = ptx::load<N>(a.dy.row(row) + column);
            if (a.dresidual) dresidual[i] = ptx::load<N>(a.dresidual.row(row) + column);
        }
    }
};

// A block takes `rows_each` rows, one after the other:
//   x̂ = x · rstd, g = dy · w:  dx = rstd · (g − x̂ · mean(g · x̂)),  dw = Σ_rows dy · x̂.
// A thread owns the same columns in all of them and keeps their dw: the first kHeld vectors in registers,
// the others in the piece's row of `dweight`. The next row comes while this one's mean is found: otherwise
// memory would be idle twice a row.
template <int kThreads, int kHeld, int N, class T, class W>
__global__ void __launch_bounds__(kThreads) rms_norm_backward_any(const Backward<T, W> a) {
    constexpr int64_t kStep = kThreads * N;
    const int64_t first = int64_t{threadIdx.x} * N, first_row = blockIdx.x * a.rows_each;
    const int64_t end = first_row + a.rows_each < a.tokens ? first_row + a.rows_each : a.tokens;
    float* out = a.dweight + blockIdx.x * a.hidden;
    float dweight[kHeld][N] = {};
    RowPart<T, N, kHeld> part, next;
    next.load(a, first_row, first, kStep);
    for (int64_t row = first_row; row < end; ++row) {
        part = next;
        if (row + 1 < end) next.load(a, row + 1, first, kStep);
        const float rstd = part.rstd;
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (first + i * kStep < a.hidden)
                total += project(a, first + i * kStep, part.x[i], part.dy[i], rstd, dweight[i]);
        }
        for (int64_t column = first + kHeld * kStep; column < a.hidden; column += kStep) {
            float sums[N] = {};
            if (row > first_row) ptx::load_floats<N>(out + column, sums);
            total += project(a, column, ptx::load<N>(a.x.row(row) + column),
                             ptx::load<N>(a.dy.row(row) + column), rstd, sums);
            ptx::store_floats<N>(out + column, sums);
        }
        const float mean = ptx::block_sum<kThreads>(total) / static_cast<float>(a.hidden);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (first + i * kStep < a.hidden)
                write_gradient(a, row, first + i * kStep, part.x[i], part.dy[i], part.dresidual[i], rstd,
                               mean);
        }
        for (int64_t column = first + kHeld * kStep; column < a.hidden; column += kStep) {
            ptx::Pack<T, N> dresidual;
            if (a.dresidual) dresidual = ptx::load<N>(a.dresidual.row(row) + column);
            write_gradient(a, row, column, ptx::load<N>(a.x.row(row) + column),
                           ptx::load<N>(a.dy.row(row) + column), dresidual, rstd, mean);
        }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        if (first + i * kStep < a.hidden) ptx::store_floats<N>(out + first + i * kStep, dweight[i]);
    }
}

constexpr int kColumns = 32, kSlices = 16;

// out = beta · out + Σ_pieces parts: a thread sums every kSlices-th piece of a column, then the slices are
// added in order.
template <class D>
__global__ void __launch_bounds__(kColumns* kSlices)
    sum_pieces_any(const float* parts, int64_t pieces, int64_t hidden, D* out, float beta) {
    __shared__ float slices[kSlices][kColumns];
    const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
    float total = 0.0f;
    if (column < hidden) {
#pragma unroll 4
        for (int64_t piece = threadIdx.y; piece < pieces; piece += kSlices)
            total += parts[piece * hidden + column];
    }
    slices[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y != 0 || column >= hidden) return;
    for (int slice = 1; slice < kSlices; ++slice) total += slices[slice][threadIdx.x];
    if (beta != 0.0f) total = beta * ptx::load_float(out + column) + total;
    ptx::store_float(out + column, total);
}

// Pieces of the backward at most: four blocks for every multiprocessor of a large card.
constexpr int64_t kMostPieces = 528;

// Calls f(threads, elements a vector) as constants: few threads for short rows.
template <class T, class F>
void with_block(bool vectors, int64_t hidden, F&& f) {
    constexpr int N = kVector<T>;
    using std::integral_constant;
    if (!vectors) return f(integral_constant<int, 128>{}, integral_constant<int, 1>{});
    if (hidden <= 32 * N * kKept) return f(integral_constant<int, 32>{}, integral_constant<int, N>{});
    if (hidden <= 128 * N * kKept) return f(integral_constant<int, 128>{}, integral_constant<int, N>{});
    return f(integral_constant<int, 256>{}, integral_constant<int, N>{});
}

// The same for backward, f(threads, vectors held, elements a vector): two vectors of each tensor and of the
// next row's are held where that reaches.
template <class T, class F>
void with_backward_block(bool vectors, int64_t hidden, F&& f) {
    constexpr int N = kVector<T>;
    using std::integral_constant;
    using Two = integral_constant<int, 2>;
    if (!vectors) return f(integral_constant<int, 128>{}, Two{}, integral_constant<int, 1>{});
    if (hidden <= 32 * N * 2) return f(integral_constant<int, 32>{}, Two{}, integral_constant<int, N>{});
    if (hidden <= 128 * N * 2) return f(integral_constant<int, 128>{}, Two{}, integral_constant<int, N>{});
    if (hidden <= 256 * N * 2) return f(integral_constant<int, 256>{}, Two{}, integral_constant<int, N>{});
    return f(integral_constant<int, 256>{}, integral_constant<int, 4>{}, integral_constant<int, N>{});
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Exec& exec) {
    const int64_t tokens = args.x.size(0), hidden = args.x.size(1);
    with_device_type(args.x.dtype, [&](auto type) {
        with_device_type(args.weight.dtype, [&](auto weight_type) {
            using T = decltype(type);
            using W = decltype(weight_type);
            const Forward<T, W> a{device_rows<T>(args.x),
                                  device_rows<T>(args.residual),
                                  device_rows<T>(args.sum),
                                  device_rows<T>(args.y),
                                  args.weight.as<W>(),
                                  device_data<float>(args.rstd),
                                  hidden,
                                  args.eps};
            constexpr int N = kVector<T>;
            const bool vectors = rows_in_vectors(args.x, N) && rows_in_vectors(args.residual, N) &&
                                 rows_in_vectors(args.sum, N) && rows_in_vectors(args.y, N) &&
                                 starts_aligned(args.weight, N);
            with_block<T>(vectors, hidden, [&](auto threads, auto n) {
                launch("rms_norm", rms_norm_any<threads(), n(), T, W>, {grid_for(tokens, 1), threads()}, exec,
                       a);
            });
        });
    });
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Exec& exec) {
    const int64_t tokens = args.x.size(0), hidden = args.x.size(1);
    const int64_t rows_each = std::max<int64_t>(1, ceil_div(tokens, kMostPieces));
    const int64_t pieces = ceil_div(tokens, rows_each);
    const Scratch parts("rms_norm dweight", static_cast<size_t>(pieces * hidden) * sizeof(float), exec);
    with_device_type(args.x.dtype, [&](auto type) {
        with_device_type(args.weight.dtype, [&](auto weight_type) {
            using T = decltype(type);
            using W = decltype(weight_type);
            const Backward<T, W> a{device_rows<T>(args.x),
                                   device_rows<T>(args.dy),
                                   device_rows<T>(args.dresidual),
                                   device_rows<T>(args.dx),
                                   args.weight.as<W>(),
                                   args.rstd.as<float>(),
                                   parts.as<float>(),
                                   tokens,
                                   rows_each,
                                   hidden};
            constexpr int N = kVector<T>;
            const bool vectors = rows_in_vectors(args.x, N) && rows_in_vectors(args.dy, N) &&
                                 rows_in_vectors(args.dresidual, N) && rows_in_vectors(args.dx, N) &&
                                 starts_aligned(args.weight, N);
            with_backward_block<T>(vectors, hidden, [&](auto threads, auto held, auto n) {
                launch("rms_norm_backward", rms_norm_backward_any<threads(), held(), n(), T, W>,
                       {grid_for(pieces, 1), threads()}, exec, a);
            });
        });
    });
    with_device_type(args.dweight.dtype, [&](auto type) {
        using D = decltype(type);
        launch("rms_norm dweight", sum_pieces_any<D>, {grid_for(hidden, kColumns), dim3(kColumns, kSlices)},
               exec, parts.as<float>(), pieces, hidden, args.dweight.as<D>(), args.beta);
    });
}

}  // namespace moebius::ops::cuda
