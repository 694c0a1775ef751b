#include <algorithm>
#include <numeric>

#include "moebius/base/float8.h"
#include "moebius/ops/case.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/tensor/operand_part.h"

namespace moebius::ops {
namespace {

struct Problem {
    GemmKind kind = GemmKind::Forward;
    ScaleKind scale = ScaleKind::Block128;
    DType a = DType::F8E4M3, b = DType::F8E4M3, out = DType::F32, index = DType::I64;
    NamedSplits splits;
    int64_t n = 0, k = 0;
    bool power_of_two = true, integers = false, accumulate = false, fast = false, bench = false;
    bool extreme = false;  // a's MX32 scales so small that bf16 rounds the products with its codes

    int64_t experts() const { return static_cast<int64_t>(splits.sizes.size()); }
    int64_t rows() const { return std::accumulate(splits.sizes.begin(), splits.sizes.end(), int64_t{0}); }
    bool wgrad() const { return kind == GemmKind::Wgrad; }
    bool forward() const { return kind == GemmKind::Forward; }
    int64_t depth() const {  // the longest
        return forward() ? k : !wgrad() ? n : *std::max_element(splits.sizes.begin(), splits.sizes.end());
    }
    // Sums of integers beyond the 256 that bf16 holds are added to bf16.
    bool rounds_sums() const {
        return integers && accumulate && out == DType::BF16 && rows() > 0 && depth() >= 16;
    }
};

std::string name_of(const Problem& p) {
    std::string text = p.forward() ? "forward" : p.wgrad() ? "wgrad" : "dgrad";
    text += "." + std::string(name(p.scale)) + "." + std::string(name(p.a)) + "_" + std::string(name(p.b)) +
            "_" + std::string(name(p.out)) + "." + p.splits.name + "." + std::to_string(p.n) + "x" +
            std::to_string(p.k);
    for (const auto& [on, word] : {std::pair{p.integers, ".integers"},
                                   {!p.power_of_two, ".any_scale"},
                                   {p.accumulate, ".add"},
                                   {p.fast, ".fast"},
                                   {p.extreme, ".extreme"},
                                   {p.index == DType::I32, ".i32"}}) {
        if (on) text += word;
    }
    return text;
}

// One operand of the product: what it is of, and where its parts lie.
struct Side {
    const char* name;
    MatrixShape matrix;
    Direction direction;
    Format format;
    OperandShapes shapes;
    std::vector<ExpertPart> parts;

