// Launching the kernel of sm90_product.cuh: host code for .cu files.
#pragma once

#include <algorithm>

#include "moebius/ops/grouped_gemm/sm90_maps.h"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_store.cuh"
#include "moebius/runtime/launch.h"

namespace moebius::ops::sm90::quantized {

// A kind of product's launch: T as ProductTraits, Epilogue as sm90_store.cuh.
template <class T, class Epilogue>
void launch_product(const char* name, const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    const View &out = args.out, a = with_address(args.a.data, out), b = with_address(args.b.data, out);
    const int64_t experts = args.split_sizes.size(0), capacity = a.size(T::kReduceRows ? 1 : 0);
    if (out.numel() == 0 || experts == 0) return;
    const int64_t rows = out.size(out.rank() - 2), columns = out.size(out.rank() - 1);
    ProductArgs product{};
    product.a = tensor_map(a, kTileRows);
    product.b = tensor_map(b, kTileColumns);
    if constexpr (T::kScalesA) product.scale_a = scale_map(with_address(args.a.scale, out), kScaleRows);
    if constexpr (T::kScalesB) product.scale_b = scale_map(with_address(args.b.scale, out), kTileColumns);
    product.scales_a = static_cast<const float*>(args.a.scale.data);
    product.scales_b = static_cast<const float*>(args.b.scale.data);
    product.split_sizes = args.split_sizes.data;
    product.split_is_i64 = args.split_sizes.dtype == DType::I64;
    product.capacity = static_cast<int>(capacity);
    product.depth = static_cast<int>(a.size(1));
    product.columns = static_cast<int>(columns);
    TilePlan& plan = product.plan;
    plan.experts = static_cast<int>(experts);
    plan.unit_rows = T::kReduceRows ? 0 : kTileRows;
    plan.row_units = T::kReduceRows ? static_cast<int>(units(rows, kTileRows)) : 0;
    plan.column_units = static_cast<int>(units(columns, kTileColumns));
    plan.band =
        choose_band(plan.column_units, kTileColumns * (T::kReduceRows ? capacity / experts : a.size(1)));
    const int64_t most =
        plan.column_units * (T::kReduceRows ? experts * plan.row_units
                                            : units(capacity, kTileRows) + std::min(experts, capacity));
    StoreArgs store{};
    store.out = tensor_map(out, kGroupRows);
    store.rows = static_cast<int>(rows);
    store.columns = static_cast<int>(columns);
    store.data = out.data;
    store.row_stride = out.stride[static_cast<size_t>(out.rank()) - 2];
    store.floats = out.dtype == DType::F32;
    store.add = args.beta != 0;
    launch(name, grouped_product_quantized_sm90<T, Epilogue>,
           {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(exec.device->sm_count(), most))),
            .block = dim3(kThreads),
            .shared_bytes = shared_bytes(experts)},
           exec, product, store);
}

// The same for the type of a's codes; b's are E4M3.
template <Scaling kScaling, bool kReduceRows, bool kPromote, class Epilogue>
void launch_for_codes(const char* name, const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    using ptx::Codes;
    if (args.a.data.dtype == DType::F8E5M2) {
        launch_product<ProductTraits<kScaling, kReduceRows, kPromote, Codes::E5M2, Codes::E4M3>, Epilogue>(
            name, args, exec);
    } else {
        launch_product<ProductTraits<kScaling, kReduceRows, kPromote, Codes::E4M3, Codes::E4M3>, Epilogue>(
            name, args, exec);
    }
}

}  // namespace moebius::ops::sm90::quantized
