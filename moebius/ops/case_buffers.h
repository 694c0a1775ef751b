// Memory of a case's tensors, between guards: on the host, and on a GPU where the case runs there. Part of
// case.cpp and case_timing.cpp, not of the library.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moebius/ops/case.h"

namespace moebius::ops {

inline constexpr uint64_t kCaseSeed = 20260917;
inline constexpr int64_t kGuardBytes = 256;
inline constexpr uint8_t kGuard = 0xA5, kPoison = 0xFF;

// An element as a double, and a value rounded to the dtype as it is written. Eight-bit floats are taken as
// their codes, 0 … 255, not as the numbers that these stand for.
double read(const void* data, DType dtype, int64_t index);
void write(void* data, DType dtype, int64_t index, double value);
double rounded(double value, DType dtype);

// One tensor's memory between guards.
class Buffer {
  public:
    explicit Buffer(const TensorSpec& spec) : spec_(spec) {
        view_ = View(nullptr, spec.dtype, spec.shape);
        if (spec.row_padding > 0) view_.stride[0] += spec.row_padding;
        const int64_t rows = spec.shape.rank() > 0 ? spec.shape[0] : 1;
        inner_ = rows > 0 ? spec.shape.numel() / rows : 0;
        row_stride_ = inner_ + spec.row_padding;
        bytes_ = bytes_of(spec.dtype, rows * row_stride_);
        memory_.assign(static_cast<size_t>(bytes_ + 2 * kGuardBytes + 64), kGuard);
        const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuardBytes;
        view_.data = reinterpret_cast<void*>((address + 63) / 64 * 64);
        const uint8_t start = spec.role == Role::Output ? kPoison : kGuard;
        for (int64_t row = 0; row < rows; ++row) {
            std::memset(element(row * inner_), start, static_cast<size_t>(bytes_of(spec.dtype, inner_)));
        }
    }
    const View& view() const { return view_; }
    int64_t numel() const { return spec_.shape.numel(); }
    double get(int64_t index) const { return read(view_.data, spec_.dtype, offset(index)); }
    void set(int64_t index, double value) { write(view_.data, spec_.dtype, offset(index), value); }
    bool poisoned(int64_t index) const {
        const auto* byte = static_cast<const uint8_t*>(element(index));
        const int64_t size = bits(spec_.dtype) / 8;
        return std::all_of(byte, byte + size, [](uint8_t b) { return b == kPoison; });
    }
    // Bytes before, after and between rows that no longer hold the guard pattern.
    int64_t damaged() const {
        const auto* begin = memory_.data();
        const auto* end = begin + memory_.size();
        const auto* data = static_cast<const uint8_t*>(view_.data);
        const auto wrong = [](const uint8_t* from, const uint8_t* to) {
            return (to - from) - std::count(from, to, kGuard);
        };
        int64_t count = wrong(begin, data) + wrong(data + bytes_, end);
        if (spec_.row_padding == 0 || inner_ == 0) return count;
        const int64_t stride = bytes_of(spec_.dtype, row_stride_), inner = bytes_of(spec_.dtype, inner_);
        for (const uint8_t* row = data; row < data + bytes_; row += stride) {
            count += wrong(row + inner, row + stride);
        }
        return count;
    }
    bool whole_output() const {
        return spec_.role == Role::Output && !spec_.written && spec_.row_padding == 0;
    }
    // The tensor with its guards.
    uint8_t* region() { return static_cast<uint8_t*>(view_.data) - kGuardBytes; }
    const uint8_t* region() const { return static_cast<const uint8_t*>(view_.data) - kGuardBytes; }
    size_t region_bytes() const { return static_cast<size_t>(bytes_ + 2 * kGuardBytes); }
    // Everything as it was when the region held `bytes`.
    void restore(const std::vector<uint8_t>& bytes) {
        std::fill(memory_.begin(), memory_.end(), kGuard);
        std::copy(bytes.begin(), bytes.end(), region());
    }

  private:
    int64_t offset(int64_t index) const {
        return row_stride_ == inner_ ? index : index / inner_ * row_stride_ + index % inner_;
    }
    void* element(int64_t index) const {
        return static_cast<char*>(view_.data) + (inner_ ? offset(index) : 0) * (bits(spec_.dtype) / 8);
    }

    TensorSpec spec_;
    View view_;
    int64_t inner_ = 0, row_stride_ = 0, bytes_ = 0;
    std::vector<uint8_t> memory_;
};

struct Buffers {
    std::map<std::string, Buffer> all;
    Views views;
};

// Inputs filled, outputs poisoned. `threads` may be null.
Buffers make_buffers(const Case& c, ThreadPool* threads = nullptr);

// The case's tensors where the op gets them: the host's own on the CPU, copies with their guards on a GPU.
class Placed {
  public:
    Placed(Buffers& host, const Exec& exec, const CheckOptions& options);
    const Views& views() const { return views_; }

    void to_device();
    void to_host();

  private:
    struct Place {
        std::shared_ptr<void> memory;
        uint8_t *region, *host;
        size_t bytes;
        bool raw;
    };
    const Exec& exec_;
    bool on_gpu_;
    Views views_;
    std::map<std::string, Place> regions_;
};

}  // namespace moebius::ops
