#include "moebius/ops/quantize/cases_runs.h"

namespace moebius::ops {
namespace {

using namespace quantize_reference;

void add_grouped(std::vector<Case>& cases, const NamedSplits& splits, ScaleKind scale) {
    Problem p{.scale = scale, .splits = splits, .columns = 272};
    cases.push_back(quantize_case(p));
    p.statistics = true;
    p.element = DType::F8E5M2;
    p.power_of_two = false;
    p.index = DType::I32;
    cases.push_back(quantize_case(p));
    p.source = DType::F32;
    p.element = DType::F8E4M3;
    p.special = true;
    cases.push_back(quantize_case(p));
    p.source = DType::BF16;
    p.power_of_two = true;
    p.columns = 77;  // no vector fits
    cases.push_back(quantize_case(p));
    p.element = DType::F8E5M2;
    p.columns = 136;
    cases.push_back(quantize_case(p));
    p.element = DType::F8E4M3;
    p.epsilon = scale == ScaleKind::MX32 ? 0.0f : 0.125f;
    p.columns = 256;
    cases.push_back(quantize_case(p));
    p.statistics = false;
    p.special = false;
    p.gather = true;
    p.columns = 200;
    cases.push_back(quantize_case(p));
    p.epsilon = 0;
    p.row = false;
    p.from = From::Scale;
    p.statistics = true;
    cases.push_back(quantize_case(p));
    p.row = true;
    p.column = p.gather = false;
    p.statistics = false;
    cases.push_back(quantize_case(p));
    p.column = true;
    p.from = From::Amax;
    p.norm = true;
    cases.push_back(quantize_case(p));
    p.gather = true;
    p.source = DType::F32;
    p.columns = 77;
    cases.push_back(quantize_case(p));
    p.norm = p.gather = false;
    p.source = DType::BF16;
    p.columns = 200;
    for (const ScaleLayout layout : {ScaleLayout::Padded, ScaleLayout::Swizzled}) {
        if (scale != ScaleKind::MX32) break;
        p.layout = layout;
        cases.push_back(quantize_case(p));
        for (const Direction direction : {Direction::Row, Direction::Column})
            cases.push_back(dequantize_case(p, direction, DType::F32));
    }
    p.layout = ScaleLayout::Compact;
    for (const Direction direction : {Direction::Row, Direction::Column}) {
        for (const DType element : {DType::F8E4M3, DType::F8E5M2}) {
            p.element = element;
            cases.push_back(
                dequantize_case(p, direction, element == DType::F8E4M3 ? DType::F32 : DType::BF16));
        }
    }
}

// All 65,536 numbers of bf16 to codes, and all codes, under all scales of 32, to numbers.
void add_every(std::vector<Case>& cases) {
    for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
        for (const DType element : {DType::F8E4M3, DType::F8E5M2}) {
            Problem p{.scale = scale,
                      .element = element,
                      .splits = {"one_expert", {256}, 256},
                      .columns = 256,
                      .every = true,
                      .from = From::Scale};
            cases.push_back(quantize_case(p));
            for (const Direction direction : {Direction::Row, Direction::Column}) {
                cases.push_back(dequantize_case(p, direction, DType::F32));
                cases.push_back(dequantize_case(p, direction, DType::BF16));
            }
        }
    }
}

// Of widths that kernels of wider tiles take.
void add_wide(std::vector<Case>& cases, const NamedSplits& splits, ScaleKind scale) {
    Problem p{.scale = scale, .splits = splits, .columns = 512};
    cases.push_back(quantize_case(p));
    p.special = true;
    p.power_of_two = false;
    cases.push_back(quantize_case(p));
    if (scale == ScaleKind::MX32) {
        for (const ScaleLayout layout : {ScaleLayout::Padded, ScaleLayout::Swizzled}) {
            p.layout = layout;
            cases.push_back(quantize_case(p));
        }
        p.layout = ScaleLayout::Compact;
        p.element = DType::F8E5M2;
        cases.push_back(quantize_case(p));
        p.element = DType::F8E4M3;
    } else {
        p.epsilon = 0.125f;
        cases.push_back(quantize_case(p));
    }
    p.epsilon = 0;
    p.special = false;
    p.power_of_two = true;
    p.gather = p.norm = true;
    cases.push_back(quantize_case(p));
    p.element = DType::F8E5M2;
    p.index = DType::I32;
    p.row = p.norm = false;
    p.columns = 256;
    cases.push_back(quantize_case(p));
    p.row = true;
    p.column = p.gather = false;
    p.norm = true;
    p.from = From::Scale;
    p.columns = 2304;  // several tiles a block, and blocks with fewer
    cases.push_back(quantize_case(p));
}

void add_weights(std::vector<Case>& cases, ScaleKind scale) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{272, 272}, {130, 77}, {1, 160}}) {
        Problem p{.scale = scale,
                  .splits = {"3x" + std::to_string(rows), std::vector<int64_t>(3, rows), 3 * rows},
                  .columns = columns,
                  .weight = true};
        cases.push_back(quantize_case(p));
        p.special = p.statistics = true;
        p.source = DType::F32;
        p.power_of_two = false;
        cases.push_back(quantize_case(p));
        for (const Direction direction : {Direction::Row, Direction::Column})
            cases.push_back(dequantize_case(p, direction, DType::BF16));
        if (scale != ScaleKind::MX32) continue;
        p.layout = ScaleLayout::Swizzled;
        cases.push_back(quantize_case(p));
    }
    if (scale != ScaleKind::MX32) return;
    // Of a width that kernels of wider tiles take.
    for (const int64_t rows : {272, 130, 1}) {
        Problem p{.scale = scale,
                  .splits = {"3x" + std::to_string(rows), std::vector<int64_t>(3, rows), 3 * rows},
                  .columns = 512,
                  .weight = true};
        cases.push_back(quantize_case(p));
        p.special = true;
        p.layout = ScaleLayout::Swizzled;
        cases.push_back(quantize_case(p));
    }
}

