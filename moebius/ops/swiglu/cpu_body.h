// The gated activations' arithmetic on the CPU, one definition for scaled_glu and for grouped_mlp, which must
// give the same bits. Blocks of rows: call through with_isa<GluForwardBody> / with_isa<GluBackwardBody>.
#pragma once

#include "moebius/ops/cpu_math.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops::cpu {

template <class T>
struct GluForwardRows {
    int64_t rows = 0, intermediate = 0;
    const T* x = nullptr;  // (rows, 2I)
    int64_t x_stride = 0;
    const float* scales = nullptr;  // (rows); null: 1
    T* y = nullptr;                 // (rows, I)
    int64_t y_stride = 0;
};

template <class T>
struct GluBackwardRows {
    int64_t rows = 0, intermediate = 0;
    const T* x = nullptr;  // (rows, 2I)
    int64_t x_stride = 0;
    const float* scales = nullptr;  // (rows); null: 1
    const T* dy = nullptr;          // (rows, I)
    int64_t dy_stride = 0;
    T* dx = nullptr;  // (rows, 2I); may be x
    int64_t dx_stride = 0;
    float* dscales = nullptr;  // (rows); may be null
    T* y = nullptr;            // (rows, I), what forward writes; may be null
    int64_t y_stride = 0;
};

// What both directions need of sixteen (gate, up) pairs: y = s · value · up.
struct GluLanes {
    F16 value;          // a·σ(α a), the gate clamped
    F16 derivative;     // of `value` by the gate; zero outside the clamp
    F16 up;             // clamped and offset
    F16 up_derivative;  // of `up`: 1, or 0 outside the clamp
};

template <GluKind kind>
MOEBIUS_INLINE GluLanes glu_lanes(F16 gate, F16 up, const GluOptions& options) {
    if constexpr (kind == GluKind::SwiGlu) {
        const F16 s = sigmoid(gate);
        const F16 value = gate * s;
        return {value, s + value * (1.0f - s), up, broadcast(1.0f)};
    } else {
        const float limit = options.limit;
        const I16 gate_inside = gate <= limit;
        const I16 up_inside = (up >= -limit) & (up <= limit);
        const F16 a = select(gate > limit, broadcast(limit), gate);
        const F16 u = select(up > limit, broadcast(limit), select(up < -limit, broadcast(-limit), up));
        const F16 s = sigmoid(a * options.alpha);
        const F16 value = a * s;
        const F16 derivative = s + (value * options.alpha) * (1.0f - s);
        return {value, select(gate_inside, derivative, F16{}), u + options.offset,
                select(up_inside, broadcast(1.0f), F16{})};
    }
}

// Calls f(column of gate in x, column of y, count ≤ 16) over a row; up lies `block` further than gate.
template <class F>
MOEBIUS_INLINE void glu_columns(int64_t intermediate, int64_t block, F&& f) {
    for (int64_t begin = 0; begin < intermediate; begin += block) {
        for (int64_t j = 0; j < block; j += kLanes) {
            f(2 * begin + j, begin + j, block - j < kLanes ? block - j : kLanes);
        }
    }
}

template <class T>
MOEBIUS_INLINE F16 load_lanes(const T* source, int64_t count) {
    return count == kLanes ? load(source) : load_partial(source, count);
}
template <class T>
MOEBIUS_INLINE void store_lanes(T* destination, F16 value, int64_t count) {
    if (count == kLanes) {
        store(destination, value);
    } else {
        store_partial(destination, value, count);
    }
}

struct GluForwardBody {
    template <GluKind kind, class T>
    MOEBIUS_INLINE static void rows(const GluOptions& options, const GluForwardRows<T>& b) {
        const int64_t block = options.interleave > 0 ? options.interleave : b.intermediate;
        for (int64_t row = 0; row < b.rows; ++row) {
            const T* x = b.x + row * b.x_stride;
            T* y = b.y + row * b.y_stride;
            const float scale = b.scales ? b.scales[row] : 1.0f;
            glu_columns(
                b.intermediate,
                block, [&](int64_t gate, int64_t column, int64_t count) __attribute__((always_inline)) {
                    const GluLanes g = glu_lanes<kind>(load_lanes(x + gate, count),
                                                       load_lanes(x + gate + block, count), options);
                    store_lanes(y + column, scale * (g.value * g.up), count);
                });
        }
    }
    template <Isa, class T>
    MOEBIUS_INLINE static void run(GluOptions options, GluForwardRows<T> b) {
        if (options.kind == GluKind::SwiGlu) {
            rows<GluKind::SwiGlu>(options, b);
        } else {
            rows<GluKind::ClampedQuickGeGlu>(options, b);
        }
    }
};

struct GluBackwardBody {
    template <GluKind kind, class T>
    MOEBIUS_INLINE static void rows(const GluOptions& options, const GluBackwardRows<T>& b) {
        const int64_t block = options.interleave > 0 ? options.interleave : b.intermediate;
        for (int64_t row = 0; row < b.rows; ++row) {
            const T* x = b.x + row * b.x_stride;
            const T* dy = b.dy + row * b.dy_stride;
            T* dx = b.dx + row * b.dx_stride;
            T* y = b.y ? b.y + row * b.y_stride : nullptr;
            const float scale = b.scales ? b.scales[row] : 1.0f;
            F16 dscale{};
            glu_columns(
                b.intermediate,
                block, [&](int64_t gate, int64_t column, int64_t count) __attribute__((always_inline)) {
                    const GluLanes g = glu_lanes<kind>(load_lanes(x + gate, count),
                                                       load_lanes(x + gate + block, count), options);
                    const F16 upstream = load_lanes(dy + column, count);
                    const F16 scaled = upstream * scale;
                    const F16 product = g.value * g.up;
                    dscale += upstream * product;
                    store_lanes(dx + gate, scaled * g.up * g.derivative, count);
                    store_lanes(dx + gate + block, scaled * g.value * g.up_derivative, count);
                    if (y) store_lanes(y + column, scale * product, count);
                });
            if (b.dscales) b.dscales[row] = sum(dscale);
        }
    }
    template <Isa, class T>
    MOEBIUS_INLINE static void run(GluOptions options, GluBackwardRows<T> b) {
        if (options.kind == GluKind::SwiGlu) {
            rows<GluKind::SwiGlu>(options, b);
        } else {
            rows<GluKind::ClampedQuickGeGlu>(options, b);
        }
    }
};

}  // namespace moebius::ops::cpu