    Operand operand(const Views& v) const {
        const std::string text = name;
        return {.data = v[text + "_data"],
                .scale = v[text + "_scale"],
                .format = format,
                .transposed = shapes.transposed};
    }
    OperandPart places(const ExpertPart& part) const {
        return OperandPart({.data = View(nullptr, format.element, shapes.data),
                            .format = format,
                            .transposed = shapes.transposed},
                           matrix, part);
    }
};

std::vector<ExpertPart> parts_of(const MatrixShape& matrix, const std::vector<int64_t>& sizes) {
    std::vector<ExpertPart> parts;
    for (const int64_t rows : sizes) {
        parts.push_back(parts.empty() ? ExpertPart{.rows = rows} : parts.back().next(rows));
    }
    return matrix.weight ? expert_parts(matrix, {}) : parts;
}

Side side_of(const Problem& p, bool left) {
    Side s{.name = left ? "a" : "b"};
    const bool weight = !left && !p.wgrad();
    const int64_t columns = left && !p.forward() ? p.n : p.k;
    s.matrix = weight ? MatrixShape{p.n, p.k, p.experts(), true}
                      : MatrixShape{p.splits.capacity, columns, p.experts(), false};
    s.direction = p.wgrad() || (weight && !p.forward()) ? Direction::Column : Direction::Row;
    s.format = make_format(left ? p.a : p.b, p.scale, s.direction, weight, p.power_of_two);
    s.shapes = operand_shapes(s.format, s.direction, s.matrix);
    s.parts = parts_of(s.matrix, p.splits.sizes);
    return s;
}

double number_of(DType element, double code) {
    const int bits = static_cast<int>(code);
    const int mantissa = element == DType::F8E4M3 ? 3 : 2, bias = element == DType::F8E4M3 ? 7 : 15;
    const int exponent = (bits & 127) >> mantissa, digits = bits & ((1 << mantissa) - 1);
    const double value = exponent == 0 ? std::ldexp(digits, 1 - bias - mantissa)
                                       : std::ldexp(digits + (1 << mantissa), exponent - bias - mantissa);
    return bits & 128 ? -value : value;
}

double random_code(const Problem& p, DType element, int64_t i, const Philox& random) {
    const auto index = static_cast<uint64_t>(i);
    // Wider ones beside bf16 that is added to: sums that it has to round.
    const uint64_t most = p.accumulate && p.out == DType::BF16 ? 7 : 3;
    const auto value = static_cast<float>(
        p.integers ? static_cast<double>(random.below(index, 2 * most + 1)) - static_cast<double>(most)
                   : 20.0 * random.normal(index));
    return element == DType::F8E4M3 ? to_f8e4m3(value).bits : to_f8e5m2(value).bits;
}
// Never one, and of few scales never that of the next place, so that a scale forgotten or beside the right
// one shows.
double random_scale(const Problem& p, int64_t i, const Philox& random) {
    const auto index = static_cast<uint64_t>(i);
    constexpr int kExponents[] = {-1, 1, 2, -3, -2, 3, -4, 4};
    const bool few = p.integers || p.scale == ScaleKind::Tensor;
    const int exponent = kExponents[few ? static_cast<uint64_t>((i + i / 7) % 3) : random.below(index, 8)];
    if (p.scale == ScaleKind::MX32) return 127 + exponent;
    return std::ldexp(p.power_of_two ? 1.0 : 1.0 + 0.999 * random.uniform(index ^ 0x5555), exponent);
}

// What is neither codes nor padding of them holds NaN: reading it spoils a result.
constexpr double kNaNCode = 127;

void add_tensors(Case& c, const Problem& p, const Side& side) {
    const std::string text = side.name;
    const bool left = text == "a";
    TensorSpec data{.name = text + "_data", .shape = side.shapes.data, .dtype = side.format.element};
    TensorSpec scale{.name = text + "_scale", .shape = side.shapes.scale, .dtype = side.shapes.scale_dtype};
    if (p.bench) {
        data.value = [=](int64_t i, const Philox& random) { return random_code(p, data.dtype, i, random); };
        scale.value = [=](int64_t i, const Philox& random) { return random_scale(p, i, random); };
        c.tensors.push_back(data);
        c.tensors.push_back(scale);
        return;
    }
    enum class Use : char { None, Padding, Value };
    std::vector<Use> codes(static_cast<size_t>(data.shape.numel())),
        scales(static_cast<size_t>(scale.shape.numel()));
    for (const ExpertPart& part : side.parts) {
        const OperandPart places = side.places(part);
        const bool pads = side.shapes.transposed && !side.matrix.weight;
        for (int64_t i = 0; i < (pads ? round_up(part.rows, 128) : part.rows); ++i) {
            for (int64_t j = 0; j < side.matrix.columns; ++j) {
                codes[static_cast<size_t>(places.data(i, j))] = i < part.rows ? Use::Value : Use::Padding;
                if (i < part.rows) scales[static_cast<size_t>(places.scale(i, j))] = Use::Value;
            }
        }
    }
    data.value = [=](int64_t i, const Philox& random) {
        const Use use = codes[static_cast<size_t>(i)];
        return use == Use::Padding ? 0.0
               : use == Use::None  ? kNaNCode
                                   : random_code(p, data.dtype, i, random);
    };
    scale.value = [=](int64_t i, const Philox& random) {
        if (scales[static_cast<size_t>(i)] == Use::None)
            return p.scale == ScaleKind::MX32 ? 255.0 : std::nan("");
        if (p.extreme) return static_cast<double>((left ? 0 : 240) + (i + i / 7) % 3);
        return random_scale(p, i, random);
    };
    c.tensors.push_back(data);
    c.tensors.push_back(scale);
}

// The numbers of one expert's part, (rows, columns).
template <class H>
auto numbers(H& h, const Side& side, const ExpertPart& part) {
    const std::string text = side.name;
    auto& data = h[text + "_data"];
    auto& scale = h[text + "_scale"];
    using Real = std::remove_cvref_t<decltype(data[0])>;
    std::vector<Real> values;
    const OperandPart places = side.places(part);
    for (int64_t i = 0; i < part.rows; ++i) {
        for (int64_t c = 0; c < side.matrix.columns; ++c) {
            const double factor = static_cast<double>(scale[places.scale(i, c)]);
            const double code = static_cast<double>(data[places.data(i, c)]);
            const auto element = static_cast<Real>(number_of(side.format.element, code));
            if (side.format.scale != ScaleKind::MX32) {
                values.push_back(element * static_cast<Real>(factor));
            } else {
                // Exact in fp32; what bf16 drops of it is not there for anybody.
                const auto wide = static_cast<float>(element * static_cast<Real>(std::exp2(factor - 127)));
                values.push_back(static_cast<Real>(to_float(to_bf16(wide))));
            }
        }
    }
    return values;
}

template <class H>
void reference(H& h, const Problem& p, const Side& left, const Side& right) {
    auto& out = h["out"];
    for (size_t e = 0; e < left.parts.size(); ++e) {
        const ExpertPart& part = left.parts[e];
        const auto a = numbers(h, left, part);
        const auto b = numbers(h, right, right.parts[e]);
        const int64_t m = p.wgrad() ? p.n : part.rows, n = p.forward() ? p.n : p.k;
        const int64_t depth = p.wgrad() ? part.rows : p.forward() ? p.k : p.n;
        const int64_t origin = p.wgrad() ? part.expert * p.n * p.k : part.first * n;
        for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
                auto sum = p.accumulate ? out[origin + i * n + j] : out[0] - out[0];
                if (!p.accumulate) sum = 0;
                for (int64_t q = 0; q < depth; ++q) {
                    sum += a[static_cast<size_t>(p.wgrad() ? q * m + i : i * depth + q)] *
                           b[static_cast<size_t>(p.forward() ? j * depth + q : q * n + j)];
                }
                out[origin + i * n + j] = sum;
            }
        }
    }
}

