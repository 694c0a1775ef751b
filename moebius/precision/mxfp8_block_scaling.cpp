#include "moebius/precision/keywords.h"

namespace moebius::precision {

Recipe mxfp8_block_scaling(KeywordReader& reader) {
    Recipe recipe{.source = ScaleSource::Block, .scale = ScaleKind::MX32};
    set_elements(recipe, reader.hybrid("E4M3"));
    for (TensorRule& rule : recipe.tensors) rule.power_of_two = true;
    reader.only("margin", int64_t{0}, "scales are the blocks' own, there is no margin to them");
    refuse_attention(reader);
    return recipe;
}

}  // namespace moebius::precision
