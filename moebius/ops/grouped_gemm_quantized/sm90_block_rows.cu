#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_launch.cuh"

namespace moebius::ops::sm90::quantized {

void block_rows(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    launch_for_codes<Scaling::RowBlocks, false, true, StoreRows>("grouped_gemm_quantized.rows", args, exec);
}

}  // namespace moebius::ops::sm90::quantized
