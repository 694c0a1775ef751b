#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_mlp_quantized/composed.h"
#include "moebius/ops/grouped_mlp_quantized/sm100.h"
#include "moebius/ops/grouped_mlp_quantized/sm90.h"
#include "moebius/ops/grouped_mlp_quantized/sm90_config.h"

namespace moebius::ops {
namespace {

using Forward = GroupedMlpQuantizedArgs;
using Backward = GroupedMlpQuantizedBackwardArgs;

constexpr Variant<Forward> kForward[] = {
    {"sm100_fused", DeviceKind::Cuda, 100, 100, sm100::why_not_mlp_quantized,
     MOEBIUS_CUDA(sm100::grouped_mlp_quantized), /*repeats=*/true, /*untried=*/true},
    {"sm90_fused", DeviceKind::Cuda, 90, 90, sm90::why_not_mlp_quantized,
     MOEBIUS_CUDA(sm90::grouped_mlp_quantized)},
    {"sm90_fused_given", DeviceKind::Cuda, 90, 90, sm90::why_not_mlp_quantized_given,
     MOEBIUS_CUDA(sm90::grouped_mlp_quantized_given)},
    {"sm90_fused_amax", DeviceKind::Cuda, 90, 90, sm90::why_not_mlp_quantized_amax,
     MOEBIUS_CUDA(sm90::grouped_mlp_quantized_amax)},
    {"cuda_composed", DeviceKind::Cuda, 80, 999, always<Forward>,
     MOEBIUS_CUDA(composed::grouped_mlp_quantized)},
    {"cpu_composed", DeviceKind::Cpu, 0, 0, always<Forward>, composed::grouped_mlp_quantized}};
constexpr Variant<Backward> kBackward[] = {
    {"cuda_composed", DeviceKind::Cuda, 80, 999, always<Backward>,
     MOEBIUS_CUDA(composed::grouped_mlp_quantized_backward)},
    {"cpu_composed", DeviceKind::Cpu, 0, 0, always<Backward>, composed::grouped_mlp_quantized_backward}};

struct Sizes {
    int64_t rows = 0, hidden = 0, experts = 0, intermediate = 0;

