// Views of attention as its kernels on Hopper take them: host code and addresses.
#pragma once

#include <cuda_bf16.h>

#include <utility>

#include "moebius/ops/grouped_gemm/sm90_maps.h"

namespace moebius::ops::sm90 {

inline constexpr float kLog2E = 1.4426950408889634f;

// (T, heads, head_dim) in memory, strides in elements.
template <class T>
struct Rows {
    T* data;
    int64_t token, head;
    __device__ T* at(int64_t t, int64_t h) const { return data + t * token + h * head; }
};
template <class T>
Rows<T> rows_of_view(const View& view) {
    return {static_cast<T*>(view.data), view.stride[0], view.stride[1]};
}

// A view (T, heads, d) as TMA takes it: heads outermost.
inline CUtensorMap heads_map(const View& view, int64_t rows) {
    View turned = view;
    turned.shape = {view.size(1), view.size(0), view.size(2)};
    std::swap(turned.stride[0], turned.stride[1]);
    return tensor_map(turned, rows);
}

}  // namespace moebius::ops::sm90
