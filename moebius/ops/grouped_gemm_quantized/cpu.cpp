#include "moebius/ops/grouped_gemm_quantized/cpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "moebius/base/error.h"
#include "moebius/base/float8.h"
#include "moebius/ops/cpu_math.h"
#include "moebius/ops/gemm/cpu_products.h"
#include "moebius/tensor/operand_part.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 14;

// The 256 values of an element type.
struct Values {
    float of[256];
    explicit Values(DType element) {
        for (int code = 0; code < 256; ++code) {
            const auto byte = static_cast<uint8_t>(code);
            of[code] = element == DType::F8E4M3 ? to_float(F8E4M3{byte}) : to_float(F8E5M2{byte});
        }
    }
};

float factor(const Operand& operand, int64_t place) {
    return operand.format.scale == ScaleKind::MX32 ? to_float(operand.scale.as<F8E8M0>()[place])
                                                   : operand.scale.as<float>()[place];
}

void put(float* to, float value) {
    *to = value;
}
void put(BF16* to, float value) {
    *to = to_bf16(value);
}

// One expert's part as (rows, columns), or, for operands that lie transposed, as they lie: (columns, rows).
template <class T>
void dequantize(const Operand& operand, const MatrixShape& matrix, const ExpertPart& part, T* to,
                const Exec& exec) {
    const OperandPart places(operand, matrix, part);
    const Values values(operand.format.element);
    const auto* codes = static_cast<const uint8_t*>(operand.data.data);
    const int64_t lines = operand.transposed ? matrix.columns : part.rows;
    const int64_t length = operand.transposed ? part.rows : matrix.columns;
    const int64_t each = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(length, 1));
    exec.parallel(ceil_div(lines, each), [&](int64_t piece, int) {
        for (int64_t line = piece * each; line < std::min(lines, (piece + 1) * each); ++line) {
            for (int64_t p = 0; p < length; ++p) {
                const int64_t i = operand.transposed ? p : line, c = operand.transposed ? line : p;
                put(to + line * length + p,
                    values.of[codes[places.data(i, c)]] * factor(operand, places.scale(i, c)));
            }
        }
    });
}

void zero_rows(const View& out) {
    for (int64_t i = 0; i < out.size(0); ++i)
        std::memset(out.rows(i, 1).data, 0, static_cast<size_t>(bytes_of(out.dtype, out.size(1))));
}

struct Product {
    const GroupedGemmQuantizedArgs& args;
    MatrixShape left, right;
    std::vector<ExpertPart> a_parts, b_parts;
};

template <class T>
void run_expert(const Product& p, size_t e, T* a, T* b, const Exec& exec) {
    const GroupedGemmQuantizedArgs& args = p.args;
    const ExpertPart& own = p.a_parts[e];
    const bool wgrad = args.kind == GemmKind::Wgrad, accumulate = args.beta != 0;
    if (own.rows == 0) {
        if (wgrad && !accumulate) zero_rows(args.out.at(own.expert));
        return;
    }
    dequantize(args.a, p.left, own, a, exec);
    dequantize(args.b, p.right, p.b_parts[e], b, exec);
    const DType dtype = DTypeOf<T>::value;
    if (wgrad && !args.a.transposed) {
        run_products(DepthProducts{.m = p.left.columns,
                                   .n = p.right.columns,
                                   .groups = {{.rows = own.rows,
                                               .a = {a, dtype, p.left.columns},
                                               .b = {b, dtype, p.right.columns},
                                               .out = Matrix(args.out.at(own.expert)),
                                               .accumulate = accumulate}}},
                     exec);
        return;
    }
    // a (m, depth) · b (n, depth)ᵀ; only Dgrad's MX32 weight lies as (depth, n).
    const int64_t m = wgrad ? p.left.columns : own.rows, depth = wgrad ? own.rows : p.left.columns;
    const View out = wgrad ? args.out.at(own.expert) : args.out.rows(own.first, own.rows);
    const bool transposed = args.kind != GemmKind::Dgrad || args.b.transposed;
    const int64_t n = out.size(1);
    RowProducts products{.a = {a, dtype, depth},
                         .out = Matrix(out),
                         .n = n,
                         .k = depth,
                         .transposed = transposed,
                         .accumulate = accumulate};
    products.groups.push_back({0, m, Matrix(b, dtype, transposed ? depth : n), nullptr});
    run_products(products, exec);
}

template <class T>
void run(const Product& p, const Exec& exec) {
    int64_t a_most = 0, b_most = 0;
    for (size_t e = 0; e < p.a_parts.size(); ++e) {
        a_most = std::max(a_most, p.a_parts[e].rows * p.left.columns);
        b_most = std::max(b_most, p.b_parts[e].rows * p.right.columns);
    }
    const Scratch a("grouped_gemm_quantized.a", static_cast<size_t>(a_most) * sizeof(T), exec);
    const Scratch b("grouped_gemm_quantized.b", static_cast<size_t>(b_most) * sizeof(T), exec);
    for (size_t e = 0; e < p.a_parts.size(); ++e) run_expert(p, e, a.as<T>(), b.as<T>(), exec);
}

}  // namespace

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    const QuantizedProductSizes s = sizes_of(args);
    const bool wgrad = args.kind == GemmKind::Wgrad, forward = args.kind == GemmKind::Forward;
    // The places in transposed operands come from their own strides; their capacity is what is padded.
    const int64_t capacity = wgrad ? s.padded : s.rows;
    const MatrixShape x{capacity, s.in_features, s.experts}, y{capacity, s.out_features, s.experts};
    const MatrixShape w{s.out_features, s.in_features, s.experts, true};
    Product p{args, forward ? x : y, wgrad ? x : w, {}, {}};
    p.a_parts = expert_parts(p.left, args.split_sizes);
    p.b_parts = wgrad ? p.a_parts : expert_parts(p.right, {});
    if (args.a.transposed && !p.a_parts.empty()) {
        const int64_t used = p.a_parts.back().next(0).row_blocks * kRowBlock;
        if (used > s.padded) {
            throw Error(
                fmt::format("split_sizes, each rounded up to {} rows, sum to {}, more than the {} there are",
                            kRowBlock, used, s.padded));
        }
    }
    if (args.a.format.scale == ScaleKind::MX32) {
        run<BF16>(p, exec);
    } else {
        run<float>(p, exec);
    }
}

}  // namespace moebius::ops::cpu
