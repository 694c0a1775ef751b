#include "moebius/ops/grouped_gemm_quantized/sm100.h"

#include "moebius/ops/grouped_gemm_quantized/sm100_launch.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm100_store.cuh"

namespace moebius::ops::sm100 {
namespace {

template <class T>
void product(const char* name, const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    const View& out = args.out;
    if (out.numel() == 0) return;
    const int64_t capacity = args.a.data.size(0), experts = std::max<int64_t>(1, args.split_sizes.size(0));
    const Product product{.a = args.a,
                          .b = args.b,
                          .split_sizes = args.split_sizes,
                          .out = out,
                          .capacity = capacity,
                          .rows = T::kReduceRows ? out.size(1) : 0,
                          .columns = out.size(out.rank() - 1),
                          .depth = T::kReduceRows ? capacity / experts : args.a.data.size(1)};
    const auto run = [&]<class Epilogue>(Epilogue) {
        launch_product<T, Epilogue>(name, product,
                                    {.data = out.data,
                                     .row_stride = out.stride[static_cast<size_t>(out.rank()) - 2],
                                     .expert_stride = T::kReduceRows ? out.stride[0] : 0,
                                     .columns = static_cast<int>(product.columns)},
                                    exec);
    };
    const bool add = args.beta != 0;
    if (out.dtype == DType::BF16) {
        add ? run(Store<true, true>{}) : run(Store<true, false>{});
    } else {
        add ? run(Store<false, true>{}) : run(Store<false, false>{});
    }
}

}  // namespace

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    switch (args.kind) {
        case GemmKind::Forward:
            return product<ForwardTraits>("grouped_gemm_quantized.mx_forward", args, exec);
        case GemmKind::Dgrad:
            return product<DgradTraits>("grouped_gemm_quantized.mx_dgrad", args, exec);
        case GemmKind::Wgrad:
            return product<WgradTraits>("grouped_gemm_quantized.mx_wgrad", args, exec);
    }
}

}  // namespace moebius::ops::sm100
