#include "moebius/ops/permute/cpu.h"

#include <algorithm>
#include <cstring>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

// Elements that a piece of the row copies moves, about; scalars that a piece moves.
constexpr int64_t kPieceElements = 1 << 15, kPieceScalars = 1 << 14;

int64_t total_rows(const View& split_sizes) {
    int64_t total = 0;
    for (int64_t i = 0; i < split_sizes.numel(); ++i) {
        total +=
            split_sizes.dtype == DType::I64 ? split_sizes.as<int64_t>()[i] : split_sizes.as<int32_t>()[i];
    }
    return total;
}

// f(begin, end) over pieces of rows of `hidden` elements.
template <class F>
void in_rows(int64_t rows, int64_t hidden, const Exec& exec, F&& f) {
    const int64_t size = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, hidden));
    exec.parallel(ceil_div(rows, size), [&](int64_t piece, int) {
        const int64_t begin = piece * size;
        f(begin, std::min(rows, begin + size));
    });
}

// A matrix whose rows may have gaps between them. Offsets in 64 bits: rows · hidden may exceed 2^31.
template <class T>
struct Rows {
    T* data;
    int64_t stride;
    explicit Rows(const View& view) : data(view.as<T>()), stride(view.stride[0]) {}
    MOEBIUS_INLINE T* row(int64_t index) const { return data + index * stride; }
};

template <class T>
struct Gather {
    Rows<T> x, out, dot_with;
    const int32_t* source;
    int64_t topk, hidden, tokens;
    const float* weights;  // or null
    float* dots;           // or null
};

struct GatherBody {
    template <class T>
    MOEBIUS_INLINE static void part(const Gather<T>& g, const T* x, const T* other, T* out, F16 weight,
                                    int64_t count, F16& product) {
        const F16 value = load_some(x, count);
        if (g.dots) product += value * load_some(other, count);
        store_some(out, g.weights ? value * weight : value, count);
    }
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const Gather<T>* gather, int64_t begin, int64_t end) {
        const Gather<T> g = *gather;
        for (int64_t m = begin; m < end; ++m) {
            const int64_t copy = g.source[m];
            MOEBIUS_CHECK(copy >= 0 && copy < g.tokens * g.topk, "row ", m, " holds copy ", copy, " of ",
                          g.tokens * g.topk);
            const T* x = g.x.row(copy / g.topk);
            if (!g.weights && !g.dots) {
                std::memcpy(g.out.row(m), x, static_cast<size_t>(g.hidden) * sizeof(T));
                continue;
            }
            const T* other = g.dots ? g.dot_with.row(m) : x;
            T* out = g.out.row(m);
            const F16 weight = broadcast(g.weights ? g.weights[copy] : 1.0f);
            F16 first = {}, second = {};
            int64_t c = 0;
            for (; c + 2 * kLanes <= g.hidden; c += 2 * kLanes) {
                part(g, x + c, other + c, out + c, weight, kLanes, first);
                part(g, x + c + kLanes, other + c + kLanes, out + c + kLanes, weight, kLanes, second);
            }
            for (; c < g.hidden; c += kLanes)
                part(g, x + c, other + c, out + c, weight, std::min(kLanes, g.hidden - c), first);
            if (g.dots) g.dots[copy] = sum(first + second);
        }
    }
};

template <class T>
struct Combine {
    Rows<T> y, out;
    const int32_t* row_of;
    int64_t topk, hidden, rows;
    const float* weights;  // or null
};