GroupedGemmQuantizedArgs args_of(const Problem& p, const Side& left, const Side& right, const Views& v) {
    return {.kind = p.kind,
            .a = left.operand(v),
            .b = right.operand(v),
            .out = v["out"],
            .split_sizes = v["split_sizes"],
            .beta = p.accumulate ? 1.0f : 0.0f,
            .fast_accumulation = p.fast};
}

// Runs the op with b's or a's scales as `change` makes them.
template <class F>
void with_scales(GroupedGemmQuantizedArgs args, Operand GroupedGemmQuantizedArgs::*side, const Exec& exec,
                 F&& change) {
    const View before = (args.*side).scale;
    const auto run = [&]<class T>(T) {
        SharedVector<T> scales(static_cast<T*>(before.data), static_cast<T*>(before.data) + before.numel());
        change(scales);
        (args.*side).scale = View(scales.data(), before.dtype, before.shape);
        grouped_gemm_quantized(args, exec);
    };
    if (before.dtype == DType::F32) {
        run(float{});
    } else {
        run(uint8_t{});
    }
}

std::vector<Mutant> mutants_of(const Problem& p, const Side& left, const Side& right) {
    std::vector<Mutant> mutants;
    using Side_ = Operand GroupedGemmQuantizedArgs::*;
    for (const auto& [side, of, text] :
         {std::tuple<Side_, const Side*, std::string>{&GroupedGemmQuantizedArgs::a, &left, "a"},
          {&GroupedGemmQuantizedArgs::b, &right, "b"}}) {
        if (of->shapes.scale.numel() < 2) continue;
        mutants.push_back({text + ": the scale beside the right one", [=](const Views& v, const Exec& exec) {
                               with_scales(args_of(p, left, right, v), side, exec, [](auto& scales) {
                                   std::rotate(scales.begin(), scales.begin() + 1, scales.end());
                               });
                           }});
    }
    mutants.push_back({"forgets b's scales", [=](const Views& v, const Exec& exec) {
                           with_scales(args_of(p, left, right, v), &GroupedGemmQuantizedArgs::b, exec,
                                       [](auto& scales) {
                                           const bool codes = sizeof(scales[0]) == 1;
                                           std::fill(scales.begin(), scales.end(), codes ? 127 : 1);
                                       });
                       }});
    if (p.accumulate) {
        mutants.push_back({"forgets what was there", [=](const Views& v, const Exec& exec) {
                               GroupedGemmQuantizedArgs args = args_of(p, left, right, v);
                               args.beta = 0;
                               grouped_gemm_quantized(args, exec);
                           }});
    }
    if (p.rounds_sums()) {
        mutants.push_back({"rounds the product before it is added", [=](const Views& v, const Exec& exec) {
                               GroupedGemmQuantizedArgs args = args_of(p, left, right, v);
                               SharedVector<BF16> product(static_cast<size_t>(args.out.numel()));
                               args.out = View(product.data(), DType::BF16, args.out.shape);
                               args.beta = 0;
                               grouped_gemm_quantized(args, exec);
                               add({.x = v["out"], .y = args.out, .out = v["out"]}, exec);
                           }});
    }
    if (p.experts() < 2 || p.splits.name == "one_row_of_many") return mutants;
    if (!p.wgrad() && p.splits.sizes[0] > 0) {
        mutants.push_back({"the next expert's weight", [=](const Views& v, const Exec& exec) {
                               GroupedGemmQuantizedArgs args = args_of(p, left, right, v);
                               SharedVector<int64_t> sizes(p.splits.sizes.begin(), p.splits.sizes.end());
                               sizes.erase(sizes.begin());
                               sizes[0] += p.splits.sizes[0];  // rows of expert 0 go to expert 1
                               args.b.data = args.b.data.rows(1, p.experts() - 1);
                               args.b.scale = args.b.scale.rows(1, p.experts() - 1);
                               if (p.scale == ScaleKind::Tensor)
                                   args.a.scale = args.a.scale.rows(1, p.experts() - 1);
                               args.split_sizes = View(sizes.data(), DType::I64, {p.experts() - 1});
                               grouped_gemm_quantized(args, exec);
                           }});
    }
    if (p.wgrad() && (!p.accumulate || p.splits.sizes.back() > 0)) {
        mutants.push_back({"leaves the last expert's part as it was", [=](const Views& v, const Exec& exec) {
                               GroupedGemmQuantizedArgs args = args_of(p, left, right, v);
                               SharedVector<int64_t> sizes(p.splits.sizes.begin(), p.splits.sizes.end());
                               sizes.pop_back();
                               args.out = args.out.rows(0, p.experts() - 1);
                               if (p.scale != ScaleKind::Block128) {
                                   for (Operand* side : {&args.a, &args.b})
                                       side->scale = side->scale.rows(0, side->scale.size(0) - 1);
                               }
                               args.split_sizes = View(sizes.data(), DType::I64, {p.experts() - 1});
                               grouped_gemm_quantized(args, exec);
                           }});
    }
    return mutants;
}

