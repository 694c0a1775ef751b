#include "moebius/ops/adamw/cpu.h"

#include <algorithm>
#include <cmath>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kPiece = 1 << 14;

// What is the same for all elements of a step.
struct Factors {
    float clip, beta1, rest1, beta2, rest2;
    float correct1, correct2;  // 1 / (1 − βᵗ)
    float learning_rate, eps, weight_decay;
};

// `t` steps in fp64: in fp32, 1 − β2ᵗ of the first steps would keep four digits.
float bias_correction(float beta, int64_t t) {
    return static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(t))));
}

Factors factors_of(const AdamWArgs& args) {
    const int64_t t = *args.step.as<int64_t>();
    MOEBIUS_CHECK(t >= 1, "step ", t);
    return {.clip = *args.clip.as<float>(),
            .beta1 = args.beta1,
            .rest1 = 1.0f - args.beta1,
            .beta2 = args.beta2,
            .rest2 = 1.0f - args.beta2,
            .correct1 = bias_correction(args.beta1, t),
            .correct2 = bias_correction(args.beta2, t),
            .learning_rate = *args.learning_rate.as<float>(),
            .eps = args.eps,
            .weight_decay = args.weight_decay};
}

// The ways in which the master is held.
struct WideMaster {
    float* master;
    BF16* weights;  // may be null

    MOEBIUS_INLINE F16 get(int64_t i, int64_t count) const { return load_some(master + i, count); }
    MOEBIUS_INLINE void set(int64_t i, F16 value, int64_t count) const {
        store_some(master + i, value, count);
        if (weights) store_some(weights + i, value, count);
    }
};
struct NoMaster {
    BF16* weights;

    MOEBIUS_INLINE F16 get(int64_t i, int64_t count) const { return load_some(weights + i, count); }
    MOEBIUS_INLINE void set(int64_t i, F16 value, int64_t count) const {
        store_some(weights + i, value, count);
    }
};
struct SplitMaster {  // split_float and join_float, in lanes
    BF16 *weights, *remainder;

    MOEBIUS_INLINE F16 get(int64_t i, int64_t count) const {
        const U16 high = reinterpret_cast<U16>(load_some(weights + i, count));
        const U16 low = reinterpret_cast<U16>(load_some(remainder + i, count)) >> 16;
        return reinterpret_cast<F16>(high - ((low & 0x8000u) << 1) + low);
    }
    MOEBIUS_INLINE void set(int64_t i, F16 value, int64_t count) const {
        const U16 word = reinterpret_cast<U16>(value);
        const U16 is_nan = reinterpret_cast<U16>(nan_mask(value));
        const U16 rounded = (word + 0x8000u) >> 16, quiet = (word >> 16) | 0x0040u;
        store_halves(weights + i, (quiet & is_nan) | (rounded & ~is_nan), count);
        store_halves(remainder + i, word & ((0x7FFFu & is_nan) | (0xFFFFu & ~is_nan)), count);
    }
    MOEBIUS_INLINE static void store_halves(BF16* to, U16 value, int64_t count) {
        const H16 half = __builtin_convertvector(value, H16);
        if (count == kLanes) {
            std::memcpy(to, &half, sizeof half);
        } else {
            for (int64_t i = 0; i < count; ++i) to[i].bits = half[i];
        }
    }
};

template <class P, class G, class M, class V>
struct Range {
    P master;
    const G* grad;
    M* m;
    V* v;
};

// Calls f with the form in which these arguments hold the master.
template <class F>
void with_master(const AdamWArgs& a, F&& f) {
    BF16* weights = a.weights ? a.weights.as<BF16>() : nullptr;
    if (a.master) return f(WideMaster{a.master.as<float>(), weights});
    if (a.remainder) return f(SplitMaster{weights, static_cast<BF16*>(a.remainder.data)});
    f(NoMaster{weights});
}

MOEBIUS_INLINE F16 square_root(F16 value) {
    alignas(64) float lane[kLanes];
    store(lane, value);
    for (int64_t i = 0; i < kLanes; ++i) lane[i] = __builtin_sqrtf(lane[i]);
    return load(lane);
}

struct AdamWBody {
    template <class P, class G, class M, class V>
    MOEBIUS_INLINE static void update(const Range<P, G, M, V>& r, const Factors& f, int64_t i,
                                      int64_t count) {
        const F16 g = load_some(r.grad + i, count) * f.clip;
        const F16 m = load_some(r.m + i, count) * f.beta1 + g * f.rest1;
        const F16 v = load_some(r.v + i, count) * f.beta2 + (g * g) * f.rest2;
        const F16 p = r.master.get(i, count);
        const F16 step = (m * f.correct1) / (square_root(v * f.correct2) + f.eps);
        const F16 updated = p - (step + p * f.weight_decay) * f.learning_rate;
        store_some(r.m + i, m, count);
        store_some(r.v + i, v, count);
        r.master.set(i, updated, count);
    }
    template <Isa, class P, class G, class M, class V>
    MOEBIUS_INLINE static void run(const Range<P, G, M, V> r, const Factors f, int64_t begin, int64_t end) {
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) update(r, f, i, kLanes);
        if (i < end) update(r, f, i, end - i);
    }
};

}  // namespace

void adamw(const AdamWArgs& args, const Exec& exec) {
    if (*args.bad.as<int32_t>() != 0) return;
    const Factors factors = factors_of(args);
    const int64_t count = args.grad.numel();
    const auto run = [&](const auto& range) {
        exec.parallel(ceil_div(count, kPiece), [&](int64_t piece, int) {
            const int64_t begin = piece * kPiece;
            with_isa<AdamWBody>(exec.device->isa(), range, factors, begin, std::min(count, begin + kPiece));
        });
    };
    with_float_type(args.grad.dtype, [&](auto grad) {
        with_float_type(args.m.dtype, [&](auto m) {
            with_float_type(args.v.dtype, [&](auto v) {
                with_master(args, [&](auto master) {
                    using R = Range<decltype(master), decltype(grad), decltype(m), decltype(v)>;
                    run(R{master, args.grad.as<decltype(grad)>(), args.m.as<decltype(m)>(),
                          args.v.as<decltype(v)>()});
                });
            });
        });
    });
}

}  // namespace moebius::ops::cpu
