#include "moebius/ops/grouped_gemm_quantized/sm90_mx_ring_launch.cuh"

namespace moebius::ops::sm90::mx {

void ring_dgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    launch_ring_rows<true>("grouped_gemm_quantized.mx_ring_dgrad", args, exec);
}

}  // namespace moebius::ops::sm90::mx
