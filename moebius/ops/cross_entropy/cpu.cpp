#include "moebius/ops/cross_entropy/cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

constexpr int32_t kIgnored = -100;
constexpr int64_t kPieceElements = 1 << 14;

// Lanes past `count` hold −infinity: no effect on a maximum, and e^−infinity = 0.
template <class T>
MOEBIUS_INLINE F16 load_logits(const T* source, int64_t count) {
    if (count == kLanes) return load(source);
    float buffer[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
        buffer[i] = i < count ? to_float(source[i]) : -std::numeric_limits<float>::infinity();
    }
    return load(buffer);
}

// Largest logit of a row and Σ e^(logit − largest): what softmax needs.
struct RowSums {
    float largest, total;
};

struct SumsBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const T* logits, int64_t vocabulary, RowSums* out) {
        const F16 kLowest = broadcast(-std::numeric_limits<float>::infinity());
        const int64_t whole = vocabulary / kLanes * kLanes;
        F16 most[4] = {kLowest, kLowest, kLowest, kLowest};
        int64_t i = 0;
        for (; i + 4 * kLanes <= whole; i += 4 * kLanes) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < 4; ++j) most[j] = maximum(load(logits + i + j * kLanes), most[j]);
        }
        for (; i < whole; i += kLanes) most[0] = maximum(load(logits + i), most[0]);
        if (i < vocabulary) most[1] = maximum(load_logits(logits + i, vocabulary - i), most[1]);
        const float top = ops::largest(maximum(maximum(most[0], most[1]), maximum(most[2], most[3])));
        F16 total[2] = {};
        for (i = 0; i + 2 * kLanes <= whole; i += 2 * kLanes) {
#pragma GCC unroll 2
            for (int64_t j = 0; j < 2; ++j) total[j] += exp(load(logits + i + j * kLanes) - top);
        }
        for (; i < whole; i += kLanes) total[0] += exp(load(logits + i) - top);
        if (i < vocabulary) total[1] += exp(load_logits(logits + i, vocabulary - i) - top);
        *out = {top, ops::sum(total[0] + total[1])};
    }
};

// scale · softmax, in place if `out` is `logits`.
struct GradientBody {
    template <Isa, class T, class D>
    MOEBIUS_INLINE static void run(const T* logits, D* out, int64_t vocabulary, RowSums sums, float scale) {
        const float factor = scale / sums.total;
        int64_t i = 0;
        for (; i + kLanes <= vocabulary; i += kLanes) {
            store(out + i, exp(load(logits + i) - sums.largest) * factor);
        }
        if (const int64_t rest = vocabulary - i; rest > 0) {
            store_partial(out + i, exp(load_logits(logits + i, rest) - sums.largest) * factor, rest);
        }
    }
};

template <class T, class D>
void run_row(const CrossEntropyArgs& args, int64_t row, Isa isa, std::atomic<bool>& bad) {
    const int64_t vocabulary = args.logits.size(1);
    const int32_t target = args.targets.as<int32_t>()[row];
    const T* logits = args.logits.as<T>() + row * args.logits.stride[0];
    D* gradient = args.dlogits ? args.dlogits.as<D>() + row * args.dlogits.stride[0] : nullptr;
    float& loss = args.token_loss.as<float>()[row];
    if (target < 0 || target >= vocabulary) {
        if (target != kIgnored) bad.store(true, std::memory_order_relaxed);
        loss = 0.0f;
        if (gradient) std::fill_n(gradient, vocabulary, D{});
        return;
    }
    RowSums sums{};
    with_isa<SumsBody>(isa, logits, vocabulary, &sums);
    const float own = to_float(logits[target]) - sums.largest;
    loss = std::log(sums.total) - own;
    if (!gradient) return;
    const float scale = *args.grad_scale.as<float>();
    const float probability = std::exp(own) / sums.total;
    with_isa<GradientBody>(isa, logits, gradient, vocabulary, sums, scale);
    store_as(gradient + target, scale * (probability - 1.0f));
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, const Exec& exec) {
    const int64_t tokens = args.logits.size(0);
    const int64_t rows = std::max<int64_t>(1, kPieceElements / args.logits.size(1));
    const DType gradient = args.dlogits ? args.dlogits.dtype : args.logits.dtype;
    std::atomic<bool> bad{false};
    with_float_type(args.logits.dtype, [&](auto type) {
        with_float_type(gradient, [&](auto gradient_type) {
            exec.parallel(ceil_div(tokens, rows), [&](int64_t piece, int) {
                const int64_t begin = piece * rows;
                for (int64_t row = begin; row < std::min(tokens, begin + rows); ++row) {
                    run_row<decltype(type), decltype(gradient_type)>(args, row, exec.device->isa(), bad);
                }
            });
        });
    });
    if (bad && args.bad) *args.bad.as<int32_t>() = 1;
}

}  // namespace moebius::ops::cpu
