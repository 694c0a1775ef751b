// What the Hopper kernels of grouped_gemm can do, and how they cut a product: host arithmetic, no CUDA.
#pragma once

#include <string>

#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops::sm90 {

// The first reason why TMA cannot serve a view of two or three axes, with its values, or "": rows must begin
// at multiples of 16 bytes.
std::string why_no_map(const View& view, const char* name);

// The first reason against the kernels, or "".
std::string why_not(const GroupedGemmArgs& args, const Exec& exec);

// How many blocks of a cluster are above each other (they share the weights' tile) or side by side (they
// share the rows').
struct Cluster {
    int rows = 1, columns = 1;
};
Cluster choose_cluster(const GroupedGemmArgs& args);

// Column units that an expert's rows run through together: as many as keep the band's operand (`depth` deep
// in bf16) in about half of the L2, in bands of equal width. unit_columns: of the output, in a unit.
int choose_band(int64_t columns, int64_t unit_columns, int64_t depth);

}  // namespace moebius::ops::sm90
