// Extents of a tensor, outermost first; at most five.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace moebius {

inline constexpr int kMaxRank = 5;

class Shape {
  public:
    Shape() = default;
    Shape(std::initializer_list<int64_t> extents);

    int rank() const { return rank_; }
    int64_t operator[](int axis) const { return extents_[axis]; }
    int64_t& operator[](int axis) { return extents_[axis]; }
    int64_t numel() const;  // 1 for rank 0; aborts on overflow
    bool operator==(const Shape& other) const;
    void push_back(int64_t extent);
    std::string str() const;  // "(8, 1024)"

  private:
    std::array<int64_t, kMaxRank> extents_{};
    int rank_ = 0;
};

}  // namespace moebius
