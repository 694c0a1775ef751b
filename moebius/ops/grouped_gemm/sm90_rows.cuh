// Forward and Dgrad: products whose output's rows are the experts'.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_launch.cuh"

namespace moebius::ops::sm90 {

template <GemmKind kKind>
void grouped_rows(const char* name, const GroupedGemmArgs& args, const Exec& exec) {
    using Traits = ProductTraits<false, kKind == GemmKind::Dgrad, false, false>;
    if (args.out.numel() == 0) return;
    const int64_t columns = args.out.size(1);
    const Product product{.a = args.a,
                          .b = args.b,
                          .split_sizes = args.split_sizes,
                          .capacity = args.a.size(0),
                          .columns = columns,
                          .depth = args.a.size(1)};
    if (args.out.dtype == DType::F32) {
        launch_product<Traits, StoreRowFloats>(name, product,
                                               {.data = args.out.as<float>(),
                                                .row_stride = args.out.stride[0],
                                                .columns = static_cast<int>(columns)},
                                               exec);
    } else {
        launch_product<Traits, StoreRows>(name, product, rows_of(args.out), exec);
    }
}

}  // namespace moebius::ops::sm90
