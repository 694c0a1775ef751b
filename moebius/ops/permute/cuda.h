#pragma once

#include "moebius/ops/permute/permute.h"

namespace moebius::ops::cuda {

void permutation(const PermutationArgs& args, const Exec& exec);
void gather_rows(const GatherRowsArgs& args, const Exec& exec);
void combine_rows(const CombineRowsArgs& args, const Exec& exec);
void permute_scalars(const PermuteScalarsArgs& args, const Exec& exec);

// Places sorted by key, stable: row_of[i] is place i's rank, source its inverse, sizes[g] the number of
// places with key g, starts[g] the first of their ranks (starts[groups] = count). A key outside [0, groups)
// counts as 0.
struct KeySort {
    const int32_t* keys;  // (count)
    int64_t count, groups;
    int32_t *row_of, *source;  // (count)
    int32_t* sizes;            // (groups)
    int32_t* starts;           // (groups + 1)
};
void sort_by_key(const KeySort& sort, const Exec& exec);

}  // namespace moebius::ops::cuda
