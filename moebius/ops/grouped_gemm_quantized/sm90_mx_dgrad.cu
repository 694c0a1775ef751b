#include "moebius/ops/grouped_gemm_quantized/sm90_mx_launch.cuh"

namespace moebius::ops::sm90::mx {

void dgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    launch_mx_rows<true>("grouped_gemm_quantized.mx_dgrad", args, exec);
}

}  // namespace moebius::ops::sm90::mx
