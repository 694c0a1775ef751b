#include "moebius/nn/fusions/grouped_mlp.h"

namespace moebius::nn {

std::span<const FusionPattern> fusion_patterns() {
    static const FusionPattern patterns[] = {grouped_mlp_fusion()};
    return patterns;
}

}  // namespace moebius::nn
