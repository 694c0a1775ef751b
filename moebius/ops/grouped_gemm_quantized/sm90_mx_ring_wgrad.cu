#include "moebius/ops/grouped_gemm_quantized/sm90_mx_ring_launch.cuh"

namespace moebius::ops::sm90::mx {

void ring_wgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    using Traits = RingTraits<true, true>;
    const View& out = args.out;
    if (out.numel() == 0) return;
    const Product product{.rows = out.size(1),
                          .columns = out.size(2),
                          .depth = args.a.data.size(0) / std::max<int64_t>(1, out.size(0))};
    const auto run = [&]<class Epilogue>(Epilogue) {
        launch_ring<Traits, Epilogue>("grouped_gemm_quantized.mx_ring_wgrad", args, product,
                                      {.out = tensor_map(out, kGroupRows),
                                       .rows = static_cast<int>(out.size(1)),
                                       .columns = static_cast<int>(out.size(2))},
                                      exec);
    };
    const bool add = args.beta != 0;
    if (out.dtype == DType::F32) {
        add ? run(StoreWeightFloats<true>{}) : run(StoreWeightFloats<false>{});
    } else {
        add ? run(StoreWeights<true>{}) : run(StoreWeights<false>{});
    }
}

}  // namespace moebius::ops::sm90::mx
