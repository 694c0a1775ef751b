#include "moebius/ops/rms_norm/cpu.h"

#include <algorithm>
#include <cmath>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

// A matrix by rows; null where the op was not given one.
template <class T>
struct Rows {
    T* data = nullptr;
    int64_t stride = 0;

    MOEBIUS_INLINE T* row(int64_t index) const { return data + index * stride; }
};

template <class T>
Rows<T> rows_of(const View& view) {
    return view ? Rows<T>{view.as<T>(), view.stride[0]} : Rows<T>{};
}

template <class T, class W>
struct Forward {
    Rows<T> x, residual, sum, y;
    const W* weight;
    float* rstd;
    int64_t hidden;
    float eps;
};

struct ForwardBody {
    // Σ (x + residual)² of a row, in four chains so that additions overlap; writes the sum on the way.
    template <class T>
    MOEBIUS_INLINE static F16 squares(const T* x, const T* residual, T* sum, int64_t count) {
        F16 value = load_some(x, count);
        if (residual) {
            store_some(sum, value + load_some(residual, count), count);
            value = load_some(sum, count);  // what was normalised is what is stored
        }
        return value * value;
    }
    template <Isa, class T, class W>
    MOEBIUS_INLINE static void run(const Forward<T, W> a, int64_t begin, int64_t end) {
        const bool added = a.residual.data != nullptr;
        for (int64_t r = begin; r < end; ++r) {
            const T* x = a.x.row(r);
            const T* residual = added ? a.residual.row(r) : nullptr;
            T* sum = added ? a.sum.row(r) : nullptr;
            F16 total[4] = {};
            int64_t i = 0;
            for (; i + 4 * kLanes <= a.hidden; i += 4 * kLanes) {
#pragma GCC unroll 4
                for (int64_t j = 0; j < 4; ++j) {
                    const int64_t at = i + j * kLanes;
                    total[j] +=
                        squares(x + at, added ? residual + at : nullptr, sum + (added ? at : 0), kLanes);
                }
            }
            for (; i + kLanes <= a.hidden; i += kLanes) {
                total[0] += squares(x + i, added ? residual + i : nullptr, sum + (added ? i : 0), kLanes);
            }
            if (i < a.hidden) {
                total[1] +=
                    squares(x + i, added ? residual + i : nullptr, sum + (added ? i : 0), a.hidden - i);
            }
            const float mean =
                ops::sum((total[0] + total[1]) + (total[2] + total[3])) / static_cast<float>(a.hidden);
            const float rstd = 1.0f / __builtin_sqrtf(mean + a.eps);
            if (a.rstd) a.rstd[r] = rstd;
            if (a.y.data == nullptr) continue;
            const T* source = added ? sum : x;
            T* y = a.y.row(r);
            for (i = 0; i + kLanes <= a.hidden; i += kLanes) {
                store(y + i, load(source + i) * rstd * load(a.weight + i));
            }
            if (const int64_t rest = a.hidden - i; rest > 0) {
                store_partial(y + i, load_partial(source + i, rest) * rstd * load_partial(a.weight + i, rest),
                              rest);
            }
        }
    }
};

template <class T, class W>
struct Backward {
    Rows<T> x, dy, dresidual, dx;
    const W* weight;
    const float* rstd;
    int64_t hidden;
};

// x̂ = x · rstd, g = dy · w:  dx = rstd · (g − x̂ · mean(g · x̂)),  dw = Σ_rows dy · x̂.
struct BackwardBody {
    template <class T, class W>
    MOEBIUS_INLINE static F16 project(const T* x, const T* dy, const W* weight, float* dweight, float rstd,
                                      int64_t count) {
        const F16 along = load_some(dy, count) * (load_some(x, count) * rstd);
        store_some(dweight, load_some(dweight, count) + along, count);
        return along * load_some(weight, count);
    }
    template <class T, class W>
    MOEBIUS_INLINE static void write(const Backward<T, W>& a, int64_t r, int64_t i, float mean,
                                     int64_t count) {
        const float rstd = a.rstd[r];
        const F16 normalised = load_some(a.x.row(r) + i, count) * rstd;
        F16 dx =
            (load_some(a.dy.row(r) + i, count) * load_some(a.weight + i, count) - normalised * mean) * rstd;
        if (a.dresidual.data) dx += load_some(a.dresidual.row(r) + i, count);
        store_some(a.dx.row(r) + i, dx, count);
    }
    // `dweight` (hidden) holds this piece's sum.
    template <Isa, class T, class W>
    MOEBIUS_INLINE static void run(const Backward<T, W> a, float* dweight, int64_t begin, int64_t end) {
        for (int64_t i = 0; i < a.hidden; ++i) dweight[i] = 0.0f;
        for (int64_t r = begin; r < end; ++r) {
            const T* x = a.x.row(r);
            const T* dy = a.dy.row(r);
            const float rstd = a.rstd[r];
            F16 total[2] = {};
            int64_t i = 0;
            for (; i + 2 * kLanes <= a.hidden; i += 2 * kLanes) {
#pragma GCC unroll 2
                for (int64_t j = 0; j < 2; ++j) {
                    const int64_t at = i + j * kLanes;
                    total[j] += project(x + at, dy + at, a.weight + at, dweight + at, rstd, kLanes);
                }
            }
            for (; i < a.hidden; i += kLanes) {
                const int64_t count = std::min(kLanes, a.hidden - i);
                total[0] += project(x + i, dy + i, a.weight + i, dweight + i, rstd, count);
            }
            const float mean = ops::sum(total[0] + total[1]) / static_cast<float>(a.hidden);
            for (i = 0; i + kLanes <= a.hidden; i += kLanes) write(a, r, i, mean, kLanes);
            if (i < a.hidden) write(a, r, i, mean, a.hidden - i);
        }
    }
};

