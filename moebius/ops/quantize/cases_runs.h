// How quantize's cases are made of a problem: their tensors, runs and mutants. For cases.cpp alone.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "moebius/ops/quantize/cases_reference.h"

namespace moebius::ops::quantize_reference {

inline double source_value(const Problem& p, int64_t i, const Philox& random) {
    const auto index = static_cast<uint64_t>(i);
    if (p.every) return to_float(BF16{static_cast<uint16_t>(index)});
    const int64_t row = i / p.columns, column = i % p.columns;
    // Magnitudes differ between rows and between columns.
    const auto of_row = static_cast<int>(random.below(static_cast<uint64_t>(row) ^ 0x10000000, 9));
    const auto of_column = static_cast<int>(random.below(static_cast<uint64_t>(column) ^ 0x20000000, 7));
    const double usual = std::ldexp(random.normal(index), of_row + of_column - 7);
    if (!p.special) return usual;
    if (row % 7 == 3) return std::ldexp(usual, -137);  // subnormal in fp32, the scale overflows
    if (row % 7 == 5) return column % 2 ? 0.0 : -0.0;  // blocks of zeros
    if (row % 7 == 4 && column < 128) return std::nan("");
    if (row % 7 == 6) return std::ldexp(usual, 119);  // up to the largest numbers, and infinities
    const uint64_t kind = random.below(index ^ 0x40000000, 200);
    if (kind == 0) return std::nan("");
    if (kind == 1) return column % 3 ? INFINITY : -INFINITY;
    if (kind == 2) return 0.0;
    if (kind < 20) return std::ldexp(usual, -12);  // below the smallest code
    return usual;
}

inline QuantizeSource source_from(const Views& v) {
    return {.values = v["source"],
            .split_sizes = v["split_sizes"],
            .row_index = v["row_index"],
            .topk = kTopk,
            .rstd = v["rstd"],
            .norm_weight = v["norm_weight"]};
}
inline QuantizeArgs args_of(const Problem& p, const std::vector<Side>& sides, const Views& v) {
    QuantizeArgs args{.source = source_from(v), .row = {}, .column = {}};
    for (const Side& side : sides)
        (side.direction == Direction::Row ? args.row : args.column) = side.operand(v);
    args.amax_epsilon = p.epsilon;
    args.amax = v["amax"];
    args.scale = v["scale"];
    args.observed_amax = v["observed_amax"];
    args.counts = v["counts"];
    return args;
}

inline void add_source(Case& c, const Problem& p) {
    const int64_t held = p.gather ? p.splits.capacity / kTopk + 1 : p.splits.capacity;
    c.tensors.push_back(
        {.name = "source",
         .shape = p.weight ? Shape{p.experts(), p.splits.sizes[0], p.columns} : Shape{held, p.columns},
         .dtype = p.source,
         .value =
             [=, limit = p.gather ? held * p.columns : p.rows() * p.columns](int64_t i,
                                                                             const Philox& random) {
                 if (p.bench) return random.normal(static_cast<uint64_t>(i));
                 return i < limit ? source_value(p, i, random) : 1e30;  // seen in an amax at once
             },
         .row_padding = p.gather && !p.bench ? 8 : 0});
    if (p.norm) {
        c.tensors.push_back({.name = "rstd", .shape = {held}, .value = [](int64_t i, const Philox& random) {
                                 return 0.5 + 0.25 * random.uniform(static_cast<uint64_t>(i)) +
                                        static_cast<double>(i % 3);
                             }});
        c.tensors.push_back({.name = "norm_weight",
                             .shape = {p.columns},
                             .dtype = p.index == DType::I32 ? DType::F32 : p.source,
                             .value = [](int64_t i, const Philox& random) {
                                 return 0.5 + random.uniform(static_cast<uint64_t>(i)) +
                                        static_cast<double>(i % 2);
                             }});
    }
    if (!p.weight && !p.no_splits) {
        c.tensors.push_back({.name = "split_sizes",
                             .shape = {p.experts()},
                             .dtype = p.index,
                             .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
                                 return static_cast<double>(sizes[static_cast<size_t>(i)]);
                             }});
    }
    if (p.gather) {
        c.tensors.push_back({.name = "row_index",
                             .shape = {p.splits.capacity},
                             .dtype = DType::I32,
                             .value = [=, rows = p.rows()](int64_t i, const Philox& random) {
                                 // Past the sum nothing may be looked up.
                                 return i < rows ? static_cast<double>(
                                                       random.below(static_cast<uint64_t>(i),
                                                                    static_cast<uint64_t>(held * kTopk)))
                                                 : -1.0;
                             }});
    }
}

