#include "moebius/ops/device_types.cuh"
#include "moebius/ops/embedding/cuda.h"
#include "moebius/ops/permute/cuda.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

template <class T>
struct Lookup {
    DeviceRows<const T> table;
    DeviceRows<T> out;
    const int32_t* ids;
    int32_t* bad;  // may be null
    int64_t tokens, vocabulary, hidden;
};

// threadIdx.x: vectors of a row; threadIdx.y: tokens.
template <int N, class T>
__global__ void embedding_any(const Lookup<T> a) {
    const int64_t token = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (token >= a.tokens) return;
    const int64_t id = a.ids[token];
    const bool known = id >= 0 && id < a.vocabulary;
    if (!known && a.bad != nullptr && threadIdx.x == 0) *a.bad = 1;
    const T* from = a.table.row(known ? id : 0);
    T* to = a.out.row(token);
#pragma unroll 4
    for (int64_t column = int64_t{threadIdx.x} * N; column < a.hidden; column += int64_t{blockDim.x} * N)
        ptx::store(to + column, ptx::load<N>(from + column));
}

// The gradient: tokens sorted by id, in order within an id, are cut into pieces of kPiece, whatever ids they
// have: nucleotides put nearly all tokens on four ids. A piece's block sums the runs of equal ids in it; a
// run that lies in one piece is written at once, others as parts, which the second kernel adds in order.
constexpr int kPiece = 64, kThreads = 128;
constexpr int kRows = 8;  // rows in flight

template <class T, class D>
struct Gradient {
    DeviceRows<const T> dout;
    DeviceRows<D> dtable;
    const int32_t *ids, *order, *starts;  // order: tokens sorted by id; starts (vocabulary + 1) in it
    float* parts;                         // (pieces, 2, hidden): of the run that began in an earlier piece,
                                          // and of the one that begins here and goes on
    int64_t tokens, vocabulary, hidden, padding_idx;
    float beta;

    __device__ int64_t row_of(int64_t token) const {
        const int64_t id = ids[token];
        return id >= 0 && id < vocabulary ? id : 0;
    }
};

template <int N, class T, class D>
__device__ void write_row(const Gradient<T, D>& a, int64_t id, int64_t column, const float (&sum)[N]) {
    float value[N];
    D* out = a.dtable.row(id) + column;
    if (a.beta != 0.0f) {
        ptx::load_floats<N>(out, value);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = a.beta * value[i] + sum[i];
        ptx::store_floats<N>(out, value);
    } else {
        ptx::store_floats<N>(out, sum);
    }
}

// Block (piece, columns).
template <int N, class T, class D>
__global__ void __launch_bounds__(kThreads) sum_runs_any(const Gradient<T, D> a) {
    __shared__ int64_t tokens[kPiece], ids[kPiece];
    const int64_t begin = int64_t{blockIdx.x} * kPiece;
    const int count = a.tokens - begin < kPiece ? static_cast<int>(a.tokens - begin) : kPiece;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        tokens[i] = a.order[begin + i];
        ids[i] = a.row_of(tokens[i]);
    }
    __syncthreads();
    const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
    if (column >= a.hidden) return;
    float sum[N] = {};
    for (int base = 0; base < count; base += kRows) {
        ptx::Pack<T, N> row[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (base + i < count) row[i] = ptx::load<N>(a.dout.row(tokens[base + i]) + column);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (base + i >= count) break;
            float value[N];
            ptx::unpack(row[i], value);
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] += value[j];
            const int64_t id = ids[base + i];
            if (base + i + 1 < count && ids[base + i + 1] == id) continue;
            const int64_t first = a.starts[id], end = a.starts[id + 1];
            if (first < begin || end > begin + kPiece) {
                const int64_t slot = 2 * int64_t{blockIdx.x} + (first < begin ? 0 : 1);
                ptx::store_floats<N>(a.parts + slot * a.hidden + column, sum);
            } else if (id != a.padding_idx) {
                write_row(a, id, column, sum);
            }
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] = 0.0f;
        }
    }
}

