#include "moebius/ops/global_norm/cpu.h"

#include <algorithm>
#include <cmath>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kPiece = 1 << 16;

using D8 = double __attribute__((vector_size(64)));
using H8 = uint16_t __attribute__((vector_size(16)));
using U8 = uint32_t __attribute__((vector_size(32)));
constexpr int64_t kDoubles = 8;

MOEBIUS_INLINE D8 load_doubles(const float* source) {
    F8 value;
    std::memcpy(&value, source, sizeof value);
    return __builtin_convertvector(value, D8);
}
MOEBIUS_INLINE D8 load_doubles(const BF16* source) {
    H8 half;
    std::memcpy(&half, source, sizeof half);
    return __builtin_convertvector(reinterpret_cast<F8>(__builtin_convertvector(half, U8) << 16), D8);
}

// In fp64, where the square of every finite float is finite.
struct SquaresBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const T* values, int64_t count, double* out) {
        D8 total[4] = {};
        int64_t i = 0;
        for (; i + 4 * kDoubles <= count; i += 4 * kDoubles) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < 4; ++j) {
                const D8 x = load_doubles(values + i + j * kDoubles);
                total[j] += x * x;
            }
        }
        double rest = 0;
        for (; i < count; ++i) {
            const double x = static_cast<double>(to_float(values[i]));
            rest += x * x;
        }
        const D8 all = (total[0] + total[1]) + (total[2] + total[3]);
        for (int64_t j = 0; j < kDoubles; ++j) rest += all[j];
        *out = rest;
    }
};

}  // namespace

void sum_of_squares(const SumOfSquaresArgs& args, const Exec& exec) {
    const int64_t count = args.values.numel(), pieces = ceil_div(count, kPiece);
    const Scratch sums("sum_of_squares", static_cast<size_t>(pieces) * sizeof(double), exec);
    double* partial = sums.as<double>();
    with_float_type(args.values.dtype, [&](auto type) {
        using T = decltype(type);
        const T* values = args.values.as<T>();
        exec.parallel(pieces, [&](int64_t piece, int) {
            const int64_t begin = piece * kPiece;
            with_isa<SquaresBody>(exec.device->isa(), values + begin, std::min(kPiece, count - begin),
                                  partial + piece);
        });
    });
    double total = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) total += partial[piece];
    *args.sum_of_squares.as<double>() += total;
}

void clip_factor(const ClipFactorArgs& args, const Exec&) {
    const double factor = args.grad_factor ? static_cast<double>(*args.grad_factor.as<float>()) : 1.0;
    const double norm = factor * std::sqrt(*args.sum_of_squares.as<double>());
    const auto rounded = static_cast<float>(norm);
    *args.norm.as<float>() = rounded;
    const bool finite = std::isfinite(rounded) && (!args.loss || std::isfinite(*args.loss.as<float>()));
    if (!finite) {
        *args.bad.as<int32_t>() = 1;
        *args.clip.as<float>() = 0.0f;
        return;
    }
    const double limit = args.max_norm > 0 ? static_cast<double>(args.max_norm) / (norm + 1e-6) : 1.0;
    *args.clip.as<float>() = static_cast<float>(factor * std::min(1.0, limit));
}

}  // namespace moebius::ops::cpu
