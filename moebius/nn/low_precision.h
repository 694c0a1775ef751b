// Tensors of linear layers in low precision, quantized for each use as run.recipe says.
#pragma once

#include <memory>

#include "moebius/nn/run.h"
#include "moebius/precision/recipe.h"
#include "moebius/tensor/parameter.h"
#include "moebius/tensor/quantized.h"

namespace moebius::nn {

// Inside its scope run.recipe is `recipe`, or none; nested as you like. Modules that can follow it:
// GroupedLinear.
class Autocast {
  public:
    Autocast(Run& run, bool enabled, std::shared_ptr<const precision::Recipe> recipe);
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

  private:
    Run& run_;
    std::shared_ptr<const precision::Recipe> before_;
};

// Experts' rows (M, K) as the recipe's products read a tensor of this role: row-wise, column-wise or both.
// Throws Error for DelayedScaling: layers keep no amax history yet.
struct Directions {
    bool row = false, column = false;
};
Quantized quantize_rows(const View& values, const View& split_sizes, precision::Role role,
                        const precision::Recipe& recipe, Directions directions, const Exec& exec);

// A weight (E, N, K) likewise. Nothing is kept: forward and backward each quantize the direction that they
// read.
Quantized quantize_weight(const Parameter& parameter, const precision::Recipe& recipe, Direction direction,
                          const Exec& exec);

}  // namespace moebius::nn
