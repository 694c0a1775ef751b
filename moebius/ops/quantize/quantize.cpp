#include "moebius/ops/quantize/quantize.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/ops/quantize/cpu.h"
#include "moebius/ops/quantize/cuda.h"

namespace moebius::ops {
namespace {

std::string why_not_rows(const QuantizeArgs& a, const Exec&) {
    constexpr int64_t kColumns = 256;
    const View& values = a.source.values;
    const int64_t columns = matrix_of(a.source).columns;
    if (values.rank() != 2 && (a.row ? a.row : a.column).format.scale != ScaleKind::MX32)
        return "takes weights under scales of 32 alone";
    if (values.dtype != DType::BF16) return "takes bf16, not " + std::string(name(values.dtype));
    if (columns % kColumns != 0) {
        return "the source has " + std::to_string(columns) + " columns, not a multiple of " +
               std::to_string(kColumns);
    }
    if (values.stride[static_cast<size_t>(values.rank() - 2)] % 8 != 0 ||
        reinterpret_cast<uintptr_t>(values.data) % 16 != 0)
        return "takes rows that begin at multiples of 16 bytes";
    return why_not_pairs(target_of(a));
}

constexpr Variant<QuantizeArgs> kQuantize[] = {
    {"cuda_pairs", DeviceKind::Cuda, 80, 999, why_not_rows, MOEBIUS_CUDA(cuda::quantize_pairs)},
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<QuantizeArgs>, MOEBIUS_CUDA(cuda::quantize)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<QuantizeArgs>, cpu::quantize},
};
constexpr Variant<TensorAmaxArgs> kAmax[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<TensorAmaxArgs>, MOEBIUS_CUDA(cuda::tensor_amax)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<TensorAmaxArgs>, cpu::tensor_amax},
};
constexpr Variant<DequantizeArgs> kDequantize[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<DequantizeArgs>, MOEBIUS_CUDA(cuda::dequantize)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<DequantizeArgs>, cpu::dequantize},
};

bool is_float(const View& view) {
    return view.dtype == DType::F32 || view.dtype == DType::BF16;
}
bool is_split(const View& view) {
    return view.rank() == 1 && view.contiguous() && (view.dtype == DType::I32 || view.dtype == DType::I64);
}

void check_source(const QuantizeSource& s) {
    const View& v = s.values;
    const bool weight = v.rank() == 3;
    MOEBIUS_CHECK((v.rank() == 2 || weight) && is_float(v), "quantize: source ", v.shape.str(), " of ",
                  name(v.dtype));
    const auto last = static_cast<size_t>(v.rank() - 1);
    MOEBIUS_CHECK(v.size(v.rank() - 1) <= 1 || v.stride[last] == 1, "quantize: columns must be dense");
    MOEBIUS_CHECK(!weight || (!s.split_sizes && !s.row_index),
                  "quantize: a weight has no split_sizes or row_index");
    MOEBIUS_CHECK(!weight || v.contiguous(), "quantize: a weight must be dense");
    MOEBIUS_CHECK(!s.split_sizes || is_split(s.split_sizes), "split_sizes ", s.split_sizes.shape.str());
    MOEBIUS_CHECK(!s.row_index || (s.row_index.rank() == 1 && s.row_index.dtype == DType::I32 &&
                                   s.row_index.contiguous() && s.topk >= 1),
                  "row_index ", s.row_index.shape.str(), ", topk ", s.topk);
    if (!s.rstd && !s.norm_weight) return;
    MOEBIUS_CHECK(!weight && s.rstd && s.rstd.dtype == DType::F32 && s.rstd.contiguous() &&
                      s.rstd.shape == Shape{v.size(0)},
                  "quantize: rstd ", s.rstd.shape.str(), " for values ", v.shape.str());
    MOEBIUS_CHECK(s.norm_weight && is_float(s.norm_weight) && s.norm_weight.contiguous() &&
                      s.norm_weight.shape == Shape{v.size(1)},
                  "quantize: norm_weight ", s.norm_weight.shape.str(), " for values ", v.shape.str());
}

// (E) f32 where given.
bool of_experts(const View& view, int64_t experts) {
    return !view || (view.dtype == DType::F32 && view.contiguous() && view.shape == Shape{experts});
}

void validate(const QuantizeArgs& a) {
    check_source(a.source);
    MOEBIUS_CHECK(a.row || a.column, "quantize: neither direction is asked for");
    const MatrixShape matrix = matrix_of(a.source);
    const QuantizeTarget target = target_of(a);
    check_target("quantize", target, matrix);
    const bool tensor = (a.row ? a.row : a.column).format.scale == ScaleKind::Tensor;
    MOEBIUS_CHECK(tensor ? static_cast<bool>(a.amax) != static_cast<bool>(a.scale) : !a.amax,
                  "quantize: amax or scale is for tensor scales, and one of the two");
    MOEBIUS_CHECK(of_experts(a.amax, matrix.experts), "quantize: amax ", a.amax.shape.str());
}

void validate(const DequantizeArgs& a) {
    MOEBIUS_CHECK((a.out.rank() == 2 || a.out.rank() == 3) && is_float(a.out) && a.out.contiguous(),
                  "dequantize: out ", a.out.shape.str(), " of ", name(a.out.dtype));
    MOEBIUS_CHECK(!a.split_sizes || (is_split(a.split_sizes) && a.out.rank() == 2));
    check_operand("dequantize: from", a.from, a.direction,
                  matrix_of({.values = a.out, .split_sizes = a.split_sizes}));
}

