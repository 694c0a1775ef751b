// Launching the kernel of sm90_mx_product.cuh: host code for .cu files.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_launch.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_mx_product.cuh"
#include "moebius/runtime/transfer.h"

namespace moebius::ops::sm90::mx {

inline Widened widened(const Operand& operand, void* wide) {
    const View& codes = operand.data;
    const int last = codes.rank() - 1;
    return {.codes = static_cast<const uint8_t*>(codes.data),
            .scales = static_cast<const uint8_t*>(operand.scale.data),
            .wide = static_cast<__nv_bfloat16*>(wide),
            .columns = static_cast<int>(codes.size(last)),
            .rows = static_cast<int>(codes.size(last - 1)),
            .e5m2 = operand.format.element == DType::F8E5M2};
}

// `product` but for its operands. Scratch holds both of these in bf16, as long as the kernel runs.
template <class T, class Epilogue>
void launch_mx(const char* name, const GroupedGemmQuantizedArgs& args, Product product,
               const typename Epilogue::Args& epilogue, const Exec& exec) {
    const int64_t experts = args.split_sizes.size(0);
    if (experts == 0 || product.columns == 0) return;
    const View &a = args.a.data, &b = args.b.data;
    const auto bytes = [](const View& codes) { return static_cast<size_t>(codes.numel()) * 2; };
    const Scratch wide_a("grouped_gemm_quantized.wide_a", bytes(a), exec),
        wide_b("grouped_gemm_quantized.wide_b", bytes(b), exec);
    const WideningPlan widening = plan_widening(args);
    const auto flag_bytes = static_cast<size_t>(widening.segments) * sizeof(uint32_t);
    const Scratch arrived("grouped_gemm_quantized.arrived", flag_bytes, exec);
    zero(arrived.as<void>(), flag_bytes, exec);
    product.a = View(wide_a.as<void>(), DType::BF16, a.shape);
    product.b = View(wide_b.as<void>(), DType::BF16, b.shape);
    product.split_sizes = args.split_sizes;
    product.capacity = a.size(0);
    const ProductLaunch plan = plan_product<T>(product, exec);
    launch(name, grouped_product_mx_sm90<T, Epilogue>, plan.shape, exec,
           MxProductArgs{.product = plan.args,
                         .a = widened(args.a, wide_a.as<void>()),
                         .b = widened(args.b, wide_b.as<void>()),
                         .arrived = arrived.as<uint32_t>(),
                         .each = static_cast<int>(widening.each),
                         .at_once = static_cast<int>(widening.at_once)},
           epilogue);
}

// Forward, Dgrad.
template <bool kBMnMajor>
void launch_mx_rows(const char* name, const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    using Traits = ProductTraits<false, kBMnMajor, false, false>;
    const View& out = args.out;
    if (out.numel() == 0) return;
    const Product product{.columns = out.size(1), .depth = args.a.data.size(1)};
    if (out.dtype == DType::F32) {
        launch_mx<Traits, StoreRowFloats>(
            name, args, product,
            {.data = out.as<float>(), .row_stride = out.stride[0], .columns = static_cast<int>(out.size(1))},
            exec);
    } else {
        launch_mx<Traits, StoreRows>(name, args, product, rows_of(out), exec);
    }
}

}  // namespace moebius::ops::sm90::mx
