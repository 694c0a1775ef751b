#include "moebius/runtime/isa.h"

#include <fmt/format.h>

#include "moebius/base/error.h"

namespace moebius {

Isa detect_isa() {
    if (__builtin_cpu_supports("x86-64-v4")) return Isa::Avx512;
    if (__builtin_cpu_supports("x86-64-v3")) return Isa::Avx2;
    return Isa::Baseline;
}

std::string_view name(Isa isa) {
    switch (isa) {
        case Isa::Avx512:
            return "avx512";
        case Isa::Avx2:
            return "avx2";
        case Isa::Baseline:
            break;
    }
    return "baseline";
}

Isa isa_from_name(std::string_view text) {
    for (const Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512}) {
        if (text != name(isa)) continue;
        if (isa > detect_isa()) {
            throw Error(fmt::format("instruction set '{}' was asked for, but this CPU has no more than '{}'",
                                    text, name(detect_isa())));
        }
        return isa;
    }
    throw Error(
        fmt::format("instruction set '{}' is not one of baseline, avx2, avx512 (MOEBIUS_CPU_ISA)", text));
}

}  // namespace moebius