Case product_case(const Problem& p) {
    Case c;
    c.op = "grouped_gemm_quantized";
    c.name = name_of(p);
    c.group = p.bench ? "bench" : p.integers ? "exact" : p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.a;
    c.bench = p.bench;
    const Side left = side_of(p, true), right = side_of(p, false);
    add_tensors(c, p, left);
    add_tensors(c, p, right);
    c.tensors.push_back({.name = "split_sizes",
                         .shape = {p.experts()},
                         .dtype = p.index,
                         .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
                             return static_cast<double>(sizes[static_cast<size_t>(i)]);
                         }});
    const int64_t n = p.forward() ? p.n : p.k;
    TensorSpec out{.name = "out",
                   .shape = p.wgrad() ? Shape{p.experts(), p.n, p.k} : Shape{p.splits.capacity, n},
                   .dtype = p.out,
                   .role = p.accumulate ? Role::InOut : Role::Output,
                   .exact = p.integers};
    if (!p.wgrad()) out.written = [limit = p.rows() * n](int64_t i) { return i < limit; };
    if (p.accumulate && p.integers) {
        // Beside bf16 products that are rounded: large enough to move what they are rounded to.
        const double step = p.out == DType::BF16 ? 17.0 : 1.0;
        out.value = [=](int64_t i, const Philox&) { return step * (static_cast<double>(i % 5) - 2.0); };
    } else if (p.accumulate && !p.bench) {
        // As large as the products: that they are there must show.
        out.value = [](int64_t i, const Philox& random) {
            return 4096.0 * random.normal(static_cast<uint64_t>(i));
        };
    }
    if (p.out == DType::F32) {
        // A tensor core adds 16 products at a time to a running sum that it truncates (see grouped_gemm's
        // cases).
        const int64_t depth = p.depth();
        int64_t truncations = ceil_div(depth, 16);
        // Of eight-bit operands 32 products at a time, to about 14 bits: a unit of those is 2^10 half ones of
        // fp32. Sums leave the tensor core after 128 of the depth, or (`fast`) at its end.
        if (p.scale != ScaleKind::MX32)
            truncations = ceil_div(p.fast ? depth : std::min<int64_t>(depth, 128), 32) << 10;
        out.roundings = truncations * truncations;
        // Tensor cores that take the scales themselves do not round what bf16 rounds. Of a's codes under
        // scale 0 that are numbers below 2^-3, one in 200 of those drawn here, by at most half of
        // 2^-6: 1.6e-5 of the norm. (Without subnormal numbers it would be 1.6e-2.)
        if (p.extreme) out.roundings = std::max<int64_t>(out.roundings, 512 * 512);
    }
    c.tensors.push_back(out);
    c.run = [=](const Views& v, const Exec& exec) {
        grouped_gemm_quantized(args_of(p, left, right, v), exec);
    };
    set_reference(c, [=](auto& h) { reference(h, p, left, right); });
    if (!p.bench) c.mutants = mutants_of(p, left, right);
    c.cost = [=](const Views& v) { return cost(args_of(p, left, right, v)); };
    return c;
}

