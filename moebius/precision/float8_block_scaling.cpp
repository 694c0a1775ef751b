#include "moebius/precision/keywords.h"

namespace moebius::precision {

Recipe float8_block_scaling(KeywordReader& reader) {
    Recipe recipe{.source = ScaleSource::Block, .scale = ScaleKind::Block128};
    set_elements(recipe, reader.hybrid("E4M3"));
    const std::optional<bool> any_scales = reader.flag("use_f32_scales");
    std::optional<bool> powers;
    if (any_scales) powers = !*any_scales;
    read_tensor_rules(reader, "use_f32_scales", powers, true, recipe);
    read_accumulation(reader, recipe);
    for (const char* key : {"x_block_scaling_dim", "grad_block_scaling_dim"})
        reader.only(key, int64_t{1}, "activations and gradients have blocks of 1 x 128, dimension 1");
    reader.only("w_block_scaling_dim", int64_t{2}, "weights have blocks of 128 x 128, dimension 2");
    refuse_attention(reader);
    return recipe;
}

}  // namespace moebius::precision
