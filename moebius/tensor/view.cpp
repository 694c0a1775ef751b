#include "moebius/tensor/view.h"

namespace moebius {
namespace {

char* offset(const View& view, int64_t elements) {
    MOEBIUS_CHECK(bits(view.dtype) % 8 == 0, "views into packed elements are not addressable by element");
    return static_cast<char*>(view.data) + elements * (bits(view.dtype) / 8);
}

}  // namespace

View::View(void* data_, DType dtype_, Shape shape_) : data(data_), dtype(dtype_), shape(shape_) {
    int64_t step = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        stride[axis] = step;
        step = checked_mul(step, shape[axis]);
    }
}

bool View::contiguous() const {
    int64_t step = 1;
    for (int axis = rank() - 1; axis >= 0; --axis) {
        if (shape[axis] != 1 && stride[axis] != step) return false;
        step *= shape[axis];
    }
    return true;
}

View View::rows(int64_t begin, int64_t count) const {
    MOEBIUS_CHECK(rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= shape[0], "rows ", begin, " + ",
                  count, " of ", shape.str());
    View part = *this;
    part.data = offset(*this, begin * stride[0]);
    part.shape[0] = count;
    return part;
}

View View::at(int64_t index) const {
    const View row = rows(index, 1);
    View part;
    part.data = row.data;
    part.dtype = dtype;
    for (int axis = 1; axis < rank(); ++axis) {
        part.shape.push_back(shape[axis]);
        part.stride[axis - 1] = stride[axis];
    }
    return part;
}

View View::reshaped(Shape target) const {
    MOEBIUS_CHECK(contiguous() && target.numel() == numel(), shape.str(), " to ", target.str());
    return View(data, dtype, target);
}

View View::columns(int64_t begin, int64_t count) const {
    const int last = rank() - 1;
    MOEBIUS_CHECK(last >= 0 && begin >= 0 && count >= 0 && begin + count <= shape[last], "columns ", begin,
                  " + ", count, " of ", shape.str());
    View part = *this;
    part.data = offset(*this, begin * stride[last]);
    part.shape[last] = count;
    return part;
}

View View::split_last(int64_t inner) const {
    const int last = rank() - 1;
    MOEBIUS_CHECK(last >= 0 && inner > 0 && shape[last] % inner == 0 && stride[last] == 1, shape.str(),
                  " by ", inner);
    View split = *this;
    split.shape[last] = shape[last] / inner;
    split.shape.push_back(inner);
    split.stride[last] = inner;
    split.stride[last + 1] = 1;
    return split;
}

}  // namespace moebius
