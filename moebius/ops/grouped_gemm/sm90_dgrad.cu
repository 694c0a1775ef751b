#include "moebius/ops/grouped_gemm/sm90_kinds.h"
#include "moebius/ops/grouped_gemm/sm90_rows.cuh"

namespace moebius::ops::sm90 {

void grouped_dgrad(const GroupedGemmArgs& args, const Exec& exec) {
    grouped_rows<GemmKind::Dgrad>("grouped_gemm.dgrad", args, exec);
}

}  // namespace moebius::ops::sm90
