// Run-time choice of the CPU's vector instructions: one source, compiled for three levels, chosen by a value
// that is passed down with the device.
#pragma once

#include <string_view>

namespace moebius {

enum class Isa {
    Baseline,
    Avx2,
    Avx512
};  // x86-64; x86-64-v3 (AVX2, FMA); x86-64-v4 (AVX-512 F, BW, CD, DQ, VL)

// The best level this CPU has.
Isa detect_isa();

// "baseline", "avx2", "avx512". Throws Error on another name, and on a level that this CPU lacks.
Isa isa_from_name(std::string_view name);
std::string_view name(Isa isa);

// A kernel body is a struct with `template <Isa isa> MOEBIUS_INLINE static void run(…)`; with_isa<Body>(isa,
// …) runs the copy compiled for that level. Everything the body calls must be MOEBIUS_INLINE too: only
// inlined code is compiled for the level. Bodies may use F16 (ops/cpu_math.h), which the compiler splits
// where vectors are shorter.
#define MOEBIUS_INLINE [[gnu::always_inline]] inline

namespace detail {

template <class Body, class... A>
[[gnu::target("arch=x86-64-v4,prefer-vector-width=512")]] void run_avx512(A... a) {
    Body::template run<Isa::Avx512>(a...);
}
template <class Body, class... A>
[[gnu::target("arch=x86-64-v3")]] void run_avx2(A... a) {
    Body::template run<Isa::Avx2>(a...);
}
template <class Body, class... A>
void run_baseline(A... a) {
    Body::template run<Isa::Baseline>(a...);
}

}  // namespace detail

template <class Body, class... A>
void with_isa(Isa isa, A... a) {
    switch (isa) {
        case Isa::Avx512:
            return detail::run_avx512<Body, A...>(a...);
        case Isa::Avx2:
            return detail::run_avx2<Body, A...>(a...);
        case Isa::Baseline:
            return detail::run_baseline<Body, A...>(a...);
    }
}

}  // namespace moebius
