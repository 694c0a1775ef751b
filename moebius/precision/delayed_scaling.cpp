#include "moebius/precision/keywords.h"

namespace moebius::precision {

Recipe delayed_scaling(KeywordReader& reader) {
    Recipe recipe{.source = ScaleSource::Delayed,
                  .scale = ScaleKind::Tensor,
                  .fast_accumulation = {true, false, false}};
    set_elements(recipe, reader.hybrid("HYBRID"));
    DelayedOptions& delayed = recipe.delayed;
    delayed.margin = static_cast<int>(reader.integer("margin", -64, 64).value_or(0));
    delayed.history_length = reader.integer("amax_history_len", 1, int64_t{1} << 20).value_or(1024);
    const std::string algorithm = reader.word("amax_compute_algo", {"max", "most_recent"}).value_or("max");
    delayed.algorithm = algorithm == "max" ? AmaxAlgorithm::Max : AmaxAlgorithm::MostRecent;
    delayed.reduce_amax = reader.flag("reduce_amax").value_or(true);
    refuse_attention(reader);
    return recipe;
}

}  // namespace moebius::precision
