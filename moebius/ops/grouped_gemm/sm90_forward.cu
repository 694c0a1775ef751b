#include "moebius/ops/grouped_gemm/sm90_kinds.h"
#include "moebius/ops/grouped_gemm/sm90_launch.cuh"

namespace moebius::ops::sm90 {
namespace {

template <int kRowBlocks, int kColumnBlocks>
using ForwardTraits = ProductTraits<false, false, false, false, kRowBlocks, kColumnBlocks>;

}  // namespace

void grouped_forward(const GroupedGemmArgs& args, const Cluster& cluster, const Exec& exec) {
    if (args.out.numel() == 0) return;
    const int64_t columns = args.out.size(1);
    const Product product{.a = args.a,
                          .b = args.b,
                          .split_sizes = args.split_sizes,
                          .capacity = args.a.size(0),
                          .columns = columns,
                          .depth = args.a.size(1)};
    if (args.out.dtype == DType::F32) {
        launch_product<ForwardTraits<1, 1>, StoreRowFloats>("grouped_gemm.forward", product,
                                                            {.data = args.out.as<float>(),
                                                             .row_stride = args.out.stride[0],
                                                             .columns = static_cast<int>(columns)},
                                                            exec);
        return;
    }
    const Rows store = rows_of(args.out);
    with_cluster<ForwardTraits>(cluster, [&](auto traits) {
        launch_product<decltype(traits), StoreRows>("grouped_gemm.forward", product, store, exec);
    });
}

}  // namespace moebius::ops::sm90
