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

template <class G, class M, class V>
struct Range {
    float* master;
    BF16* weights;  // may be null
    const G* grad;
    M* m;
    V* v;
};

MOEBIUS_INLINE F16 square_root(F16 value) {
    alignas(64) float lane[kLanes];
    store(lane, value);
    for (int64_t i = 0; i < kLanes; ++i) lane[i] = __builtin_sqrtf(lane[i]);
    return load(lane);
}

struct AdamWBody {
    template <class G, class M, class V>
    MOEBIUS_INLINE static void update(const Range<G, M, V>& r, const Factors& f, int64_t i, int64_t count) {
        const F16 g = load_some(r.grad + i, count) * f.clip;
        const F16 m = load_some(r.m + i, count) * f.beta1 + g * f.rest1;
        const F16 v = load_some(r.v + i, count) * f.beta2 + (g * g) * f.rest2;
        const F16 p = load_some(r.master + i, count);
        const F16 step = (m * f.correct1) / (square_root(v * f.correct2) + f.eps);
        const F16 updated = p - (step + p * f.weight_decay) * f.learning_rate;
        store_some(r.m + i, m, count);
        store_some(r.v + i, v, count);
        store_some(r.master + i, updated, count);
        if (r.weights) store_some(r.weights + i, updated, count);
    }
    template <Isa, class G, class M, class V>
    MOEBIUS_INLINE static void run(const Range<G, M, V> r, const Factors f, int64_t begin, int64_t end) {
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) update(r, f, i, kLanes);
        if (i < end) update(r, f, i, end - i);
    }
};

}  // namespace

void adamw(const AdamWArgs& args, const Exec& exec) {
    if (*args.bad.as<int32_t>() != 0) return;
    const Factors factors = factors_of(args);
    const int64_t count = args.master.numel();
    with_float_type(args.grad.dtype, [&](auto grad) {
        with_float_type(args.m.dtype, [&](auto m) {
            with_float_type(args.v.dtype, [&](auto v) {
                using R = Range<decltype(grad), decltype(m), decltype(v)>;
                const R range{args.master.as<float>(), args.weights ? args.weights.as<BF16>() : nullptr,
                              args.grad.as<decltype(grad)>(), args.m.as<decltype(m)>(),
                              args.v.as<decltype(v)>()};
                exec.parallel(ceil_div(count, kPiece), [&](int64_t piece, int) {
                    const int64_t begin = piece * kPiece;
                    with_isa<AdamWBody>(exec.device->isa(), range, factors, begin,
                                        std::min(count, begin + kPiece));
                });
            });
        });
    });
}

}  // namespace moebius::ops::cpu
