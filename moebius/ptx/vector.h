// Elements as kernels move them: up to 16 bytes an access, floats in between.
#pragma once

#include <cuda_bf16.h>

namespace moebius::ptx {

template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> {
    using type = unsigned short;
};
template <>
struct WordOf<4> {
    using type = unsigned;
};
template <>
struct WordOf<8> {
    using type = uint2;
};
template <>
struct WordOf<16> {
    using type = uint4;
};

// N neighbours as they lie in memory; their address is a multiple of their size.
template <class T, int N>
struct Pack {
    typename WordOf<sizeof(T) * N>::type word;
};

template <int N, class T>
__device__ inline Pack<T, N> load(const T* from) {
    return {*reinterpret_cast<const typename WordOf<sizeof(T) * N>::type*>(from)};
}
template <class T, int N>
__device__ inline void store(T* to, Pack<T, N> pack) {
    *reinterpret_cast<typename WordOf<sizeof(T) * N>::type*>(to) = pack.word;
}

template <class T, int N>
__device__ inline void unpack(const Pack<T, N>& pack, float (&value)[N]) {
    if constexpr (sizeof(T) * N == 2) {
        value[0] = __uint_as_float(static_cast<unsigned>(pack.word) << 16);
    } else {
        const auto* word = reinterpret_cast<const unsigned*>(&pack.word);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if constexpr (sizeof(T) == 4) {
                value[i] = __uint_as_float(word[i]);
            } else {
                value[i] = __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
            }
        }
    }
}

// Rounded to nearest even.
template <class T, int N>
__device__ inline Pack<T, N> pack(const float (&value)[N]) {
    Pack<T, N> result;
    if constexpr (sizeof(T) == 4) {
        auto* word = reinterpret_cast<unsigned*>(&result.word);
#pragma unroll
        for (int i = 0; i < N; ++i) word[i] = __float_as_uint(value[i]);
    } else if constexpr (N == 1) {
        const __nv_bfloat16 rounded = __float2bfloat16_rn(value[0]);
        result.word = *reinterpret_cast<const unsigned short*>(&rounded);
    } else {
        auto* word = reinterpret_cast<unsigned*>(&result.word);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
            word[i] = *reinterpret_cast<const unsigned*>(&pair);
        }
    }
    return result;
}

// N floats from elements of any type; the address is a multiple of 16 bytes, or of all if they are fewer.
template <int N, class T>
__device__ inline void load_floats(const T* from, float (&value)[N]) {
    constexpr int kEach = sizeof(T) * N > 16 ? 16 / static_cast<int>(sizeof(T)) : N;
#pragma unroll
    for (int i = 0; i < N; i += kEach) {
        float part[kEach];
        unpack(load<kEach>(from + i), part);
#pragma unroll
        for (int j = 0; j < kEach; ++j) value[i + j] = part[j];
    }
}
template <int N, class T>
__device__ inline void store_floats(T* to, const float (&value)[N]) {
    constexpr int kEach = sizeof(T) * N > 16 ? 16 / static_cast<int>(sizeof(T)) : N;
#pragma unroll
    for (int i = 0; i < N; i += kEach) {
        float part[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j) part[j] = value[i + j];
        store(to + i, pack<T, kEach>(part));
    }
}

// The first `left` of N, zeros after (loads) or nothing (stores); `left` may be negative.
template <int N, class T>
__device__ inline void load_some(const T* from, long long left, float (&value)[N]) {
    if (left >= N) {
        load_floats<N>(from, value);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float one[1] = {0.0f};
            if (i < left) load_floats<1>(from + i, one);
            value[i] = one[0];
        }
    }
}
template <int N, class T>
__device__ inline void store_some(T* to, long long left, const float (&value)[N]) {
    if (left >= N) {
        store_floats<N>(to, value);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float one[1] = {value[i]};
            if (i < left) store_floats<1>(to + i, one);
        }
    }
}

// With kWhole all N are known to be there: no branch stands between loads.
template <bool kWhole, int N, class T>
__device__ inline void load_part(const T* from, long long left, float (&value)[N]) {
    if constexpr (kWhole) {
        load_floats<N>(from, value);
    } else {
        load_some<N>(from, left, value);
    }
}
template <bool kWhole, int N, class T>
__device__ inline void store_part(T* to, long long left, const float (&value)[N]) {
    if constexpr (kWhole) {
        store_floats<N>(to, value);
    } else {
        store_some<N>(to, left, value);
    }
}

template <class T>
__device__ inline float load_float(const T* from) {
    float value[1];
    load_floats<1>(from, value);
    return value[0];
}
template <class T>
__device__ inline void store_float(T* to, float value) {
    const float one[1] = {value};
    store_floats<1>(to, one);
}

}  // namespace moebius::ptx
