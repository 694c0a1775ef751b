// Launching the kernel of sm90_mx_ring.cuh: host code for .cu files.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90_mx_launch.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm90_mx_ring.cuh"

namespace moebius::ops::sm90::mx {

// `product` but for its operands.
template <class T, class Epilogue>
void launch_ring(const char* name, const GroupedGemmQuantizedArgs& args, Product product,
                 const typename Epilogue::Args& epilogue, const Exec& exec) {
    const int64_t experts = args.split_sizes.size(0);
    if (experts == 0 || product.columns == 0) return;
    const View &a = args.a.data, &b = args.b.data;
    const RingPlan ring = plan_ring(args);
    const auto bytes = [](int64_t elements) { return static_cast<size_t>(elements) * 2; };
    const Scratch ring_a("grouped_gemm_quantized.ring_a", bytes(ring.a_elements), exec),
        ring_b("grouped_gemm_quantized.ring_b", bytes(ring.b_elements), exec);
    const auto flag_bytes = static_cast<size_t>(2 * ring.segments) * sizeof(uint32_t);
    const Scratch flags("grouped_gemm_quantized.flags", flag_bytes, exec);
    zero(flags.as<void>(), flag_bytes, exec);
    const int64_t held = ring.slots * ring.band * kTileRows;
    product.a = View(ring_a.as<void>(), DType::BF16,
                     T::kReduceRows ? Shape{a.size(0), held} : Shape{held, a.size(1)});
    product.b = View(ring_b.as<void>(), DType::BF16,
                     T::kReduceRows ? b.shape : Shape{ring.b_slots, b.size(1), b.size(2)});
    product.split_sizes = args.split_sizes;
    product.capacity = a.size(0);
    ProductLaunch plan = plan_product<T>(product, exec);
    plan.args.plan.band = static_cast<int>(ring.band);
    launch(name, grouped_product_mx_ring_sm90<T, Epilogue>, plan.shape, exec,
           RingArgs{.product = plan.args,
                    .a = widened(args.a, ring_a.as<void>()),
                    .b = widened(args.b, ring_b.as<void>()),
                    .arrived = flags.as<uint32_t>(),
                    .finished = flags.as<uint32_t>() + ring.segments,
                    .slots = static_cast<int>(ring.slots),
                    .b_slots = static_cast<int>(ring.b_slots),
                    .at_once = static_cast<int>(ring.at_once)},
           epilogue);
}

// Forward, Dgrad.
template <bool kBMnMajor>
void launch_ring_rows(const char* name, const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    using Traits = RingTraits<kBMnMajor, false>;
    const View& out = args.out;
    if (out.numel() == 0) return;
    const Product product{.columns = out.size(1), .depth = args.a.data.size(1)};
    if (out.dtype == DType::F32) {
        launch_ring<Traits, StoreRowFloats>(
            name, args, product,
            {.data = out.as<float>(), .row_stride = out.stride[0], .columns = static_cast<int>(out.size(1))},
            exec);
    } else {
        launch_ring<Traits, StoreRows>(name, args, product, rows_of(out), exec);
    }
}

}  // namespace moebius::ops::sm90::mx