inline void add_side(Case& c, const Problem& p, const Side& s) {
    TensorSpec data{
        .name = s.name + "_data", .shape = s.shapes.data, .dtype = p.element, .role = Role::Output};
    TensorSpec scale{.name = s.name + "_scale",
                     .shape = s.shapes.scale,
                     .dtype = s.shapes.scale_dtype,
                     .role = Role::Output,
                     .exact = true};
    if (!p.bench) {
        std::vector<bool> codes(static_cast<size_t>(data.shape.numel()));
        std::vector<bool> scales(static_cast<size_t>(scale.shape.numel()));
        for (const ExpertPart& part : p.parts()) {
            const OperandPart places = s.places(part);
            const Extent written = codes_written(s, part), scaled = scales_written(s, part);
            for (int64_t i = 0; i < written.rows; ++i)
                for (int64_t j = 0; j < written.columns; ++j)
                    codes[static_cast<size_t>(places.data(i, j))] = true;
            for (int64_t i = 0; i < scaled.rows; ++i)
                for (int64_t j = 0; j < scaled.columns; ++j)
                    scales[static_cast<size_t>(places.scale(i, j))] = true;
            if (p.scale == ScaleKind::Tensor) scales[static_cast<size_t>(part.expert)] = true;
        }
        data.written = [=](int64_t i) { return codes[static_cast<size_t>(i)]; };
        scale.written = [=](int64_t i) { return scales[static_cast<size_t>(i)]; };
    } else if (s.shapes.transposed && !s.matrix.weight) {
        // Whole blocks of rows, side by side; behind them nothing.
        int64_t blocks = 0;
        for (const ExpertPart& part : p.parts()) blocks += round_up(part.rows, 128) / 128;
        const int64_t pitch = s.shapes.data[1], columns = s.matrix.columns;
        data.written = [=](int64_t i) { return i % pitch < blocks * 128; };
        if (p.scale == ScaleKind::Block128) scale.written = [=](int64_t i) { return i < blocks * columns; };
    }
    c.tensors.push_back(data);
    c.tensors.push_back(scale);
}

inline void swap_bytes(const View& a, const View& b) {
    auto* first = static_cast<uint8_t*>(a.data);
    std::swap_ranges(first, first + a.bytes(), static_cast<uint8_t*>(b.data));
}