constexpr GemmKind kKinds[] = {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad};
constexpr ScaleKind kScales[] = {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32};

void add_bench(std::vector<Case>& cases) {
    for (const auto& [splits, n, k, large] :
         {std::tuple{NamedSplits{"8_experts", std::vector<int64_t>(8, 4096), 32768}, 28672, 4096, true},
          {NamedSplits{"128_experts", std::vector<int64_t>(128, 512), 65536}, 1536, 2048, true},
          {NamedSplits{"64_experts", std::vector<int64_t>(64, 2048), 131072}, 2048, 2048, true},
          {NamedSplits{"learned", {450, 370, 409, 400}, 1640}, 512, 256, false}}) {
        for (const ScaleKind scale : kScales) {
            const auto add_case = [&](Problem p) {
                p.bench = true;
                cases.push_back(product_case(p));
                cases.back().large = large;
            };
            for (const GemmKind kind : kKinds) {
                Problem p{.kind = kind,
                          .scale = scale,
                          .out = kind == GemmKind::Wgrad ? DType::F32 : DType::BF16,
                          .splits = splits,
                          .n = n,
                          .k = k};
                add_case(p);
                // As the recipes of per-tensor scales have it in forward.
                p.fast = scale == ScaleKind::Tensor && kind == GemmKind::Forward;
                if (p.fast) add_case(p);
            }
            // Of the steps' second micro-batch and later ones.
            for (const DType out : {DType::F32, DType::BF16}) {
                if (large)
                    add_case({.kind = GemmKind::Wgrad,
                              .scale = scale,
                              .out = out,
                              .splits = splits,
                              .n = n,
                              .k = k,
                              .accumulate = true});
            }
        }
    }
}

}  // namespace

