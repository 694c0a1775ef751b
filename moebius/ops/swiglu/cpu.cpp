#include "moebius/ops/swiglu/cpu.h"

#include <algorithm>

#include "moebius/ops/swiglu/cpu_body.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kPieceElements = 1 << 14;

// Rows in use: the sum of the splits, all of them without.
int64_t used_rows(const View& split_sizes, int64_t capacity) {
    if (!split_sizes) return capacity;
    int64_t rows = 0;
    for (int64_t i = 0; i < split_sizes.size(0); ++i) {
        rows += split_sizes.dtype == DType::I32 ? split_sizes.as<int32_t>()[i] : split_sizes.as<int64_t>()[i];
    }
    MOEBIUS_CHECK(rows <= capacity, "split_sizes sum to ", rows, " of ", capacity, " rows");
    return rows;
}

// f(first row, rows) over pieces.
template <class F>
void in_pieces(const View& x, const View& split_sizes, const Exec& exec, F&& f) {
    const int64_t used = used_rows(split_sizes, x.size(0));
    const int64_t rows = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(x.size(1), 1));
    exec.parallel(ceil_div(used, rows),
                  [&](int64_t piece, int) { f(piece * rows, std::min(rows, used - piece * rows)); });
}

template <class T>
T* row_of(const View& view, int64_t row) {
    return view ? view.as<T>() + row * view.stride[0] : nullptr;
}

}  // namespace

void scaled_glu(const ScaledGluArgs& args, const Exec& exec) {
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        in_pieces(args.x, args.split_sizes, exec, [&](int64_t begin, int64_t rows) {
            const GluForwardRows<T> block{.rows = rows,
                                          .intermediate = args.y.size(1),
                                          .x = row_of<T>(args.x, begin),
                                          .x_stride = args.x.stride[0],
                                          .scales = row_of<float>(args.scales, begin),
                                          .y = row_of<T>(args.y, begin),
                                          .y_stride = args.y.stride[0]};
            with_isa<GluForwardBody>(exec.device->isa(), args.options, block);
        });
    });
}

void scaled_glu_backward(const ScaledGluBackwardArgs& args, const Exec& exec) {
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        in_pieces(args.x, args.split_sizes, exec, [&](int64_t begin, int64_t rows) {
            const GluBackwardRows<T> block{.rows = rows,
                                           .intermediate = args.dy.size(1),
                                           .x = row_of<T>(args.x, begin),
                                           .x_stride = args.x.stride[0],
                                           .scales = row_of<float>(args.scales, begin),
                                           .dy = row_of<T>(args.dy, begin),
                                           .dy_stride = args.dy.stride[0],
                                           .dx = row_of<T>(args.dx, begin),
                                           .dx_stride = args.dx.stride[0],
                                           .dscales = row_of<float>(args.dscales, begin),
                                           .y = row_of<T>(args.y, begin),
                                           .y_stride = args.y.stride[0]};
            with_isa<GluBackwardBody>(exec.device->isa(), args.options, block);
        });
    });
}

}  // namespace moebius::ops::cpu