inline std::vector<Mutant> mutants_of(const Problem& p, const std::vector<Side>& sides) {
    std::vector<Mutant> mutants;
    for (const Side& side : sides) {
        if (side.shapes.scale.numel() < 2 || p.rows() < 2) continue;
        mutants.push_back(
            {side.name + "-wise scales are one place off", [=](const Views& v, const Exec& exec) {
                 quantize(args_of(p, sides, v), exec);
                 const View scale = side.operand(v).scale;
                 auto* byte = static_cast<uint8_t*>(scale.data);
                 std::rotate(byte, byte + bits(scale.dtype) / 8, byte + scale.bytes());
             }});
    }
    // Of squares the two directions have one shape; so have MX32's codes.
    const bool alike = sides.size() == 2 && sides[0].shapes.data == sides[1].shapes.data;
    if (alike && p.scale == ScaleKind::MX32 && p.rows() > 1) {
        mutants.push_back({"the directions are exchanged", [=](const Views& v, const Exec& exec) {
                               quantize(args_of(p, sides, v), exec);
                               swap_bytes(v["row_data"], v["column_data"]);
                           }});
    }
    if (alike && p.weight && p.scale != ScaleKind::MX32) {
        mutants.push_back({"the transposed copy is not transposed", [=](const Views& v, const Exec& exec) {
                               quantize(args_of(p, sides, v), exec);
                               std::memcpy(v["column_data"].data, v["row_data"].data,
                                           static_cast<size_t>(v["row_data"].bytes()));
                           }});
    }
    if (p.scale != ScaleKind::MX32 && p.from == From::Amax && p.rows() > 1) {
        mutants.push_back({"the other rule of powers of two", [=](const Views& v, const Exec& exec) {
                               QuantizeArgs args = args_of(p, sides, v);
                               for (Operand* o : {&args.row, &args.column})
                                   o->format.power_of_two = !p.power_of_two;
                               quantize(args, exec);
                           }});
    }
    const bool by_expert = p.scale == ScaleKind::Tensor || p.column;
    if (by_expert && !p.weight && !p.no_splits && p.experts() > 1 && p.rows() > p.experts()) {
        mutants.push_back({"a row goes to the next expert", [=](const Views& v, const Exec& exec) {
                               SharedVector<int64_t> sizes(p.splits.sizes.begin(), p.splits.sizes.end());
                               size_t from = 0;
                               while (sizes[from] == 0) ++from;
                               --sizes[from];
                               ++sizes[from + 1];
                               QuantizeArgs args = args_of(p, sides, v);
                               args.source.split_sizes = View(sizes.data(), DType::I64, {p.experts()});
                               quantize(args, exec);
                           }});
    }
    if (p.gather && p.rows() > 1) {
        mutants.push_back({"rows of the copy before", [=](const Views& v, const Exec& exec) {
                               const auto* index = v["row_index"].as<int32_t>();
                               SharedVector<int32_t> rotated(index, index + p.splits.capacity);
                               std::rotate(rotated.begin(), rotated.begin() + 1, rotated.begin() + p.rows());
                               QuantizeArgs args = args_of(p, sides, v);
                               args.source.row_index = View(rotated.data(), DType::I32, {p.splits.capacity});
                               quantize(args, exec);
                           }});
    }
    if (p.norm && p.rows() > 1) {
        mutants.push_back({"the norm's weight one column off", [=](const Views& v, const Exec& exec) {
                               const auto* from = static_cast<const uint8_t*>(v["norm_weight"].data);
                               SharedVector<uint8_t> moved(from, from + v["norm_weight"].bytes());
                               std::rotate(moved.begin(), moved.begin() + bits(v["norm_weight"].dtype) / 8,
                                           moved.end());
                               QuantizeArgs args = args_of(p, sides, v);
                               args.source.norm_weight.data = moved.data();
                               quantize(args, exec);
                           }});
        mutants.push_back({"rstd of the row below", [=](const Views& v, const Exec& exec) {
                               const auto* from = v["rstd"].as<float>();
                               SharedVector<float> moved(from, from + v["rstd"].numel());
                               std::rotate(moved.begin(), moved.begin() + 1, moved.end());
                               QuantizeArgs args = args_of(p, sides, v);
                               args.source.rstd.data = moved.data();
                               quantize(args, exec);
                           }});
    }
    if (p.statistics && p.special && p.rows() > 40) {
        mutants.push_back({"counts the other way round", [=](const Views& v, const Exec& exec) {
                               quantize(args_of(p, sides, v), exec);
                               auto* counts = v["counts"].as<int64_t>();
                               for (int64_t e = 0; e < p.experts(); ++e)
                                   std::swap(counts[2 * e], counts[2 * e + 1]);
                           }});
    }
    return mutants;
}

