// Cosines and sines are computed once a call, for every position that can occur (or, when there are fewer
// tokens than that, for every token), and then read by all heads.
#include "moebius/ops/rope/cpu.h"

#include <algorithm>
#include <cmath>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

using F8 = float __attribute__((vector_size(32)));
using D8 = double __attribute__((vector_size(64)));
using I64x8 = int64_t __attribute__((vector_size(64)));

constexpr int64_t kTableRows = 64;  // positions a piece
constexpr int64_t kTokens = 64;     // tokens a piece

// Sines and cosines of eight fp32 angles, in double: reduction by π/2 in two parts (fdlibm's constants: the
// first has 33 bits, so that its product with a quotient below 2^20 is exact), then Taylor polynomials on
// |r| ≤ π/4, whose remainders are below 2^−34.
MOEBIUS_INLINE void sine_and_cosine(F8 angle, F8& sine, F8& cosine) {
    const D8 x = __builtin_convertvector(angle, D8);
    const D8 scaled = x * 0.63661977236758134308 + 0x1.8p52;  // an integer in the low bits
    const D8 n = scaled - 0x1.8p52;
    const D8 r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
    const D8 r2 = r * r;
    D8 s = r2 * (1.0 / 362880) - 1.0 / 5040;
    s = s * r2 + 1.0 / 120;
    s = s * r2 - 1.0 / 6;
    s = s * r2 * r + r;
    D8 c = r2 * (-1.0 / 3628800) + 1.0 / 40320;
    c = c * r2 - 1.0 / 720;
    c = c * r2 + 1.0 / 24;
    c = c * r2 - 0.5;
    c = c * r2 + 1.0;
    // Quadrant n mod 4: swap when odd; the sine is negative in 2 and 3, the cosine in 1 and 2.
    const I64x8 quadrant = reinterpret_cast<I64x8>(scaled);
    const I64x8 odd = -(quadrant & 1);
    const I64x8 s_bits = reinterpret_cast<I64x8>(s), c_bits = reinterpret_cast<I64x8>(c);
    const I64x8 s_sign = (quadrant & 2) << 62, c_sign = ((quadrant + 1) & 2) << 62;
    sine = __builtin_convertvector(reinterpret_cast<D8>(((s_bits & ~odd) | (c_bits & odd)) ^ s_sign), F8);
    cosine = __builtin_convertvector(reinterpret_cast<D8>(((c_bits & ~odd) | (s_bits & odd)) ^ c_sign), F8);
}

// One row of the table: `pairs` cosines, then as many sines; both padded to a multiple of 16.
struct TableBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const float* inverse_frequencies, float position, int64_t padded,
                                   float* row) {
        for (int64_t j = 0; j < padded; j += 8) {
            F8 frequency, sine, cosine;
            std::memcpy(&frequency, inverse_frequencies + j, sizeof frequency);
            sine_and_cosine(frequency * position, sine, cosine);
            std::memcpy(row + j, &cosine, sizeof cosine);
            std::memcpy(row + padded + j, &sine, sizeof sine);
        }
    }
};

struct Layout {
    int64_t heads, pairs, padded;
    int64_t x_stride, out_stride;  // between heads
    float sign;                    // of the sines
};

// All heads of one token. x and out may be the same.
struct RotateBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const T* x, T* out, const float* row, Layout layout) {
        for (int64_t head = 0; head < layout.heads; ++head) {
            const T* in = x + head * layout.x_stride;
            T* to = out + head * layout.out_stride;
            for (int64_t j = 0; j < layout.pairs; j += kLanes) {
                const int64_t count = std::min(kLanes, layout.pairs - j);
                const F16 cosine = load(row + j), sine = load(row + layout.padded + j) * layout.sign;
                const F16 a = load_some(in + j, count), b = load_some(in + layout.pairs + j, count);
                store_some(to + j, a * cosine - b * sine, count);
                store_some(to + layout.pairs + j, b * cosine + a * sine, count);
            }
        }
    }
};

}  // namespace

void rope(const RopeArgs& args, const Exec& exec) {
    const int64_t tokens = args.x.size(0), head_dim = args.x.size(2);
    if (tokens == 0 || args.x.size(1) == 0) return;
    const Layout layout{.heads = args.x.size(1),
                        .pairs = head_dim / 2,
                        .padded = ceil_div(head_dim / 2, kLanes) * kLanes,
                        .x_stride = args.x.stride[1],
                        .out_stride = args.out.stride[1],
                        .sign = args.inverse ? -1.0f : 1.0f};
    const int32_t* positions = args.positions.as<int32_t>();
    const auto [least, most] = std::minmax_element(positions, positions + tokens);
    MOEBIUS_CHECK(*least >= 0, "position ", *least);
    const bool by_position = *most < tokens;
    const int64_t rows = by_position ? int64_t{*most} + 1 : tokens;

    const Scratch frequencies("rope frequencies", static_cast<size_t>(layout.padded) * sizeof(float), exec);
    const Scratch table("rope table", static_cast<size_t>(rows * 2 * layout.padded) * sizeof(float), exec);
    // In fp32, as Hugging Face computes them.
    for (int64_t j = 0; j < layout.padded; ++j) {
        const float exponent = static_cast<float>(2 * j) / static_cast<float>(head_dim);
        frequencies.as<float>()[j] = j < layout.pairs ? 1.0f / std::pow(args.theta, exponent) : 0.0f;
    }
    exec.parallel(ceil_div(rows, kTableRows), [&](int64_t piece, int) {
        const int64_t end = std::min(rows, (piece + 1) * kTableRows);
        for (int64_t row = piece * kTableRows; row < end; ++row) {
            const auto position = static_cast<float>(by_position ? row : positions[row]);
            with_isa<TableBody>(exec.device->isa(), static_cast<const float*>(frequencies.as<float>()),
                                position, layout.padded, table.as<float>() + row * 2 * layout.padded);
        }
    });
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const T* x = args.x.as<T>();
        T* out = args.out.as<T>();
        exec.parallel(ceil_div(tokens, kTokens), [&](int64_t piece, int) {
            const int64_t end = std::min(tokens, (piece + 1) * kTokens);
            for (int64_t token = piece * kTokens; token < end; ++token) {
                const int64_t row = by_position ? positions[token] : token;
                const float* angles = table.as<float>() + row * 2 * layout.padded;
                with_isa<RotateBody>(exec.device->isa(), x + token * args.x.stride[0],
                                     out + token * args.out.stride[0], angles, layout);
            }
        });
    });
}

}  // namespace moebius::ops::cpu