// out = beta · out + Σ_pieces partial, pieces in order.
struct SumPiecesBody {
    template <Isa, class D>
    MOEBIUS_INLINE static void run(const float* partial, int64_t pieces, int64_t hidden, D* out, float beta,
                                   int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += kLanes) {
            const int64_t count = std::min(kLanes, end - i);
            F16 total = {};
            for (int64_t p = 0; p < pieces; ++p) total += load_some(partial + p * hidden + i, count);
            if (beta != 0.0f) total += load_some(out + i, count) * beta;
            store_some(out + i, total, count);
        }
    }
};

constexpr int64_t kForwardElements = 1 << 14;
constexpr int64_t kColumns = 512;

// Rows a piece of the backward sums weight gradients over: at most 256 pieces, so that their sums stay few.
int64_t backward_rows(int64_t tokens) {
    return std::max<int64_t>(32, ceil_div(tokens, 256));
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Exec& exec) {
    const int64_t tokens = args.x.size(0), hidden = args.x.size(1);
    const int64_t rows = std::max<int64_t>(1, kForwardElements / std::max<int64_t>(hidden, 1));
    with_float_type(args.x.dtype, [&](auto type) {
        with_float_type(args.weight.dtype, [&](auto weight_type) {
            using T = decltype(type);
            using W = decltype(weight_type);
            const Forward<T, W> a{rows_of<T>(args.x),
                                  rows_of<T>(args.residual),
                                  rows_of<T>(args.sum),
                                  rows_of<T>(args.y),
                                  args.weight.as<W>(),
                                  args.rstd ? args.rstd.as<float>() : nullptr,
                                  hidden,
                                  args.eps};
            exec.parallel(ceil_div(tokens, rows), [&](int64_t piece, int) {
                const int64_t begin = piece * rows;
                with_isa<ForwardBody>(exec.device->isa(), a, begin, std::min(tokens, begin + rows));
            });
        });
    });
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Exec& exec) {
    const int64_t tokens = args.x.size(0), hidden = args.x.size(1);
    const int64_t rows = backward_rows(tokens), pieces = ceil_div(tokens, rows);
    // (pieces, hidden)
    const Scratch sums("rms_norm dweight", static_cast<size_t>(pieces * hidden) * sizeof(float), exec);
    float* partial = sums.as<float>();
    with_float_type(args.x.dtype, [&](auto type) {
        with_float_type(args.weight.dtype, [&](auto weight_type) {
            using T = decltype(type);
            using W = decltype(weight_type);
            const Backward<T, W> a{rows_of<T>(args.x),
                                   rows_of<T>(args.dy),
                                   rows_of<T>(args.dresidual),
                                   rows_of<T>(args.dx),
                                   args.weight.as<W>(),
                                   args.rstd.as<float>(),
                                   hidden};
            exec.parallel(pieces, [&](int64_t piece, int) {
                const int64_t begin = piece * rows;
                with_isa<BackwardBody>(exec.device->isa(), a, partial + piece * hidden, begin,
                                       std::min(tokens, begin + rows));
            });
        });
    });
    with_float_type(args.dweight.dtype, [&](auto type) {
        auto* dweight = args.dweight.as<decltype(type)>();
        exec.parallel(ceil_div(hidden, kColumns), [&](int64_t piece, int) {
            const int64_t begin = piece * kColumns;
            with_isa<SumPiecesBody>(exec.device->isa(), static_cast<const float*>(partial), pieces, hidden,
                                    dweight, args.beta, begin, std::min(hidden, begin + kColumns));
        });
    });
}

}  // namespace moebius::ops::cpu
