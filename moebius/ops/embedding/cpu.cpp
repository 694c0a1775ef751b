#include "moebius/ops/embedding/cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kRows = 64;             // tokens a piece of the forward copies
constexpr int64_t kColumns = 4 * kLanes;  // a piece of the backward keeps this much of a row in registers

// The row an id reads, and whether it is one of the table's.
MOEBIUS_INLINE bool in_table(int32_t id, int64_t vocabulary) {
    return id >= 0 && id < vocabulary;
}

// Tokens sorted by id, in order within an id: tokens of id v are order[starts[v]] … order[starts[v + 1] − 1].
void sort_by_id(const int32_t* ids, int64_t tokens, int64_t vocabulary, int64_t* starts, int64_t* order) {
    std::memset(starts, 0, static_cast<size_t>(vocabulary + 2) * sizeof *starts);
    // Counts two places up; the prefix sum then leaves each id's start one place up, and filling moves it
    // down.
    const auto row = [&](int64_t t) { return in_table(ids[t], vocabulary) ? ids[t] : 0; };
    for (int64_t t = 0; t < tokens; ++t) ++starts[row(t) + 2];
    for (int64_t v = 0; v < vocabulary; ++v) starts[v + 2] += starts[v + 1];
    for (int64_t t = 0; t < tokens; ++t) order[starts[row(t) + 1]++] = t;
}

template <class T, class D>
struct Gradient {
    const T* dout;
    int64_t dout_stride;
    D* dtable;
    int64_t table_stride;
    const int64_t* starts;
    const int64_t* order;
    int64_t padding_idx;
    float beta;
};

struct GradientBody {
    // Σ rows of one id, token after token, `count` columns from `column`.
    template <class T, class D>
    MOEBIUS_INLINE static void sum_rows(const Gradient<T, D>& g, int64_t id, int64_t column, int64_t count) {
        const int64_t begin = g.starts[id], end = id == g.padding_idx ? begin : g.starts[id + 1];
        D* out = g.dtable + id * g.table_stride + column;
        if (begin == end && g.beta == 1.0f) return;
        const bool whole = count == kColumns;
        F16 total[4] = {};
        for (int64_t k = begin; k < end; ++k) {
            const T* row = g.dout + g.order[k] * g.dout_stride + column;
            if (k + 8 < end) __builtin_prefetch(g.dout + g.order[k + 8] * g.dout_stride + column);
            if (whole) {
#pragma GCC unroll 4
                for (int64_t j = 0; j < 4; ++j) total[j] += load(row + j * kLanes);
            } else {
                for (int64_t j = 0; j * kLanes < count; ++j) {
                    total[j] += load_some(row + j * kLanes, std::min(kLanes, count - j * kLanes));
                }
            }
        }
        for (int64_t j = 0; j * kLanes < count; ++j) {
            const int64_t lanes = std::min(kLanes, count - j * kLanes);
            if (g.beta != 0.0f) total[j] += load_some(out + j * kLanes, lanes) * g.beta;
            store_some(out + j * kLanes, total[j], lanes);
        }
    }
    template <Isa, class T, class D>
    MOEBIUS_INLINE static void run(const Gradient<T, D> g, int64_t first_id, int64_t last_id, int64_t column,
                                   int64_t count) {
        for (int64_t id = first_id; id < last_id; ++id) sum_rows(g, id, column, count);
    }
};

}  // namespace

void embedding(const EmbeddingArgs& args, const Exec& exec) {
    const int32_t* ids = args.ids.as<int32_t>();
    const int64_t tokens = args.ids.size(0), vocabulary = args.table.size(0);
    const int64_t element = bits(args.table.dtype) / 8;
    const auto* table = static_cast<const char*>(args.table.data);
    auto* out = static_cast<char*>(args.out.data);
    const size_t row_bytes = static_cast<size_t>(args.table.size(1) * element);
    std::atomic<bool> bad{false};
    exec.parallel(ceil_div(tokens, kRows), [&](int64_t piece, int) {
        const int64_t begin = piece * kRows;
        for (int64_t t = begin; t < std::min(tokens, begin + kRows); ++t) {
            const bool known = in_table(ids[t], vocabulary);
            if (!known) bad.store(true, std::memory_order_relaxed);
            const int64_t row = known ? ids[t] : 0;
            std::memcpy(out + t * args.out.stride[0] * element, table + row * args.table.stride[0] * element,
                        row_bytes);
        }
    });
    if (bad && args.bad) *args.bad.as<int32_t>() = 1;
}

void embedding_backward(const EmbeddingBackwardArgs& args, const Exec& exec) {
    const int64_t tokens = args.ids.size(0), vocabulary = args.dtable.size(0), hidden = args.dtable.size(1);
    const Scratch starts("embedding starts", static_cast<size_t>(vocabulary + 2) * sizeof(int64_t), exec);
    const Scratch order("embedding order", static_cast<size_t>(tokens) * sizeof(int64_t), exec);
    sort_by_id(args.ids.as<int32_t>(), tokens, vocabulary, starts.as<int64_t>(), order.as<int64_t>());
    // A sum runs in token order whoever runs it, so the cut is free; few ids may hold nearly all tokens, so
    // a piece has few ids and a part of the columns.
    const int64_t ids_a_piece = ceil_div(vocabulary, 1024), id_pieces = ceil_div(vocabulary, ids_a_piece);
    with_float_type(args.dout.dtype, [&](auto type) {
        with_float_type(args.dtable.dtype, [&](auto table_type) {
            using T = decltype(type);
            using D = decltype(table_type);
            const Gradient<T, D> g{
                args.dout.as<T>(),    args.dout.stride[0], args.dtable.as<D>(), args.dtable.stride[0],
                starts.as<int64_t>(), order.as<int64_t>(), args.padding_idx,    args.beta};
            exec.parallel(id_pieces * ceil_div(hidden, kColumns), [&](int64_t piece, int) {
                const int64_t first = piece % id_pieces * ids_a_piece, column = piece / id_pieces * kColumns;
                with_isa<GradientBody>(exec.device->isa(), g, first,
                                       std::min(vocabulary, first + ids_a_piece), column,
                                       std::min(kColumns, hidden - column));
            });
        });
    });
}

}  // namespace moebius::ops::cpu
