#include "moebius/ops/grouped_gemm/sm90_kinds.h"
#include "moebius/ops/grouped_gemm/sm90_launch.cuh"

namespace moebius::ops::sm90 {
namespace {

template <int kRowBlocks, int kColumnBlocks>
using WgradTraits = ProductTraits<true, true, true, false, kRowBlocks, kColumnBlocks>;

// Without any rows there may be no memory, but a tensor map has an address.
View with_address(View view, const View& other) {
    if (!view.data) view.data = other.data;
    return view;
}

}  // namespace

void grouped_wgrad(const GroupedGemmArgs& args, const Cluster& cluster, const Exec& exec) {
    if (args.out.numel() == 0) return;
    const int64_t experts = args.out.size(0), rows = args.out.size(1), columns = args.out.size(2);
    const Product product{.a = with_address(args.a, args.out),
                          .b = with_address(args.b, args.out),
                          .split_sizes = args.split_sizes,
                          .capacity = args.a.size(0),
                          .rows = rows,
                          .columns = columns,
                          .depth = args.a.size(0) / experts};
    with_cluster<WgradTraits>(cluster, [&](auto traits) {
        if (args.out.dtype == DType::F32) {
            launch_product<decltype(traits), StoreWeightFloats>("grouped_gemm.wgrad", product,
                                                                {.out = tensor_map(args.out, kGroupRows),
                                                                 .rows = static_cast<int>(rows),
                                                                 .columns = static_cast<int>(columns),
                                                                 .add = args.beta != 0},
                                                                exec);
        } else if (args.beta != 0) {
            launch_product<decltype(traits), AddToWeights>(
                "grouped_gemm.wgrad", product,
                {.out = tensor_map(args.out, kGroupRows),
                 .data = static_cast<const __nv_bfloat16*>(args.out.data),
                 .expert_stride = args.out.stride[0],
                 .row_stride = args.out.stride[1],
                 .rows = static_cast<int>(rows),
                 .columns = static_cast<int>(columns)},
                exec);
        } else {
            launch_product<decltype(traits), StoreWeights>("grouped_gemm.wgrad", product,
                                                           {.out = tensor_map(args.out, kGroupRows),
                                                            .rows = static_cast<int>(rows),
                                                            .columns = static_cast<int>(columns)},
                                                           exec);
        }
    });
}

}  // namespace moebius::ops::sm90