struct CombineBody {
    // `blocks` vectors of a token's sum, the last one of `count` elements.
    template <int blocks, class T>
    MOEBIUS_INLINE static void part(const Combine<T>& g, int64_t token, int64_t column, int64_t count) {
        F16 total[blocks] = {};
        for (int64_t slot = 0; slot < g.topk; ++slot) {
            const T* y = g.y.row(g.row_of[token * g.topk + slot]) + column;
            const F16 weight = broadcast(g.weights ? g.weights[token * g.topk + slot] : 1.0f);
            for (int b = 0; b < blocks; ++b) {
                const F16 value = load_some(y + b * kLanes, b + 1 < blocks ? kLanes : count);
                total[b] += g.weights ? weight * value : value;
            }
        }
        T* out = g.out.row(token) + column;
        for (int b = 0; b < blocks; ++b)
            store_some(out + b * kLanes, total[b], b + 1 < blocks ? kLanes : count);
    }
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const Combine<T>* combine, int64_t begin, int64_t end) {
        const Combine<T> g = *combine;
        for (int64_t token = begin; token < end; ++token) {
            for (int64_t slot = 0; slot < g.topk; ++slot) {
                const int64_t row = g.row_of[token * g.topk + slot];
                MOEBIUS_CHECK(row >= 0 && row < g.rows, "token ", token, " is in row ", row, " of ", g.rows);
            }
            int64_t c = 0;
            for (; c + 4 * kLanes <= g.hidden; c += 4 * kLanes) part<4>(g, token, c, kLanes);
            for (; c < g.hidden; c += kLanes) part<1>(g, token, c, std::min(kLanes, g.hidden - c));
        }
    }
};

}  // namespace

void gather_rows(const GatherRowsArgs& args, const Exec& exec) {
    const int64_t capacity = args.out.size(0), hidden = args.x.size(1);
    const int64_t rows = args.split_sizes ? total_rows(args.split_sizes) : capacity;
    MOEBIUS_CHECK(rows <= capacity, "split_sizes add up to ", rows, ", out has ", capacity, " rows");
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const Gather<T> gather{.x = Rows<T>(args.x),
                               .out = Rows<T>(args.out),
                               .dot_with = Rows<T>(args.dots ? args.dot_with : args.out),
                               .source = args.source.as<int32_t>(),
                               .topk = args.topk,
                               .hidden = hidden,
                               .tokens = args.x.size(0),
                               .weights = args.weights ? args.weights.as<float>() : nullptr,
                               .dots = args.dots ? args.dots.as<float>() : nullptr};
        in_rows(rows, hidden, exec, [&](int64_t begin, int64_t end) {
            with_isa<GatherBody>(exec.device->isa(), &gather, begin, end);
        });
    });
}

void combine_rows(const CombineRowsArgs& args, const Exec& exec) {
    const int64_t tokens = args.out.size(0), hidden = args.out.size(1);
    with_float_type(args.y.dtype, [&](auto type) {
        using T = decltype(type);
        const Combine<T> combine{.y = Rows<T>(args.y),
                                 .out = Rows<T>(args.out),
                                 .row_of = args.row_of.as<int32_t>(),
                                 .topk = args.row_of.size(1),
                                 .hidden = hidden,
                                 .rows = args.y.size(0),
                                 .weights = args.weights ? args.weights.as<float>() : nullptr};
        in_rows(tokens, hidden, exec, [&](int64_t begin, int64_t end) {
            with_isa<CombineBody>(exec.device->isa(), &combine, begin, end);
        });
    });
}

void permute_scalars(const PermuteScalarsArgs& args, const Exec& exec) {
    const int64_t count = args.source.numel();
    const auto* source = args.source.as<int32_t>();
    const auto* values = args.values.as<float>();
    auto* out = args.out.as<float>();
    exec.parallel(ceil_div(count, kPieceScalars), [&](int64_t piece, int) {
        const int64_t begin = piece * kPieceScalars, end = std::min(count, begin + kPieceScalars);
        for (int64_t m = begin; m < end; ++m) {
            const int64_t copy = source[m];
            MOEBIUS_CHECK(copy >= 0 && copy < count, "row ", m, " holds copy ", copy, " of ", count);
            if (args.back) {
                out[copy] = values[m];
            } else {
                out[m] = values[copy];
            }
        }
    });
}

}  // namespace moebius::ops::cpu
