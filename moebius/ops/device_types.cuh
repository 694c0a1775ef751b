// Views as kernels take them: element types, rows, and whether rows can be read in vectors.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "moebius/tensor/view.h"

namespace moebius {

template <>
struct DTypeOf<__nv_bfloat16> {
    static constexpr DType value = DType::BF16;
};

namespace ops {

// Calls f with the device's element type of `dtype`: as f(float{}) or f(__nv_bfloat16{}).
template <class F>
void with_device_type(DType dtype, F&& f) {
    if (dtype == DType::BF16) return f(__nv_bfloat16{});
    MOEBIUS_CHECK(dtype == DType::F32, "dtype ", name(dtype));
    f(float{});
}

// Elements of T in 16 bytes.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// A matrix by rows; null where the op was not given one. Offsets in 64 bits.
template <class T>
struct DeviceRows {
    T* data = nullptr;
    int64_t stride = 0;

    __device__ T* row(int64_t index) const { return data + index * stride; }
    __device__ explicit operator bool() const { return data != nullptr; }
};

template <class T>
DeviceRows<T> device_rows(const View& view) {
    return view ? DeviceRows<T>{view.as<T>(), view.stride[0]} : DeviceRows<T>{};
}
template <class T>
T* device_data(const View& view) {
    return view ? view.as<T>() : nullptr;
}

inline bool starts_aligned(const View& view, int64_t n) {
    const int64_t bytes = n * (bits(view.dtype) / 8);
    return !view ||
           reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes < 16 ? bytes : 16) == 0;
}
// Whether the rows of `view` can be read `n` elements at a time. An absent one does not mind.
inline bool rows_in_vectors(const View& view, int64_t n) {
    if (!view) return true;
    const int last = view.rank() - 1;
    for (int axis = 0; axis < last; ++axis) {
        if (view.size(axis) > 1 && view.stride[static_cast<size_t>(axis)] % n != 0) return false;
    }
    return view.size(last) % n == 0 && starts_aligned(view, n);
}

// Blocks of 128 threads that go over rows: x along a row of `columns` elements, `n` at a time, y over rows.
inline dim3 row_block(int64_t columns, int64_t n) {
    unsigned along = 1;
    while (along < 128 && along * n < columns) along *= 2;
    return dim3(along, 128 / along);
}

}  // namespace ops
}  // namespace moebius
