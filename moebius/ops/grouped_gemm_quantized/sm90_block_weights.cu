#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_launch.cuh"

namespace moebius::ops::sm90::quantized {

void block_weights(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    launch_for_codes<Scaling::ColumnBlocks, true, true, StoreWeights>("grouped_gemm_quantized.weights", args,
                                                                      exec);
}

}  // namespace moebius::ops::sm90::quantized