// Of a GPU's size: an 8x7B layer's activations and one of its experts' weights.
void add_bench(std::vector<Case>& cases) {
    for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
        for (const bool large : {false, true}) {
            Problem p{
                .scale = scale,
                .splits = {large ? "8_experts" : "4_experts",
                           std::vector<int64_t>(large ? 8 : 4, large ? 4096 : 500), large ? 32768 : 2000},
                .columns = large ? 4096 : 512,
                .bench = true};
            const auto add = [&](Case c) {
                c.large = large;
                cases.push_back(std::move(c));
            };
            add(quantize_case(p));
            p.column = false;
            add(quantize_case(p));
            p.column = p.gather = true;
            add(quantize_case(p));
            p.gather = false;
            if (scale == ScaleKind::Tensor) add(amax_case(p));
            p.splits = {"2_weights", std::vector<int64_t>(2, large ? 14336 : 512), 0};
            p.splits.capacity = p.rows();
            p.weight = true;
            add(quantize_case(p));
        }
    }
}

}  // namespace

void quantize_cases(std::vector<Case>& cases) {
    std::vector<NamedSplits> splits = edge_splits();
    splits.push_back(
        {"blocks", {300, 0, 17, 128, 1}, 450});  // several blocks of 128, whole ones and short ones
    for (const NamedSplits& sizes : splits) {
        for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32})
            add_grouped(cases, sizes, scale);
        for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32})
            add_wide(cases, sizes, scale);
        for (const DType source : {DType::F32, DType::BF16}) {
            Problem p{.source = source, .splits = sizes, .columns = 272};
            cases.push_back(amax_case(p));
            p.special = true;
            p.columns = 77;
            cases.push_back(amax_case(p));
            p.gather = true;
            p.special = false;
            cases.push_back(amax_case(p));
            p.norm = true;
            cases.push_back(amax_case(p));
        }
    }
    for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
        add_weights(cases, scale);
        // A dense product's operand: all rows are one expert's.
        Problem p{.scale = scale, .splits = {"dense", {150}, 150}, .columns = 144, .no_splits = true};
        cases.push_back(quantize_case(p));
    }
    add_every(cases);
    Problem weight{.splits = {"3x130", {130, 130, 130}, 390}, .columns = 77, .weight = true};
    cases.push_back(amax_case(weight));
    add_bench(cases);
}

}  // namespace moebius::ops
