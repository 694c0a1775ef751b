#include "moebius/base/shape.h"

#include "moebius/base/checked.h"

namespace moebius {

Shape::Shape(std::initializer_list<int64_t> extents) {
    for (const int64_t extent : extents) push_back(extent);
}

void Shape::push_back(int64_t extent) {
    MOEBIUS_CHECK(rank_ < kMaxRank && extent >= 0, "extent ", extent, " at axis ", rank_);
    extents_[rank_++] = extent;
}

int64_t Shape::numel() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank_; ++axis) count = checked_mul(count, extents_[axis]);
    return count;
}

bool Shape::operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int axis = 0; axis < rank_; ++axis) {
        if (extents_[axis] != other.extents_[axis]) return false;
    }
    return true;
}

std::string Shape::str() const {
    std::string text = "(";
    for (int axis = 0; axis < rank_; ++axis) {
        if (axis > 0) text += ", ";
        text += std::to_string(extents_[axis]);
    }
    return text + ")";
}

}  // namespace moebius
