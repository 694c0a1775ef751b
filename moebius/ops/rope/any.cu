#include <cmath>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/rope/cuda.h"
#include "moebius/ptx/vector.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 4;  // a block's

// By value into the kernel: computed on the host, so that angles are the CPU's.
struct Frequencies {
    float of_pair[kMostPairs];
};

template <class T>
struct Rotation {
    const T* x;
    T* out;
    const int32_t* positions;
    int64_t tokens;
    int heads, pairs;
    int64_t x_token, x_head, out_token, out_head;  // strides
    float sign;                                    // of the sines
};

// Of an fp32 angle, in double as on the CPU: reduction by π/2 in two parts (fdlibm's constants), then Taylor
// polynomials on |r| ≤ π/4, whose remainders are below 2^−34.
__device__ float2 cosine_and_sine(float angle) {
    const double x = angle, n = rint(x * 0.63661977236758134308);
    const double r = fma(-n, 6.07710050650619224932e-11, fma(-n, 1.57079632673412561417e+00, x)), r2 = r * r;
    double s = r2 * (1.0 / 362880) - 1.0 / 5040;
    s = s * r2 + 1.0 / 120;
    s = s * r2 - 1.0 / 6;
    s = s * r2 * r + r;
    double c = r2 * (-1.0 / 3628800) + 1.0 / 40320;
    c = c * r2 - 1.0 / 720;
    c = c * r2 + 1.0 / 24;
    c = c * r2 - 0.5;
    c = c * r2 + 1.0;
    const int64_t quadrant = static_cast<int64_t>(n);
    const float sine = static_cast<float>(quadrant & 1 ? c : s),
                cosine = static_cast<float>(quadrant & 1 ? s : c);
    return {(quadrant + 1) & 2 ? -cosine : cosine, quadrant & 2 ? -sine : sine};
}

// A block takes kTokens tokens: their cosines and sines once, then all heads. x and out may be the same: a
// thread reads both halves of its pairs before it writes them.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) rope_any(const Rotation<T> a, const Frequencies frequencies) {
    __shared__ __align__(16) float cosines[kTokens * kMostPairs], sines[kTokens * kMostPairs];
    const int64_t first = int64_t{blockIdx.x} * kTokens;
    const int tokens = a.tokens - first < kTokens ? static_cast<int>(a.tokens - first) : kTokens;
    for (int i = static_cast<int>(threadIdx.x); i < tokens * a.pairs; i += kThreads) {
        const int token = i / a.pairs, pair = i % a.pairs;
        const float angle = static_cast<float>(a.positions[first + token]) * frequencies.of_pair[pair];
        const float2 value = cosine_and_sine(angle);
        cosines[i] = value.x;
        sines[i] = value.y * a.sign;
    }
    __syncthreads();
    const int vectors = a.pairs / N, count = tokens * a.heads * vectors;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        const int vector = i % vectors, head = i / vectors % a.heads, token = i / vectors / a.heads;
        const T* x = a.x + (first + token) * a.x_token + head * a.x_head + vector * N;
        T* out = a.out + (first + token) * a.out_token + head * a.out_head + vector * N;
        float left[N], right[N], cosine[N], sine[N];
        ptx::load_floats<N>(x, left);
        ptx::load_floats<N>(x + a.pairs, right);
        ptx::load_floats<N>(cosines + token * a.pairs + vector * N, cosine);
        ptx::load_floats<N>(sines + token * a.pairs + vector * N, sine);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float l = left[j], r = right[j];
            left[j] = l * cosine[j] - r * sine[j];
            right[j] = r * cosine[j] + l * sine[j];
        }
        ptx::store_floats<N>(out, left);
        ptx::store_floats<N>(out + a.pairs, right);
    }
}

}  // namespace

void rope(const RopeArgs& args, const Exec& exec) {
    const int64_t head_dim = args.x.size(2), pairs = head_dim / 2;
    if (args.x.size(1) == 0) return;
    // In fp32, as Hugging Face computes them.
    Frequencies frequencies{};
    for (int64_t j = 0; j < pairs; ++j) {
        const float exponent = static_cast<float>(2 * j) / static_cast<float>(head_dim);
        frequencies.of_pair[j] = 1.0f / std::pow(args.theta, exponent);
    }
    with_device_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const Rotation<T> a{args.x.as<T>(),
                            args.out.as<T>(),
                            args.positions.as<int32_t>(),
                            args.x.size(0),
                            static_cast<int>(args.x.size(1)),
                            static_cast<int>(pairs),
                            args.x.stride[0],
                            args.x.stride[1],
                            args.out.stride[0],
                            args.out.stride[1],
                            args.inverse ? -1.0f : 1.0f};
        constexpr int N = kVector<T>;
        const bool vectors = pairs % N == 0 && rows_in_vectors(args.x, N) && rows_in_vectors(args.out, N);
        launch("rope", vectors ? rope_any<N, T> : rope_any<1, T>, {grid_for(a.tokens, kTokens), kThreads},
               exec, a, frequencies);
    });
}

}  // namespace moebius::ops::cuda
