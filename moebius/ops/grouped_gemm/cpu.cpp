#include "moebius/ops/grouped_gemm/cpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "moebius/base/error.h"
#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

RowProducts row_products(const GroupedGemmArgs& args) {
    RowProducts products{.a = Matrix(args.a),
                         .out = Matrix(args.out),
                         .n = args.out.size(1),
                         .k = args.a.size(1),
                         .transposed = args.kind == GemmKind::Forward,
                         .accumulate = args.beta != 0};
    if (args.bias) {
        products.bias_dtype = args.bias.dtype;
        if (args.bias_scale) products.bias_scale = args.bias_scale.as<float>();
    }
    const auto experts = expert_rows(args.split_sizes, args.a.size(0));
    for (size_t e = 0; e < experts.size(); ++e) {
        const auto index = static_cast<int64_t>(e);
        products.groups.push_back({experts[e].first, experts[e].rows, Matrix(args.b.at(index)),
                                   args.bias ? args.bias.at(index).data : nullptr});
    }
    return products;
}

DepthProducts depth_products(const GroupedGemmArgs& args) {
    DepthProducts products{.m = args.out.size(1), .n = args.out.size(2)};
    const auto experts = expert_rows(args.split_sizes, args.a.size(0));
    for (size_t e = 0; e < experts.size(); ++e) {
        products.groups.push_back({.rows = experts[e].rows,
                                   .a = Matrix(args.a).at(experts[e].first, 0),
                                   .b = Matrix(args.b).at(experts[e].first, 0),
                                   .out = Matrix(args.out.at(static_cast<int64_t>(e))),
                                   .accumulate = args.beta != 0});
    }
    return products;
}

template <class Products>
void one_after_the_other(const Products& all, const Exec& exec) {
    Products one = all;
    for (const auto& group : all.groups) {
        one.groups = {group};
        run_products(one, exec);
    }
}

// Sums over rows are cut into pieces of this many, added in order.
constexpr int64_t kBiasRows = 512;

struct BiasSumBody {
    // sums (n) = Σ over rows of scale · dy
    template <Isa, class T>
    MOEBIUS_INLINE static void run(int64_t rows, int64_t n, const T* dy, int64_t stride, const float* scale,
                                   float* sums) {
        std::fill_n(sums, n, 0.0f);
        for (int64_t i = 0; i < rows; ++i, dy += stride) {
            const float factor = scale ? scale[i] : 1.0f;
            int64_t j = 0;
            for (; j + kLanes <= n; j += kLanes) store(sums + j, load(sums + j) + load(dy + j) * factor);
            for (; j < n; ++j) sums[j] += to_float(dy[j]) * factor;
        }
    }
};

struct BiasDotBody {
    // dots (rows) = Σ over columns of dy · bias
    template <Isa, class T, class Bias>
    MOEBIUS_INLINE static void run(int64_t rows, int64_t n, const T* dy, int64_t stride, const Bias* bias,
                                   float* dots) {
        for (int64_t i = 0; i < rows; ++i, dy += stride) {
            F16 total{};
            int64_t j = 0;
            for (; j + kLanes <= n; j += kLanes) total += load(dy + j) * load(bias + j);
            if (j < n) total += load_partial(dy + j, n - j) * load_partial(bias + j, n - j);
            dots[i] = sum(total);
        }
    }
};

struct BiasPiece {
    int64_t expert, first, rows;
};

std::vector<BiasPiece> bias_pieces(const std::vector<ExpertRows>& experts) {
    std::vector<BiasPiece> pieces;
    for (size_t e = 0; e < experts.size(); ++e) {
        for (int64_t row = 0; row < experts[e].rows; row += kBiasRows) {
            pieces.push_back({static_cast<int64_t>(e), experts[e].first + row,
                              std::min(kBiasRows, experts[e].rows - row)});
        }
    }
    return pieces;
}

