#include "moebius/nn/low_precision.h"

#include "moebius/base/error.h"
#include "moebius/ops/quantize/quantize.h"

namespace moebius::nn {
namespace {

Quantized quantized(const char* name, const ops::QuantizeSource& source, precision::Role role,
                    const precision::Recipe& recipe, Directions directions, const Exec& exec) {
    if (recipe.source == precision::ScaleSource::Delayed)
        throw Error("fp8_config.fp8_recipe = " + recipe.name + ": layers keep no amax history yet");
    const precision::TensorRule& rule = recipe.tensor(role);
    Quantized made = Quantized::empty(name,
                                      {.element = rule.element,
                                       .scale = recipe.scale,
                                       .power_of_two = rule.power_of_two,
                                       .row = directions.row,
                                       .column = directions.column,
                                       .matrix = matrix_of(source)},
                                      exec);
    Tensor amax;
    if (recipe.source == precision::ScaleSource::Current) {
        amax = Tensor::empty("quantize.amax", {made.spec().matrix.experts}, DType::F32, exec);
        ops::tensor_amax({.source = source, .amax = amax}, exec);
    }
    ops::quantize({.source = source,
                   .row = made.row(),
                   .column = made.column(),
                   .amax_epsilon = rule.amax_epsilon,
                   .amax = amax},
                  exec);
    return made;
}

}  // namespace

Autocast::Autocast(Run& run, bool enabled, std::shared_ptr<const precision::Recipe> recipe)
    : run_(run), before_(std::move(run.recipe)) {
    run_.recipe = enabled ? std::move(recipe) : nullptr;
}
Autocast::~Autocast() {
    run_.recipe = std::move(before_);
}

Quantized quantize_rows(const View& values, const View& split_sizes, precision::Role role,
                        const precision::Recipe& recipe, Directions directions, const Exec& exec) {
    return quantized("activation", {.values = values, .split_sizes = split_sizes, .row_index = {}}, role,
                     recipe, directions, exec);
}

Quantized quantize_weight(const Parameter& parameter, const precision::Recipe& recipe, Direction direction,
                          const Exec& exec) {
    const bool row = direction == Direction::Row;
    return quantized("weight", {.values = parameter.value, .split_sizes = {}, .row_index = {}},
                     precision::Role::Weight, recipe, {row, !row}, exec);
}

}  // namespace moebius::nn
