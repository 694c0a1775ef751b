// A View borrows memory and says how to read it. Trivially copyable; all that ops take. It must not outlive
// the call that got it: who needs the memory for longer keeps a Tensor.
#pragma once

#include <array>

#include "moebius/base/bf16.h"
#include "moebius/base/check.h"
#include "moebius/base/checked.h"
#include "moebius/base/dtype.h"
#include "moebius/base/shape.h"

namespace moebius {

struct View {
    void* data = nullptr;
    DType dtype = DType::F32;
    Shape shape;
    std::array<int64_t, kMaxRank> stride{};  // in elements

    View() = default;
    // Row-major, dense.
    View(void* data, DType dtype, Shape shape);

    explicit operator bool() const { return data != nullptr; }
    int rank() const { return shape.rank(); }
    int64_t size(int axis) const { return shape[axis]; }
    int64_t numel() const { return shape.numel(); }
    int64_t bytes() const { return bytes_of(dtype, numel()); }
    bool contiguous() const;

    // The data as a T; aborts if the dtype is another.
    template <class T>
    T* as() const {
        MOEBIUS_CHECK(dtype == DTypeOf<T>::value, "view of ", name(dtype));
        return static_cast<T*>(data);
    }

    // Rows [begin, begin + count) of the outermost axis.
    View rows(int64_t begin, int64_t count) const;
    // Entry `index` of the outermost axis, that axis dropped.
    View at(int64_t index) const;
    // The same elements under another shape; the view must be contiguous and the counts equal.
    View reshaped(Shape shape) const;
    // Columns [begin, begin + count) of the innermost axis.
    View columns(int64_t begin, int64_t count) const;
    // The last axis split in two: (…, a·b) → (…, a, b).
    View split_last(int64_t inner) const;
};

}  // namespace moebius