// dbias = beta·dbias + the expert's pieces, in order, and one cast.
void add_bias_pieces(const GroupedBiasGradArgs& args, const std::vector<BiasPiece>& pieces,
                     const float* sums) {
    const int64_t n = args.dy.size(1);
    std::vector<float> total(static_cast<size_t>(n));
    size_t next = 0;
    for (int64_t e = 0; e < args.split_sizes.size(0); ++e) {
        with_float_type(args.dbias.dtype, [&](auto type) {
            auto* out = args.dbias.at(e).as<decltype(type)>();
            for (int64_t j = 0; j < n; ++j)
                total[static_cast<size_t>(j)] = args.beta != 0 ? to_float(out[j]) : 0.0f;
            for (; next < pieces.size() && pieces[next].expert == e; ++next) {
                const float* part = sums + static_cast<int64_t>(next) * n;
                for (int64_t j = 0; j < n; ++j) total[static_cast<size_t>(j)] += part[j];
            }
            for (int64_t j = 0; j < n; ++j) store_as(out + j, total[static_cast<size_t>(j)]);
        });
    }
}

}  // namespace

std::vector<ExpertRows> expert_rows(const View& split_sizes, int64_t capacity) {
    std::vector<ExpertRows> experts(static_cast<size_t>(split_sizes.size(0)));
    int64_t next = 0;
    for (int64_t e = 0; e < split_sizes.size(0); ++e) {
        const int64_t rows = split_sizes.dtype == DType::I64 ? split_sizes.as<int64_t>()[e]
                                                             : int64_t{split_sizes.as<int32_t>()[e]};
        if (rows < 0) throw Error(fmt::format("split_sizes[{}] = {} is negative", e, rows));
        if (rows > capacity - next) {
            throw Error(
                fmt::format("split_sizes sum to more than the {} rows there are (at expert {}: {} + {})",
                            capacity, e, next, rows));
        }
        experts[static_cast<size_t>(e)] = {next, rows};
        next += rows;
    }
    return experts;
}

void grouped_gemm_packed(const GroupedGemmArgs& args, const Exec& exec) {
    if (args.kind == GemmKind::Wgrad) {
        run_products(depth_products(args), exec);
    } else {
        run_products(row_products(args), exec);
    }
}

void grouped_gemm_loop(const GroupedGemmArgs& args, const Exec& exec) {
    if (args.kind == GemmKind::Wgrad) {
        one_after_the_other(depth_products(args), exec);
    } else {
        one_after_the_other(row_products(args), exec);
    }
}

void grouped_bias_grad(const GroupedBiasGradArgs& args, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const auto experts = expert_rows(args.split_sizes, args.dy.size(0));
    const std::vector<BiasPiece> pieces = bias_pieces(experts);
    const int64_t n = args.dy.size(1), dy_stride = args.dy.stride[0];
    const float* scale = args.bias_scale ? args.bias_scale.as<float>() : nullptr;
    float* dscale = args.dbias_scale ? args.dbias_scale.as<float>() : nullptr;
    const Scratch sums("grouped_bias_grad.sums", pieces.size() * static_cast<size_t>(n) * 4, exec);
    with_float_type(args.dy.dtype, [&](auto dy_type) {
        with_float_type(args.bias ? args.bias.dtype : DType::F32, [&](auto bias_type) {
            using Bias = decltype(bias_type);
            const auto* dy = args.dy.as<decltype(dy_type)>();
            exec.parallel(static_cast<int64_t>(pieces.size()), [&](int64_t index, int) {
                const BiasPiece& piece = pieces[static_cast<size_t>(index)];
                const auto* rows = dy + piece.first * dy_stride;
                with_isa<BiasSumBody>(isa, piece.rows, n, rows, dy_stride,
                                      scale ? scale + piece.first : nullptr, sums.as<float>() + index * n);
                if (!dscale) return;
                const Bias* bias = args.bias.at(piece.expert).template as<Bias>();
                with_isa<BiasDotBody>(isa, piece.rows, n, rows, dy_stride, bias, dscale + piece.first);
            });
        });
    });
    add_bias_pieces(args, pieces, sums.as<float>());
}

}  // namespace moebius::ops::cpu
