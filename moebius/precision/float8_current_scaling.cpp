#include "moebius/precision/keywords.h"

namespace moebius::precision {

Recipe float8_current_scaling(KeywordReader& reader) {
    Recipe recipe{.source = ScaleSource::Current,
                  .scale = ScaleKind::Tensor,
                  .fast_accumulation = {true, false, false}};
    set_elements(recipe, reader.hybrid("HYBRID"));
    read_tensor_rules(reader, "use_power_2_scales", reader.flag("use_power_2_scales"), false, recipe);
    read_accumulation(reader, recipe);
    refuse_attention(reader);
    return recipe;
}

}  // namespace moebius::precision
