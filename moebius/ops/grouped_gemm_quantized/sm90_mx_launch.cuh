// Launching the kernel of sm90_mx_product.cuh: host code for .cu files.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_launch.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_mx_product.cuh"

namespace moebius::ops::sm90::mx {

inline RowScales row_scales(const View& scale) {
    const int last = scale.rank() - 1;
    const int64_t blocks = scale.size(last);
    const bool aligned =
        blocks % kScaleRowBytes == 0 && reinterpret_cast<uintptr_t>(scale.data) % kScaleRowBytes == 0;
    return {.data = static_cast<const uint8_t*>(scale.data),
            .rows = static_cast<int>(scale.size(last - 1)),
            .blocks = static_cast<int>(blocks),
            .aligned = aligned};
}

template <class T, class Epilogue>
void launch_mx(const char* name, const GroupedGemmQuantizedArgs& args,
               const typename Epilogue::Args& epilogue, const Exec& exec) {
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    const View &out = args.out, a = with_address(args.a.data, out), b = with_address(args.b.data, out);
    const View scale_a = with_address(args.a.scale, out), scale_b = with_address(args.b.scale, out);
    const int64_t experts = args.split_sizes.size(0), capacity = a.size(0);
    if (experts == 0) return;
    const int64_t rows = out.size(out.rank() - 2), columns = out.size(out.rank() - 1);
    const int64_t depth = T::kReduceRows ? capacity / experts : a.size(1);
    MxProductArgs mx{};
    ProductArgs& product = mx.product;
    product.a =
        T::kAMnMajor ? byte_map(a, kTileDepth, kTileRows, true) : byte_map(a, kTileRows, kTileDepth, true);
    product.b = byte_map(b, T::kBMnMajor ? kTileDepth : kTileColumns, 64, false);
    if constexpr (T::kAMnMajor) mx.scale_a = byte_map(scale_a, kStageBlocks, kTileRows, false);
    if constexpr (T::kBMnMajor) mx.scale_b = byte_map(scale_b, kStageBlocks, kTileColumns, false);
    if constexpr (!T::kAMnMajor) mx.row_scales_a = row_scales(scale_a);
    if constexpr (!T::kBMnMajor) mx.row_scales_b = row_scales(scale_b);
    product.split_sizes = args.split_sizes.data;
    product.split_is_i64 = args.split_sizes.dtype == DType::I64;
    product.capacity = static_cast<int>(capacity);
    product.depth = static_cast<int>(depth);
    TilePlan& plan = product.plan;
    plan.experts = static_cast<int>(experts);
    plan.unit_rows = T::kReduceRows ? 0 : kTileRows;
    plan.row_units = T::kReduceRows ? static_cast<int>(units(rows, kTileRows)) : 0;
    plan.column_units = static_cast<int>(units(columns, kTileColumns));
    plan.band = choose_band(plan.column_units, kTileColumns * depth);
    const int64_t most =
        plan.column_units * (T::kReduceRows ? experts * plan.row_units
                                            : units(capacity, kTileRows) + std::min(experts, capacity));
    // Two blocks share a unit where there are few.
    const int64_t blocks = std::min<int64_t>(exec.device->sm_count(), 2 * most);
    launch(name, grouped_product_mx_sm90<T, Epilogue>,
           {.grid = dim3(static_cast<unsigned>(blocks)),
            .block = dim3(kThreads),
            .shared_bytes = mx_shared_bytes(experts)},
           exec, mx, epilogue);
}

// Forward, Dgrad.
template <bool kBMnMajor, ptx::Codes kCodesA>
void launch_mx_rows(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    using Traits = MxTraits<false, kBMnMajor, false, kCodesA>;
    constexpr const char* kName = "grouped_gemm_quantized.mx_rows";
    const View& out = args.out;
    if (out.numel() == 0) return;
    if (out.dtype == DType::F32) {
        launch_mx<Traits, StoreRowFloats>(
            kName, args,
            {.data = out.as<float>(), .row_stride = out.stride[0], .columns = static_cast<int>(out.size(1))},
            exec);
    } else {
        launch_mx<Traits, StoreRows>(kName, args, rows_of(out), exec);
    }
}

template <ptx::Codes kCodesA>
void launch_mx_weights(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    using Traits = MxTraits<true, true, true, kCodesA>;
    const View& out = args.out;
    if (out.numel() == 0) return;
    const auto run = [&]<class Epilogue>(Epilogue) {
        launch_mx<Traits, Epilogue>("grouped_gemm_quantized.mx_weights", args,
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
