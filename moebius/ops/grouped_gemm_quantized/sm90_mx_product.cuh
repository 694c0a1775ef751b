// One kernel for all grouped products of MX operands on Hopper, whose FP8 tensor cores know no scales of 32:
// codes become bf16 in scratch, exactly, and the product is that of grouped_gemm/sm90_product.cuh, with its
// tiles, its order and its bits.
//
// That product has memory to spare and warps that idle beside the one that loads. These widen an expert's
// operands while the experts before are multiplied, so that only the first experts' cost time of their own
// (all warps widen them). docs/kernels.md has what bounds it.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_store.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm90_mx_widen.cuh"

namespace moebius::ops::sm90::mx {

template <class T, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product_mx_sm90(const __grid_constant__ MxProductArgs args,
                            const __grid_constant__ typename Epilogue::Args epilogue) {
    static_assert(Epilogue::kFinishers == 0, "the warps are taken");
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kRowEndsAt);
    const sm90::detail::Shared shared{ptx::shared_address(moebius_stages), row_ends};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    sm90::detail::begin_product<Epilogue>(args.product, shared, row_ends, warp);
    Widening<T>::first(args, row_ends, warp);

    const int group = warp / 4 - 1;
    if (group < 0) {
        ptx::give_registers<88>();
        if (warp == 0) {
            if (threadIdx.x % 32 == 0)
                sm90::detail::load_tiles<T>(args.product, shared, SegmentsReady<T>(args, row_ends));
        } else if (T::kReduceRows && warp == 1) {
            sm90::detail::zero_tails<T>(args.product, shared);
        } else {
            Widening<T>::rest(args, row_ends, warp);
        }
    } else {
        ptx::take_registers<208>();
        sm90::detail::multiply_tiles<T, Epilogue>(args.product, epilogue, shared, group);
    }
}

}  // namespace moebius::ops::sm90::mx
