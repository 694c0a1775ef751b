// The simplest model of a genome, to compare a trained one with: the share of each base after the last k
// bases.
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/data/windows.h"

namespace moebius::data {

struct CountModelLoss {
    double nats = 0;          // mean of -log p(base | last k bases), in double
    int64_t predictions = 0;  // bases that it is the mean of
};

// Counts p(base | context) = (n(context, base) + 1) / (n(context) + 4) over `training` and asks it about
// `held_out`. A C G T in either case; a base counts if it and its k predecessors are such and lie in the same
// range. 0 <= k <= 12.
CountModelLoss count_model_loss(const Dataset& data, const std::vector<Range>& training,
                                const std::vector<Range>& held_out, int order);

}  // namespace moebius::data
