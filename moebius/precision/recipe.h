// A recipe is data: which format each operand of each matrix product has, and where scales come from. It has
// no state and calls nothing; who holds one quantizes by it. Names and keyword arguments are Transformer
// Engine's.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "moebius/tensor/operand.h"

namespace moebius::precision {

enum class Role { Input, Weight, GradOutput };  // of a linear layer's tensors
enum class Use { Forward, Dgrad, Wgrad };       // its three products

enum class ScaleSource {
    Block,    // each block's own amax
    Current,  // the tensor's amax, found first
    Delayed,  // amax of earlier steps (ops/delayed_scaling)
};

// How a tensor is quantized, whatever it is used for.
struct TensorRule {
    DType element = DType::F8E4M3;
    bool power_of_two = false;  // f32 scales are powers of two
    float amax_epsilon = 0;     // a smaller amax counts as this

    bool operator==(const TensorRule&) const = default;
};

// What a product reads of a tensor.
struct OperandRule {
    bool used = false;  // the product has no such operand otherwise
    Format format;
    Direction direction = Direction::Row;
};

enum class AmaxAlgorithm { Max, MostRecent };
struct DelayedOptions {
    int64_t history_length = 1024;
    AmaxAlgorithm algorithm = AmaxAlgorithm::Max;
    int margin = 0;
    bool reduce_amax = true;  // the largest amax of all ranks

    bool operator==(const DelayedOptions&) const = default;
};

struct Recipe {
    std::string name;
    ScaleSource source = ScaleSource::Block;
    ScaleKind scale = ScaleKind::Block128;
    std::array<TensorRule, 3> tensors;  // by Role
    // By Use: partial sums may stay in the tensor core over the whole depth ("use_split_accumulator =
    // false").
    std::array<bool, 3> fast_accumulation{};
    DelayedOptions delayed;

    const TensorRule& tensor(Role role) const { return tensors[static_cast<size_t>(role)]; }
    bool fast(Use use) const { return fast_accumulation[static_cast<size_t>(use)]; }
    // `weight`: the operand is one, so that blocks are 128 × 128 where the recipe has these.
    OperandRule operand(Role role, Use use) const;

    bool operator==(const Recipe&) const = default;
};

using KeywordValue = std::variant<bool, int64_t, double, std::string>;
// Nested ones by their path: "fp8_quant_fwd_inp.amax_epsilon".
using Keywords = std::map<std::string, KeywordValue>;

// By name ("Float8BlockScaling"), fp8_format ("E4M3" or "HYBRID": gradients in E5M2; "": the recipe's
// default) and keyword arguments. Throws Error naming key and value: an unknown name, a keyword that this
// recipe does not have, a value that does not fit, or two that contradict each other; of a keyword in
// `places` where it stands, too.
std::shared_ptr<const Recipe> make_recipe(const std::string& name, const std::string& fp8_format,
                                          const Keywords& keywords,
                                          const std::map<std::string, std::string>& places = {});
std::vector<std::string> recipe_names();

}  // namespace moebius::precision
