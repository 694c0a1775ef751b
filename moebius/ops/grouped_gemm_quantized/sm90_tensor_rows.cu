#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_launch.cuh"

namespace moebius::ops::sm90::quantized {

void tensor_rows(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    constexpr const char* kName = "grouped_gemm_quantized.rows";
    if (args.fast_accumulation) {
        launch_for_codes<Scaling::Tensor, false, false, StoreRows>(kName, args, exec);
    } else {
        launch_for_codes<Scaling::Tensor, false, true, StoreRows>(kName, args, exec);
    }
}

}  // namespace moebius::ops::sm90::quantized
