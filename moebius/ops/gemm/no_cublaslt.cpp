#include "moebius/base/error.h"
#include "moebius/ops/gemm/cublaslt.h"

namespace moebius::ops::cublaslt {

std::string unavailable(const GemmArgs&, const Exec&) {
    return "is not in this build";
}

std::string split_unavailable(const GemmArgs&, const Exec&) {
    return "is not in this build";
}

std::string choice(const GemmArgs&, const Exec&) {
    return "cuBLASLt is not in this build";
}

}  // namespace moebius::ops::cublaslt
