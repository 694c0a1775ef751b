// How the cases run the op: what quantizes its operands, and what a mutant may change. For cases.cpp alone.
#pragma once

#include <functional>
#include <string>

#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/grouped_mlp_quantized/cases_reference.h"
#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"
#include "moebius/runtime/transfer.h"
#include "moebius/tensor/quantized.h"

namespace moebius::ops::mlp_quantized_cases {

// What a mutant may change.
struct Inputs {
    GluOptions options;
    View x, gate_up, down, scales, split_sizes;
    View x_scales_of;  // (M) i32: x's scales are those of these rows' codes
};
using Change = std::function<void(Inputs&)>;

// A tensor in both directions, as quantize makes it from high precision.
class Maker {
  public:
    Maker(const Problem& p, const Exec& exec) : p_(p), exec_(exec) {}

    Quantized empty(DType element, int64_t columns, bool row, bool column) const {
        return Quantized::empty(
            "codes", spec(element, {p_.splits.capacity, columns, p_.experts()}, row, column), exec_);
    }
    Quantized rows(const View& values, const View& split_sizes, DType element, bool row, bool column,
                   const View& row_index = {}) const {
        return make({.values = values, .split_sizes = split_sizes, .row_index = row_index}, element, row,
                    column);
    }
    Quantized weight(const View& values, bool row, bool column) const {
        return make({.values = values}, DType::F8E4M3, row, column);
    }

  private:
    QuantizedSpec spec(DType element, const MatrixShape& matrix, bool row, bool column) const {
        return {.element = element,
                .scale = p_.scale,
                .power_of_two = p_.power_of_two,
                .row = row,
                .column = column,
                .matrix = matrix};
    }
    Quantized make(const QuantizeSource& source, DType element, bool row, bool column) const {
        Quantized made = Quantized::empty("codes", spec(element, matrix_of(source), row, column), exec_);
        Tensor amax;
        if (p_.scale == ScaleKind::Tensor) {
            amax = Tensor::empty("amax", {made.spec().matrix.experts}, DType::F32, exec_);
            tensor_amax({.source = source, .amax = amax}, exec_);
        }
        quantize({.source = source, .row = made.row(), .column = made.column(), .amax = amax}, exec_);
        return made;
    }

    const Problem& p_;
    const Exec& exec_;
};

// Of the benchmark: codes that are there before what is timed. `of` is one of kKept.
struct Kept {
    const char* name;
    Direction direction;
    MatrixShape matrix;
    double spread;  // of the numbers that the codes stand for