inline Case quantize_case(const Problem& p) {
    Case c;
    c.op = "quantize";
    c.name = name_of(p);
    c.group = p.bench ? "bench" : p.special ? "special" : p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.element;
    c.bench = p.bench;
    const std::vector<Side> sides = sides_of(p);
    add_source(c, p);
    for (const Side& side : sides) add_side(c, p, side);
    const auto per_expert = [&](const char* name, auto value) {
        c.tensors.push_back({.name = name, .shape = {p.experts()}, .value = value});
    };
    if (p.scale == ScaleKind::Tensor && p.from == From::Scale) {
        per_expert("scale", [every = p.every](int64_t i, const Philox&) {
            if (every) return 1.0;
            return std::ldexp(1.0 + 0.1 * static_cast<double>(i), 3);
        });
    } else if (p.scale == ScaleKind::Tensor) {
        // Also what is no amax of these rows: zero, infinity, NaN, so small that the scale overflows.
        per_expert("amax", [=](int64_t i, const Philox& random) {
            const double unusual[] = {0.0, INFINITY, std::nan(""), 1e-39};
            if (p.special && i % 2 == 1) return unusual[i / 2 % 4];
            return std::ldexp(1.0 + random.uniform(static_cast<uint64_t>(i)),
                              3 + 2 * static_cast<int>(i % 3));
        });
    }
    if (p.statistics) {
        c.tensors.push_back(
            {.name = "observed_amax", .shape = {p.experts()}, .role = Role::Output, .exact = true});
        c.tensors.push_back(
            {.name = "counts", .shape = {p.experts(), 2}, .dtype = DType::I64, .role = Role::Output});
    }
    c.run = [=](const Views& v, const Exec& exec) { quantize(args_of(p, sides, v), exec); };
    set_reference(c, [=](auto& h) { reference(h, p, sides); });
    if (!p.bench) c.mutants = mutants_of(p, sides);
    c.cost = [=](const Views& v) { return cost(args_of(p, sides, v)); };
    return c;
}

inline Case amax_case(const Problem& p) {
    Case c;
    c.op = "tensor_amax";
    c.name = std::string(name(p.source)) + "." + p.splits.name + "." + std::to_string(p.columns) +
             (p.weight ? ".weight" : "") + (p.special ? ".special" : "") + (p.gather ? ".gather" : "") +
             (p.norm ? ".norm" : "");
    c.group = p.bench ? "bench" : p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.source;
    c.bench = p.bench;
    add_source(c, p);
    c.tensors.push_back({.name = "amax", .shape = {p.experts()}, .role = Role::Output, .exact = true});
    c.run = [=](const Views& v, const Exec& exec) {
        tensor_amax({.source = source_from(v), .amax = v["amax"]}, exec);
    };
    set_reference(c, [=](auto& h) {
        for (const ExpertPart& part : p.parts())
            h["amax"][part.expert] =
                Values<std::remove_cvref_t<decltype(h)>>{h, p, part}.amax(0, 0, {part.rows, p.columns});
    });
    c.cost = [=](const Views& v) { return cost(TensorAmaxArgs{source_from(v), v["amax"]}); };
    if (p.special) {
        // Infinities among the first expert's rows alone, and only where there are others: not all may be
        // infinite.
        const int64_t first = p.parts()[0].rows;
        const int64_t allowed = first < p.rows() ? first * p.columns : 0;
        TensorSpec& source = c.tensors[0];
        source.value = [=, before = source.value](int64_t i, const Philox& random) {
            const double value = before(i, random);
            return std::isinf(value) && i >= allowed ? std::nan("") : value;
        };
    }
    if (p.bench || p.special || p.weight) return c;
    // The largest number of every row stands there.
    c.mutants = {{"leaves the last column out", [=](const Views& v, const Exec& exec) {
                      QuantizeSource source = source_from(v);
                      source.values.shape[1] -= 1;
                      if (source.norm_weight) source.norm_weight.shape[0] -= 1;
                      tensor_amax({.source = source, .amax = v["amax"]}, exec);
                  }}};
    for (TensorSpec& spec : c.tensors) {
        if (spec.name != "source") continue;
        spec.value = [p, before = spec.value](int64_t i, const Philox& random) {
            const double value = before(i, random);
            return i % p.columns == p.columns - 1 ? value * 64 + 1000 : value;
        };
    }
    return c;
}