// Block (id, columns): ids without a token, and those whose run crosses pieces.
template <int N, class T, class D>
__global__ void __launch_bounds__(kThreads) add_parts_any(const Gradient<T, D> a) {
    const int64_t id = blockIdx.x, column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
    if (column >= a.hidden) return;
    const int64_t first = a.starts[id], end = a.starts[id + 1];
    float sum[N] = {};
    if (first == end || id == a.padding_idx) {
        if (a.beta != 1.0f) write_row(a, id, column, sum);
        return;
    }
    const int64_t last_piece = (end - 1) / kPiece;
    int64_t piece = first / kPiece;
    if (piece == last_piece) return;
    ptx::load_floats<N>(a.parts + (2 * piece + 1) * a.hidden + column, sum);
#pragma unroll 4
    for (++piece; piece <= last_piece; ++piece) {
        float value[N];
        ptx::load_floats<N>(a.parts + 2 * piece * a.hidden + column, value);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += value[j];
    }
    write_row(a, id, column, sum);
}

}  // namespace

void embedding(const EmbeddingArgs& args, const Exec& exec) {
    with_device_type(args.table.dtype, [&](auto type) {
        using T = decltype(type);
        const Lookup<T> a{{args.table.as<T>(), args.table.stride[0]},
                          device_rows<T>(args.out),
                          args.ids.as<int32_t>(),
                          device_data<int32_t>(args.bad),
                          args.ids.size(0),
                          args.table.size(0),
                          args.table.size(1)};
        constexpr int N = kVector<T>;
        const bool vectors = rows_in_vectors(args.table, N) && rows_in_vectors(args.out, N);
        const dim3 block = row_block(a.hidden, vectors ? N : 1);
        launch("embedding", vectors ? embedding_any<N, T> : embedding_any<1, T>,
               {grid_for(a.tokens, block.y), block}, exec, a);
    });
}

void embedding_backward(const EmbeddingBackwardArgs& args, const Exec& exec) {
    const int64_t tokens = args.ids.size(0), vocabulary = args.dtable.size(0), hidden = args.dtable.size(1);
    const int64_t pieces = ceil_div(tokens, kPiece);
    const auto words = static_cast<size_t>(2 * tokens + 2 * vocabulary + 1);
    const Scratch sorted("embedding order", words * sizeof(int32_t), exec);
    const Scratch parts("embedding parts", static_cast<size_t>(pieces * 2 * hidden) * sizeof(float), exec);
    const KeySort sort{.keys = args.ids.as<int32_t>(),
                       .count = tokens,
                       .groups = vocabulary,
                       .row_of = sorted.as<int32_t>(),
                       .source = sorted.as<int32_t>() + tokens,
                       .sizes = sorted.as<int32_t>() + 2 * tokens,
                       .starts = sorted.as<int32_t>() + 2 * tokens + vocabulary};
    sort_by_key(sort, exec);
    with_device_type(args.dout.dtype, [&](auto type) {
        with_device_type(args.dtable.dtype, [&](auto table_type) {
            using T = decltype(type);
            using D = decltype(table_type);
            const Gradient<T, D> a{{args.dout.as<T>(), args.dout.stride[0]},
                                   device_rows<D>(args.dtable),
                                   sort.keys,
                                   sort.source,
                                   sort.starts,
                                   parts.as<float>(),
                                   tokens,
                                   vocabulary,
                                   hidden,
                                   args.padding_idx,
                                   args.beta};
            constexpr int N = kVector<T>;
            const bool vectors = rows_in_vectors(args.dout, N) && rows_in_vectors(args.dtable, N);
            const auto columns = static_cast<unsigned>(ceil_div(hidden, kThreads * (vectors ? N : 1)));
            launch("embedding_backward", vectors ? sum_runs_any<N, T, D> : sum_runs_any<1, T, D>,
                   {dim3(static_cast<unsigned>(pieces), columns), kThreads}, exec, a);
            launch("embedding_backward parts", vectors ? add_parts_any<N, T, D> : add_parts_any<1, T, D>,
                   {dim3(static_cast<unsigned>(vocabulary), columns), kThreads}, exec, a);
        });
    });
}

}  // namespace moebius::ops::cuda
