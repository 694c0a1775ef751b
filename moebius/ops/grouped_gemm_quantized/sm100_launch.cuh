// Launching the kernel of sm100_product.cuh: host code for .cu files.
#pragma once

#include <algorithm>

#include "moebius/ops/grouped_gemm/sm90_maps.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/grouped_gemm_quantized/sm100_product.cuh"
#include "moebius/runtime/launch.h"

namespace moebius::ops::sm100 {

inline Scales scales_of(const Operand& operand, bool mn_major) {
    const View& scale = operand.scale;
    const int last = scale.rank() - 1;
    const int64_t stride = scale.size(last);
    return {.data = static_cast<const uint8_t*>(scale.data),
            .stride = stride,
            .expert = scale.rank() == 3 ? scale.size(1) * stride : 0,
            .lines = static_cast<int>(mn_major ? stride : scale.size(last - 1)),
            .words = stride % kStageBlocks == 0 &&
                     reinterpret_cast<uintptr_t>(scale.data) % sizeof(uint32_t) == 0};
}

// `rows` and `columns` of an expert's output (rows: of Wgrad). `second`: see ProductShape.
struct Product {
    const Operand &a, &b;
    const View &split_sizes, &out;
    int64_t capacity, rows, columns, depth;
    int64_t second = kTileColumns / 2;
};

template <class T, class Epilogue>
void launch_product(const char* name, const Product& product, const typename Epilogue::Args& epilogue,
                    const Exec& exec) {
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    const int64_t experts = product.split_sizes.size(0);
    if (experts == 0 || product.columns == 0 || (T::kReduceRows && product.rows == 0)) return;
    const View a = sm90::with_address(product.a.data, product.out),
               b = sm90::with_address(product.b.data, product.out);
    ProductArgs args{};
    args.a = sm90::tensor_map(a, 128);
    args.b = sm90::tensor_map(b, 128);
    args.split_sizes = product.split_sizes.data;
    args.split_is_i64 = product.split_sizes.dtype == DType::I64;
    ProductShape& shape = args.shape;
    shape.scale_a = scales_of(product.a, T::kAMnMajor);
    shape.scale_b = scales_of(product.b, T::kBMnMajor);
    shape.capacity = static_cast<int>(product.capacity);
    shape.depth = static_cast<int>(product.depth);
    shape.rows = static_cast<int>(product.rows);
    shape.second = static_cast<int>(product.second);
    shape.instruction = mx_instruction({.a_is_e5m2 = a.dtype == DType::F8E5M2,
                                        .b_is_e5m2 = b.dtype == DType::F8E5M2,
                                        .a_is_mn_major = T::kAMnMajor,
                                        .b_is_mn_major = T::kBMnMajor,
                                        .rows = kTileRows,
                                        .columns = kTileColumns});
    TilePlan& plan = shape.plan;
    plan.experts = static_cast<int>(experts);
    plan.unit_rows = T::kReduceRows ? 0 : kTileRows;
    plan.row_units = static_cast<int>(units(product.rows, kTileRows));
    plan.column_units = static_cast<int>(units(product.columns, T::kColumns));
    plan.band = sm90::choose_band(plan.column_units, kTileColumns * product.depth);
    const int64_t most = plan.column_units * (T::kReduceRows ? experts * plan.row_units
                                                             : units(product.capacity, kTileRows) +
                                                                   std::min(experts, product.capacity));
    launch(name, grouped_product_mx_sm100<T, Epilogue>,
           {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(exec.device->sm_count(), most))),
            .block = dim3(kThreads),
            .shared_bytes = shared_bytes(experts)},
           exec, args, epilogue);
}

}  // namespace moebius::ops::sm100