    MatrixShape in() const { return {rows, hidden, experts}; }  // x, y and their gradients
    MatrixShape narrow() const { return {rows, intermediate, experts}; }
    MatrixShape wide() const { return {rows, 2 * intermediate, experts}; }
    MatrixShape gate_up() const { return {2 * intermediate, hidden, experts, true}; }
    MatrixShape down() const { return {hidden, intermediate, experts, true}; }
    double products() const {
        return static_cast<double>(rows) * static_cast<double>(hidden) * static_cast<double>(intermediate);
    }
};

// From C and the weight: `down` lies (E, H, I), or (E, I, H) where its data are transposed.
template <class Args>
Sizes sizes(const Args& a) {
    return {.rows = a.c.size(0),
            .hidden = a.down.data.size(a.down.transposed ? 2 : 1),
            .experts = a.split_sizes.size(0),
            .intermediate = a.c.size(1) / 2};
}

bool fits(const Operand& operand, Direction direction, const MatrixShape& matrix) {
    const OperandShapes shapes = operand_shapes(operand.format, direction, matrix, operand.layout);
    return operand.data.shape == shapes.data && operand.scale.shape == shapes.scale;
}

template <class Args>
void check_shared(const Args& a, const char* op, const Operand& x, std::initializer_list<View> results,
                  const QuantizeTarget& target) {
    const ScaleKind kind = x.format.scale;
    for (const Operand* operand : {&a.gate_up, &a.down, &target.row}) {
        if (!*operand && operand == &a.gate_up) continue;  // backward alone may lack it
        if (operand->format.scale != kind || kind == ScaleKind::None) {
            throw Error(fmt::format("{} takes operands with one kind of scales, not {} and {}", op,
                                    name(kind), name(operand->format.scale)));
        }
        if (operand->layout != ScaleLayout::Compact)
            throw Error(fmt::format("{} takes compact scales, not padded or swizzled ones", op));
    }
    const Sizes s = sizes(a);
    if (a.options.interleave > 0 && s.intermediate % a.options.interleave != 0) {
        throw Error(fmt::format("{}: glu_interleave_size = {} does not divide the intermediate size {}", op,
                                a.options.interleave, s.intermediate));
    }
    if (a.c.dtype != DType::F32 && a.c.dtype != DType::BF16)
        throw Error(fmt::format("{} keeps f32 or bf16, not {}", op, name(a.c.dtype)));
    for (const View& view : results) {
        if (view.shape != (Shape{s.rows, s.hidden}) || view.dtype != a.c.dtype) {
            throw Error(fmt::format("{}: {} {} beside c {} {}", op, name(view.dtype), view.shape.str(),
                                    name(a.c.dtype), a.c.shape.str()));
        }
    }
    MOEBIUS_CHECK(!a.scales || (a.scales.dtype == DType::F32 && a.scales.contiguous() &&
                                a.scales.shape == Shape{s.rows}),
                  op, ": scales ", a.scales.shape.str());
}

[[noreturn]] void throw_misfit(const char* op, const Operand& x, const Operand& gate_up, const Operand& down,
                               const View& c) {
    throw Error(fmt::format("{}: shapes don't fit: x {}, gate_up {}, down {}, c {}", op, x.data.shape.str(),
                            gate_up.data.shape.str(), down.data.shape.str(), c.shape.str()));
}

template <class Args>
bool ranks_fit(const Args& a) {
    return a.c.rank() == 2 && a.c.size(1) % 2 == 0 && a.down.data.rank() == 3 && a.split_sizes.rank() == 1;
}

void validate(const Forward& a) {
    constexpr const char* kOp = "grouped_mlp_quantized";
    if (!ranks_fit(a)) throw_misfit(kOp, a.x, a.gate_up, a.down, a.c);
    check_shared(a, kOp, a.x, {a.y}, a.activation);
    const Sizes s = sizes(a);
    if (!fits(a.x, Direction::Row, s.in()) || !fits(a.gate_up, Direction::Row, s.gate_up()) ||
        !fits(a.down, Direction::Row, s.down()))
        throw_misfit(kOp, a.x, a.gate_up, a.down, a.c);
    MOEBIUS_CHECK(a.activation.row, kOp, ": the second product reads the activation row-wise");
    check_target("grouped_mlp_quantized: activation", a.activation, s.narrow());
}

void validate(const Backward& a) {
    constexpr const char* kOp = "grouped_mlp_quantized_backward";
    if (!ranks_fit(a)) throw_misfit(kOp, a.x, a.gate_up, a.down, a.c);
    if (a.gate_up) {
        check_shared(a, kOp, a.dy, {a.dx}, a.dc);
    } else {
        MOEBIUS_CHECK(!a.x && !a.dx && !a.dgate_up, kOp, ": x, dx or dgate_up without gate_up");
        check_shared(a, kOp, a.dy, {}, a.dc);
    }
    MOEBIUS_CHECK(a.ddown || (!a.dy_column && !a.gate_up), kOp, ": dy_column or gate_up without ddown");
    const Sizes s = sizes(a);
    if ((a.gate_up &&
         (!fits(a.x, Direction::Column, s.in()) || !fits(a.gate_up, Direction::Column, s.gate_up()))) ||
        !fits(a.down, Direction::Column, s.down()) || !fits(a.dy, Direction::Row, s.in()) ||
        (a.ddown && !fits(a.dy_column, Direction::Column, s.in())))
        throw_misfit(kOp, a.x, a.gate_up, a.down, a.c);
    MOEBIUS_CHECK(a.dc.row && a.dc.column, kOp, ": dc is read in both directions");
    check_target("grouped_mlp_quantized_backward: dc", a.dc, s.wide());
    MOEBIUS_CHECK(!a.activation.row && (a.activation.column || !a.ddown), kOp,
                  ": ddown's product reads the activation column-wise");
    if (a.activation.column)
        check_target("grouped_mlp_quantized_backward: activation", a.activation, s.narrow());
    MOEBIUS_CHECK((!a.gate_up || a.dgate_up.shape == (Shape{s.experts, 2 * s.intermediate, s.hidden})) &&
                      (!a.ddown || a.ddown.shape == (Shape{s.experts, s.hidden, s.intermediate})),
                  kOp, ": dgate_up ", a.dgate_up.shape.str(), ", ddown ", a.ddown.shape.str());
    MOEBIUS_CHECK(!a.dscales || (a.dscales.dtype == DType::F32 && a.dscales.contiguous() &&
                                 a.dscales.shape == Shape{s.rows}),
                  kOp, ": dscales ", a.dscales.shape.str());
    for (const float beta : {a.beta_gate_up, a.beta_down}) MOEBIUS_CHECK(beta == 0 || beta == 1, beta);
}

double bytes(const View& view) {
    return view ? static_cast<double>(view.bytes()) : 0.0;
}
double bytes(const Operand& operand) {
    return bytes(operand.data) + bytes(operand.scale);
}

}  // namespace

Cost cost(const Forward& a) {
    return {6 * sizes(a).products(), bytes(a.x) + bytes(a.gate_up) + bytes(a.down) + bytes(a.c) + bytes(a.y) +
                                         bytes_of(a.activation) + bytes(a.activation.row)};
}
Cost cost(const Backward& a) {
    return {(a.gate_up ? 12
             : a.ddown ? 4
                       : 2) *
                sizes(a).products(),
            bytes(a.x) + (a.ddown ? 2 : 1) * bytes_of(a.activation) + bytes(a.gate_up) + bytes(a.down) +
                bytes(a.dy) + bytes(a.dy_column) + bytes(a.c) + 2 * bytes_of(a.dc) + bytes(a.dx) +
                bytes(a.dgate_up) + bytes(a.ddown)};
}

void grouped_mlp_quantized(const Forward& args, const Exec& exec) {
    validate(args);
    dispatch<Forward>("grouped_mlp_quantized", kForward, args, exec, cost(args));
}
void grouped_mlp_quantized_backward(const Backward& args, const Exec& exec) {
    validate(args);
    dispatch<Backward>("grouped_mlp_quantized_backward", kBackward, args, exec, cost(args));
}

std::vector<VariantInfo> grouped_mlp_quantized_variants() {
    return describe<Forward>(kForward);
}
std::vector<VariantInfo> grouped_mlp_quantized_backward_variants() {
    return describe<Backward>(kBackward);
}

}  // namespace moebius::ops
