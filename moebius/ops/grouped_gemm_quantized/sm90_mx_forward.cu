#include "moebius/ops/grouped_gemm_quantized/sm90_mx_launch.cuh"

namespace moebius::ops::sm90::mx {

void forward(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    launch_mx_rows<false>("grouped_gemm_quantized.mx_forward", args, exec);
}

}  // namespace moebius::ops::sm90::mx