    Format format(const Problem& p) const { return p.format(DType::F8E4M3, direction, matrix.weight); }
    Operand operand(const Problem& p, const Views& v) const {
        const OperandShapes shapes = operand_shapes(format(p), direction, matrix);
        return {.data = v[std::string(name) + "_data"],
                .scale = v[std::string(name) + "_scale"],
                .format = format(p),
                .transposed = shapes.transposed};
    }
    void add_tensors(const Problem& p, Case& c) const {
        const OperandShapes shapes = operand_shapes(format(p), direction, matrix);
        c.tensors.push_back({.name = std::string(name) + "_data",
                             .shape = shapes.data,
                             .dtype = DType::F8E4M3,
                             .value = [](int64_t i, const Philox& r) {
                                 const auto value =
                                     static_cast<float>(64 * r.normal(static_cast<uint64_t>(i)));
                                 return static_cast<double>(to_f8e4m3(value).bits);
                             }});
        c.tensors.push_back({.name = std::string(name) + "_scale",
                             .shape = shapes.scale,
                             .dtype = shapes.scale_dtype,
                             .value = [=, spread = spread](int64_t, const Philox&) {
                                 return std::exp2(std::round(std::log2(spread / 64)));
                             }});
    }
};
inline Kept kept_x(const Problem& p) {
    return {"x_column", Direction::Column, {p.splits.capacity, p.hidden, p.experts()}, 1};
}
inline Kept kept_gate_up(const Problem& p, Direction direction) {
    return {direction == Direction::Row ? "gate_up_row" : "gate_up_column",
            direction,
            {2 * p.intermediate, p.hidden, p.experts(), true},
            2 / std::sqrt(static_cast<double>(p.hidden))};
}
inline Kept kept_down(const Problem& p, Direction direction) {
    return {direction == Direction::Row ? "down_row" : "down_column",
            direction,
            {p.hidden, p.intermediate, p.experts(), true},
            1 / std::sqrt(static_cast<double>(p.intermediate))};
}

inline Inputs inputs_of(const Problem& p, const Views& v, const Change& change) {
    Inputs in{p.options, v["x"], v["gate_up"], v["down"], v["scales"], v["split_sizes"], {}};
    if (change) change(in);
    return in;
}

inline void run_forward(const Problem& p, const Views& v, const Exec& exec, const Change& change) {
    const Inputs in = inputs_of(p, v, change);
    const Maker make(p, exec);
    const Quantized x = make.rows(in.x, in.split_sizes, DType::F8E4M3, true, p.bench),
                    // Column-wise too in half the cases: backward makes that again.
        activation = make.empty(DType::F8E4M3, p.intermediate, true, !p.bench && p.index == DType::I64);
    Quantized gate_up, down;
    if (!p.weights_kept) {
        gate_up = make.weight(in.gate_up, true, false);
        down = make.weight(in.down, true, false);
    }
    const Direction across = Direction::Row;
    Operand x_row = x.row();
    Quantized shifted;
    if (in.x_scales_of) {
        shifted = make.rows(in.x, in.split_sizes, DType::F8E4M3, true, false, in.x_scales_of);
        x_row.scale = shifted.row().scale;
    }
    grouped_mlp_quantized({.options = in.options,
                           .x = x_row,
                           .gate_up = p.weights_kept ? kept_gate_up(p, across).operand(p, v) : gate_up.row(),
                           .down = p.weights_kept ? kept_down(p, across).operand(p, v) : down.row(),
                           .scales = in.scales,
                           .split_sizes = in.split_sizes,
                           .activation = {.row = activation.row(),
                                          .column = activation.column(),
                                          .rule = {.scale = v["given"], .observed_amax = v["observed"]}},
                           .c = v["c"],
                           .y = v["y"],
                           .fast_accumulation = p.fast},
                          exec);
}

inline void run_backward(const Problem& p, const Views& v, const Exec& exec, const Change& change) {
    const Inputs in = inputs_of(p, v, change);
    const Maker make(p, exec);
    const QuantizeRule rule{.scale = v["given"]};
    QuantizeRule rule_again = rule;
    const Quantized dy = make.rows(v["dy"], in.split_sizes, p.element, true, true),
                    dc = make.empty(p.element, 2 * p.intermediate, true, true),
                    activation = make.empty(DType::F8E4M3, p.intermediate, false, true);
    Quantized x, gate_up, down;
    Tensor amax;
    if (p.bench) {
        rule_again.amax = v["activation_amax"];
    } else {
        x = make.rows(in.x, in.split_sizes, DType::F8E4M3, false, true);
        if (p.scale == ScaleKind::Tensor && !p.given) {
            // As forward leaves it.
            rule_again.amax = amax = Tensor::empty("amax", {p.experts()}, DType::F32, exec);
            scaled_glu_quantize(
                {.options = in.options,
                 .x = v["c"],
                 .scales = in.scales,
                 .split_sizes = in.split_sizes,
                 .activation = {.column = activation.column(), .rule = {.observed_amax = amax}}},
                exec);
        }
    }
    if (!p.weights_kept) {
        gate_up = make.weight(in.gate_up, false, true);
        down = make.weight(in.down, false, true);
    }
    // A copy, so that the case may run again.
    View c = v["c"];
    const auto bytes = static_cast<size_t>(c.bytes());
    const Scratch copied("case.c", p.overwrite ? bytes : 0, exec);
    if (p.overwrite) {
        copy(copied.as<void>(), c.data, bytes, exec);
        c.data = copied.as<void>();
    }
    const Direction down_rows = Direction::Column;
    const float beta = p.accumulate ? 1 : 0;
    GroupedMlpQuantizedBackwardArgs args{
        .options = in.options,
        .x = p.bench ? kept_x(p).operand(p, v) : x.column(),
        .gate_up = p.weights_kept ? kept_gate_up(p, down_rows).operand(p, v) : gate_up.column(),
        .down = p.weights_kept ? kept_down(p, down_rows).operand(p, v) : down.column(),
        .dy = dy.row(),
        .dy_column = dy.column(),
        .c = c,
        .scales = in.scales,
        .split_sizes = in.split_sizes,
        .dc = {.row = dc.row(), .column = dc.column(), .rule = rule},
        .activation = {.column = activation.column(), .rule = rule_again},
        .dx = v["dx"],
        .dgate_up = v["dgate_up"],
        .ddown = v["ddown"],
        .dscales = v["dscales"],
        .beta_gate_up = beta,
        .beta_down = beta,
        .fast_dgrad = p.fast,
        .fast_wgrad = p.fast,
        .overwrite_c = p.overwrite};
    if (!p.overwrite) return grouped_mlp_quantized_backward(args, exec);
    // It ends with dC, and somebody else goes on.
    const GroupedMlpQuantizedBackwardArgs all = args;
    args.x = args.gate_up = args.dy_column = {};
    args.dx = args.dgate_up = args.ddown = {};
    grouped_mlp_quantized_backward(args, exec);
    grouped_gemm_quantized({.kind = GemmKind::Wgrad,
                            .a = all.dy_column,
                            .b = activation.column(),
                            .out = all.ddown,
                            .split_sizes = in.split_sizes,
                            .beta = beta,
                            .fast_accumulation = p.fast},
                           exec);
    grouped_gemm_quantized({.kind = GemmKind::Wgrad,
                            .a = dc.column(),
                            .b = all.x,
                            .out = all.dgate_up,
                            .split_sizes = in.split_sizes,
                            .beta = beta,
                            .fast_accumulation = p.fast},
                           exec);
    grouped_gemm_quantized({.kind = GemmKind::Dgrad,
                            .a = dc.row(),
                            .b = all.gate_up,
                            .out = all.dx,
                            .split_sizes = in.split_sizes,
                            .fast_accumulation = p.fast},
                           exec);
}

}  // namespace moebius::ops::mlp_quantized_cases
