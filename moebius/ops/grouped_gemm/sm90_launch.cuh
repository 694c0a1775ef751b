// Launching the kernel of sm90_product.cuh: host code for .cu files.
#pragma once

#include <algorithm>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm/sm90_maps.h"
#include "moebius/ops/grouped_gemm/sm90_store.cuh"
#include "moebius/runtime/launch.h"

namespace moebius::ops::sm90 {

// A product's operands and extents. a: the rows' side; b: the columns'.
struct Product {
    View a, b, split_sizes;
    int64_t capacity = 0;            // rows of all experts
    int64_t rows = 0;                // of an expert's output, where the reduction runs over its rows
    int64_t columns = 0, depth = 0;  // depth: the mean, where the reduction runs over rows
    int64_t second = 0;              // ProductArgs::second
};

// What a kernel of such products is told of it, and how many blocks there are of which size.
struct ProductLaunch {
    ProductArgs args;
    LaunchShape shape;
};

// There are experts and columns.
template <class T>
ProductLaunch plan_product(const Product& product, const Exec& exec) {
    const int64_t experts = product.split_sizes.size(0);
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    ProductArgs args{};
    args.a = tensor_map(product.a, box_rows_a<T>());
    args.b = tensor_map(product.b, box_rows_b<T>());
    args.plan.experts = static_cast<int>(experts);
    args.plan.unit_rows = T::kReduceRows ? 0 : kTileRows;
    args.plan.row_units = static_cast<int>(units(product.rows, kTileRows));
    args.plan.column_units = static_cast<int>(units(product.columns, T::kColumns));
    args.plan.band = choose_band(args.plan.column_units, kTileColumns * product.depth * 2);
    args.split_sizes = product.split_sizes.data;
    args.split_is_i64 = product.split_sizes.dtype == DType::I64;
    args.capacity = static_cast<int>(product.capacity);
    args.depth = static_cast<int>(product.depth);
    args.second = static_cast<int>(product.second);
    const int64_t most = args.plan.column_units * (T::kReduceRows ? experts * args.plan.row_units
                                                                  : units(product.capacity, kTileRows) +
                                                                        std::min(experts, product.capacity));
    // Two blocks share a unit where there are few.
    const int64_t blocks = std::min<int64_t>(exec.device->sm_count(), 2 * most);
    return {.args = args,
            .shape = {.grid = dim3(static_cast<unsigned>(blocks)),
                      .block = dim3(kThreads),
                      .shared_bytes = shared_bytes(args.plan.experts)}};
}

template <class T, class Epilogue>
void launch_product(const char* name, const Product& product, const typename Epilogue::Args& epilogue,
                    const Exec& exec) {
    if (product.split_sizes.size(0) == 0 || product.columns == 0) return;
    ProductLaunch plan = plan_product<T>(product, exec);
    plan.shape.block = dim3(BlockShape<Epilogue::kFinishers>::kThreads);
    launch(name, grouped_product_sm90<T, Epilogue>, plan.shape, exec, plan.args, epilogue);
}

// `view` (rows, columns) in bf16 as a destination.
inline Rows rows_of(const View& view) {
    return {.map = tensor_map(view, kGroupRows),
            .data = static_cast<__nv_bfloat16*>(view.data),
            .row_stride = view.stride[0],
            .columns = static_cast<int>(view.size(1))};
}

}  // namespace moebius::ops::sm90
