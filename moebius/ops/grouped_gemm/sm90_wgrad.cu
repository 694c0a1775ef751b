#include "moebius/ops/grouped_gemm/sm90_kinds.h"
#include "moebius/ops/grouped_gemm/sm90_launch.cuh"

namespace moebius::ops::sm90 {
namespace {

using WgradTraits = ProductTraits<true, true, true, false>;

template <class Epilogue>
void wgrad(const GroupedGemmArgs& args, const Exec& exec) {
    const int64_t experts = args.out.size(0), rows = args.out.size(1), columns = args.out.size(2);
    const Product product{.a = with_address(args.a, args.out),
                          .b = with_address(args.b, args.out),
                          .split_sizes = args.split_sizes,
                          .capacity = args.a.size(0),
                          .rows = rows,
                          .columns = columns,
                          .depth = args.a.size(0) / experts};
    launch_product<WgradTraits, Epilogue>("grouped_gemm.wgrad", product,
                                          {.out = tensor_map(args.out, kGroupRows),
                                           .rows = static_cast<int>(rows),
                                           .columns = static_cast<int>(columns)},
                                          exec);
}

}  // namespace

void grouped_wgrad(const GroupedGemmArgs& args, const Exec& exec) {
    if (args.out.numel() == 0) return;
    const bool add = args.beta != 0;
    if (args.out.dtype == DType::F32) {
        add ? wgrad<StoreWeightFloats<true>>(args, exec) : wgrad<StoreWeightFloats<false>>(args, exec);
    } else {
        add ? wgrad<StoreWeights<true>>(args, exec) : wgrad<StoreWeights<false>>(args, exec);
    }
}

}  // namespace moebius::ops::sm90
