// Matrix products by cuBLASLt, which is opened when it is first needed. no_cublaslt.cpp stands in for it in
// builds without CUDA.
#pragma once

#include "moebius/ops/gemm/gemm.h"

namespace moebius::ops::cublaslt {

// The library allows itself as much memory for partial sums; a product takes what its algorithm asks for.
inline constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// "" if the library runs these arguments here; else why not: it is not installed, or it has no algorithm.
std::string unavailable(const GemmArgs& args, const Exec& exec);
void gemm(const GemmArgs& args, const Exec& exec);
// The same for an fp32 `a` and a bf16 `b`, `a` in three parts. A dgrad over at most kMostSideBySide features
// is one product, which adds to any `out`; others are three, whose sum in bf16 must be dense.
inline constexpr int64_t kMostSideBySide = 1024;
inline bool split_side_by_side(const GemmArgs& args) {
    return args.kind == GemmKind::Dgrad && args.a.size(1) <= kMostSideBySide && args.b.contiguous();
}
std::string split_unavailable(const GemmArgs& args, const Exec& exec);
void gemm_split(const GemmArgs& args, const Exec& exec);
// The algorithm that gemm takes, in words; launches nothing.
std::string choice(const GemmArgs& args, const Exec& exec);

}  // namespace moebius::ops::cublaslt