void grouped_gemm_quantized_cases(std::vector<Case>& cases) {
    std::vector<NamedSplits> splits = edge_splits();
    // Several blocks of 128 rows, whole ones and short ones.
    splits.push_back({"blocks", {300, 0, 17, 128, 1}, 450});
    for (const NamedSplits& sizes : splits) {
        for (const ScaleKind scale : kScales) {
            for (const GemmKind kind : kKinds) {
                Problem p{.kind = kind, .scale = scale, .splits = sizes, .n = 144, .k = 272};
                cases.push_back(product_case(p));
                p.integers = true;  // whatever the order of the sums
                cases.push_back(product_case(p));
                p.index = DType::I32;
                p.accumulate = true;
                cases.push_back(product_case(p));
                p.out = DType::BF16;
                cases.push_back(product_case(p));
                p.integers = false;
                cases.push_back(product_case(p));
                p.accumulate = false;
                p.a = DType::F8E5M2;
                p.power_of_two = false;
                p.fast = scale == ScaleKind::Tensor;
                cases.push_back(product_case(p));
                // No size a multiple of anything.
                p.fast = false;
                p.out = DType::F32;
                p.n = 65;
                p.k = 163;
                cases.push_back(product_case(p));
            }
        }
    }
    for (const GemmKind kind : kKinds) {
        cases.push_back(product_case({.kind = kind,
                                      .scale = ScaleKind::MX32,
                                      .splits = {"blocks", {40, 0, 17}, 60},
                                      .n = 64,
                                      .k = 96,
                                      .extreme = true}));
    }
    // Under these splits another library's gradients came out wrong.
    for (const ScaleKind scale : kScales) {
        for (const GemmKind kind : kKinds) {
            cases.push_back(product_case({.kind = kind,
                                          .scale = scale,
                                          .splits = {"reported", {162, 0, 2577, 446, 0, 83}, 3268},
                                          .n = 64,
                                          .k = 64}));
        }
    }
    // More tiles than a card has SMs, so that a block computes several; many experts, some without rows.
    NamedSplits many{"many_tiles", {}, 300};
    for (int64_t e = 0; e < 35; ++e) many.sizes.push_back(e % 5 == 0 ? 0 : 5 + e % 9);
    for (const ScaleKind scale : kScales) {
        for (const DType out : {DType::F32, DType::BF16}) {
            Problem p{
                .kind = GemmKind::Wgrad, .scale = scale, .out = out, .splits = many, .n = 144, .k = 272};
            cases.push_back(product_case(p));
            p.accumulate = true;
            cases.push_back(product_case(p));
            if (scale != ScaleKind::Tensor) continue;
            p.fast = true;
            cases.push_back(product_case(p));
        }
    }
    // More than two tiles a block of any card; row-wise scales that lie in words.
    NamedSplits two_each{"two_tiles_each", {}, 380};
    for (int64_t e = 0; e < 40; ++e) two_each.sizes.push_back(5 + e % 9);
    for (const auto& [kind, sizes, n, k] :
         {std::tuple{GemmKind::Forward, two_each, 2048, 32},
          {GemmKind::Dgrad, two_each, 32, 2048},
          {GemmKind::Wgrad, two_each, 272, 528},
          {GemmKind::Forward, NamedSplits{"blocks", {300, 0, 17, 128, 1}, 450}, 256, 256},
          {GemmKind::Dgrad, NamedSplits{"blocks", {300, 0, 17, 128, 1}, 450}, 256, 256}}) {
        cases.push_back(
            product_case({.kind = kind, .scale = ScaleKind::MX32, .splits = sizes, .n = n, .k = k}));
    }
    add_bench(cases);
}

}  // namespace moebius::ops