inline Case dequantize_case(const Problem& p, Direction direction, DType out) {
    Case c;
    c.op = "dequantize";
    const Side side = side_of(p, direction);
    c.name = name_of(p) + "." + side.name + "." + std::string(name(out));
    c.group = p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.element;
    c.tensors.push_back({.name = side.name + "_data",
                         .shape = side.shapes.data,
                         .dtype = p.element,
                         .value = [every = p.every](int64_t i, const Philox& random) {
                             if (every) return static_cast<double>(i % 256);
                             return static_cast<double>(random.below(static_cast<uint64_t>(i), 256));
                         }});
    c.tensors.push_back({.name = side.name + "_scale",
                         .shape = side.shapes.scale,
                         .dtype = side.shapes.scale_dtype,
                         .value = [p](int64_t i, const Philox& random) {
                             const auto index = static_cast<uint64_t>(i);
                             if (p.every && p.scale == ScaleKind::MX32) return static_cast<double>(i % 256);
                             // Codes of every kind, the ends more often.
                             const uint64_t kind = random.below(index ^ 0x7000, 8);
                             if (p.scale == ScaleKind::MX32)
                                 return kind == 0   ? 0.0
                                        : kind == 1 ? 255.0
                                        : kind == 2 ? 254.0
                                                    : static_cast<double>(random.below(index, 256));
                             return std::ldexp(1.0 + random.uniform(index),
                                               kind == 0 ? -126 : static_cast<int>(kind));
                         }});
    if (!p.weight) {
        c.tensors.push_back({.name = "split_sizes",
                             .shape = {p.experts()},
                             .dtype = p.index,
                             .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
                                 return static_cast<double>(sizes[static_cast<size_t>(i)]);
                             }});
    }
    TensorSpec result{.name = "out",
                      .shape = p.weight ? Shape{p.experts(), p.splits.sizes[0], p.columns}
                                        : Shape{p.splits.capacity, p.columns},
                      .dtype = out,
                      .role = Role::Output,
                      .exact = true};
    if (!p.weight) result.written = [limit = p.rows() * p.columns](int64_t i) { return i < limit; };
    c.tensors.push_back(result);
    const auto args = [=](const Views& v) {
        return DequantizeArgs{.from = side.operand(v),
                              .direction = direction,
                              .split_sizes = v["split_sizes"],
                              .out = v["out"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { dequantize(args(v), exec); };
    set_reference(c, [=](auto& h) {
        for (const ExpertPart& part : p.parts()) {
            const OperandPart places = side.places(part);
            for (int64_t i = 0; i < part.rows; ++i) {
                for (int64_t j = 0; j < p.columns; ++j) {
                    const double code = h[side.name + "_data"][places.data(i, j)];
                    const double scale = h[side.name + "_scale"][places.scale(i, j)];
                    const double factor = p.scale != ScaleKind::MX32 ? scale
                                          : scale == 255             ? std::nan("")
                                                                     : std::exp2(scale - 127);
                    h["out"][(part.first + i) * p.columns + j] =
                        static_cast<float>(number_of(p.element, static_cast<int>(code)) * factor);
                }
            }
        }
    });
    c.cost = [=](const Views& v) { return cost(args(v)); };
    if (p.rows() > 1 && side.shapes.scale.numel() > 1) {
        c.mutants = {{"scales are one place off", [=](const Views& v, const Exec& exec) {
                          DequantizeArgs wrong = args(v);
                          const auto* byte = static_cast<uint8_t*>(wrong.from.scale.data);
                          const int64_t each = bits(wrong.from.scale.dtype) / 8;
                          alignas(4) SharedVector<uint8_t> rotated(byte, byte + wrong.from.scale.bytes());
                          std::rotate(rotated.begin(), rotated.begin() + each, rotated.end());
                          wrong.from.scale.data = rotated.data();
                          dequantize(wrong, exec);
                      }}};
    }
    return c;
}

}  // namespace moebius::ops::quantize_reference
