// What the Hopper kernels of grouped_gemm can do, and how they cut a product: host arithmetic, no CUDA.
#pragma once

#include <string>

#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops::sm90 {

inline constexpr int64_t kMostExperts = 512;

// The first reason why TMA cannot serve a view of two or three axes, with its values, or "": rows must begin
// at multiples of 16 bytes.
std::string why_no_map(const View& view, const char* name);

// The first reason against the kernels, or "".
std::string why_not(const GroupedGemmArgs& args, const Exec& exec);

// Column units that an expert's rows run through together: as many as keep the band's operand, `unit_bytes`
// each, in about half of the L2, in bands of equal width.
int choose_band(int64_t units, int64_t unit_bytes);

}  // namespace moebius::ops::sm90