double operand_bytes(const Operand& operand) {
    return operand ? static_cast<double>(operand.data.bytes() + operand.scale.bytes()) : 0.0;
}
double source_bytes(const QuantizeSource& s) {
    const MatrixShape m = matrix_of(s);
    const int64_t rows = m.weight ? m.rows * m.experts : m.rows;
    return static_cast<double>(bytes_of(s.values.dtype, rows * m.columns));
}

}  // namespace

std::string why_not_pairs(const QuantizeTarget& target) {
    if (target.rule.counts) return "counts no underflows";
    for (const Operand* codes : {&target.row, &target.column}) {
        if (!*codes) continue;
        const View& data = codes->data;
        if (codes->format.scale == ScaleKind::MX32 && reinterpret_cast<uintptr_t>(codes->scale.data) % 8 != 0)
            return "writes scales of 32 that begin at multiples of 8 bytes";
        if (reinterpret_cast<uintptr_t>(data.data) % 16 != 0 ||
            data.stride[static_cast<size_t>(data.rank() - 2)] % 16 != 0)
            return "writes codes that begin at multiples of 16 bytes";
    }
    return {};
}

QuantizeTarget target_of(const QuantizeArgs& a) {
    return {.row = a.row,
            .column = a.column,
            .rule = {.amax_epsilon = a.amax_epsilon,
                     .scale = a.scale,
                     .observed_amax = a.observed_amax,
                     .counts = a.counts}};
}

void check_target(const char* what, const QuantizeTarget& t, const MatrixShape& matrix) {
    const Operand &row = t.row, &column = t.column;
    const QuantizeRule& rule = t.rule;
    MOEBIUS_CHECK(row || column, what, ": neither direction is asked for");
    if (row) check_operand((std::string(what) + ": row").c_str(), row, Direction::Row, matrix);
    if (column) check_operand((std::string(what) + ": column").c_str(), column, Direction::Column, matrix);
    const Format& format = (row ? row : column).format;
    MOEBIUS_CHECK(
        !row || !column ||
            (row.format.element == column.format.element && row.format.scale == column.format.scale &&
             row.format.power_of_two == column.format.power_of_two && row.layout == column.layout),
        what, ": row and column differ in more than their direction");
    MOEBIUS_CHECK(format.scale == ScaleKind::Tensor ? !rule.scale || !rule.amax : !rule.scale && !rule.amax,
                  what, ": scale or amax is for tensor scales, and one of the two");
    for (const View* of_each : {&rule.scale, &rule.amax, &rule.observed_amax})
        MOEBIUS_CHECK(of_experts(*of_each, matrix.experts), what, ": scale or amax ", of_each->shape.str());
    MOEBIUS_CHECK(!rule.counts || (rule.counts.dtype == DType::I64 && rule.counts.contiguous() &&
                                   rule.counts.shape == Shape{matrix.experts, 2}),
                  what, ": counts ", rule.counts.shape.str());
    MOEBIUS_CHECK(rule.amax_epsilon >= 0, what, ": amax_epsilon = ", rule.amax_epsilon);
}

double bytes_of(const QuantizeTarget& target) {
    return operand_bytes(target.row) + operand_bytes(target.column);
}

MatrixShape matrix_of(const QuantizeSource& s) {
    if (s.values.rank() == 3) return {s.values.size(1), s.values.size(2), s.values.size(0), true};
    const int64_t rows = s.row_index ? s.row_index.size(0) : s.values.size(0);
    return {rows, s.values.size(1), s.split_sizes ? s.split_sizes.size(0) : 1, false};
}

Cost cost(const QuantizeArgs& a) {
    return {0, source_bytes(a.source) + bytes_of(target_of(a))};
}
Cost cost(const TensorAmaxArgs& a) {
    return {0, source_bytes(a.source)};
}
Cost cost(const DequantizeArgs& a) {
    return {0, operand_bytes(a.from) + static_cast<double>(a.out.bytes())};
}

void quantize(const QuantizeArgs& args, const Exec& exec) {
    validate(args);
    dispatch<QuantizeArgs>("quantize", kQuantize, args, exec, cost(args));
}
void tensor_amax(const TensorAmaxArgs& args, const Exec& exec) {
    check_source(args.source);
    const int64_t experts = matrix_of(args.source).experts;
    MOEBIUS_CHECK(args.amax && of_experts(args.amax, experts), "tensor_amax: amax ", args.amax.shape.str(),
                  " for ", experts, " experts");
    dispatch<TensorAmaxArgs>("tensor_amax", kAmax, args, exec, cost(args));
}
void dequantize(const DequantizeArgs& args, const Exec& exec) {
    validate(args);
    dispatch<DequantizeArgs>("dequantize", kDequantize, args, exec, cost(args));
}

std::vector<VariantInfo> quantize_variants() {
    return describe<QuantizeArgs>(kQuantize);
}
std::vector<VariantInfo> tensor_amax_variants() {
    return describe<TensorAmaxArgs>(kAmax);
}
std::vector<VariantInfo> dequantize_variants() {
    return describe<DequantizeArgs>(kDequantize);
}

}  // namespace moebius::ops
