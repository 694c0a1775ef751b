#include "moebius/ops/grouped_gemm_quantized/sm90_mx_launch.cuh"

namespace moebius::ops::sm90::mx {

void forward(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    if (args.a.data.dtype == DType::F8E5M2) {
        launch_mx_rows<false, ptx::Codes::E5M2>(args, exec);
    } else {
        launch_mx_rows<false, ptx::Codes::E4M3>(args, exec);
    }
}

}  // namespace moebius::ops::sm90::mx
