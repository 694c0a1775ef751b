// Row copies where rows × hidden ≥ 2^31: 300,000 × 7168 in bf16, 4.3 GB a matrix.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "moebius/ops/permute/permute.h"

namespace moebius::ops {
namespace {

constexpr int64_t kRows = 300000, kHidden = 7168;
constexpr int64_t kNeededKb = int64_t{14} << 20;
static_assert(kRows * kHidden > (int64_t{1} << 31));

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int64_t available_kb() {
    std::ifstream file("/proc/meminfo");
    std::string key, unit;
    int64_t value = 0;
    while (file >> key >> value >> unit) {
        if (key == "MemAvailable:") return value;
    }
    return 0;
}

// Zeros that take memory only where they are written.
class Matrix {
  public:
    Matrix() : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        MOEBIUS_CHECK(data_ != MAP_FAILED, "no ", kBytes, " bytes");
    }
    ~Matrix() { munmap(data_, kBytes); }
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;
    View view() const { return View(data_, DType::BF16, {kRows, kHidden}); }
    BF16* row(int64_t index) const { return static_cast<BF16*>(data_) + index * kHidden; }

  private:
    static constexpr size_t kBytes = static_cast<size_t>(kRows * kHidden) * 2;
    void* data_;
};

float value_of(int64_t row, int64_t column) {
    return static_cast<float>((row * 7 + column) % 127 + 1);  // exact in bf16
}

// The first and last rows, and those around the 2^31st element.
std::vector<int64_t> marked_rows() {
    std::vector<int64_t> rows = {0, 1, kRows - 2, kRows - 1};
    for (int64_t d = -2; d <= 2; ++d) rows.push_back((int64_t{1} << 31) / kHidden + d);
    return rows;
}

TEST(PermuteLarge, OffsetsNeedMoreThan31Bits) {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow of 8.6 GB does not fit a small machine";
    if (available_kb() < kNeededKb)
        GTEST_SKIP() << "needs 14 GiB of free memory, there are " << (available_kb() >> 20) << " GiB";
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads(2);
    const Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    const Matrix x, out;
    for (const int64_t row : marked_rows()) {
        for (int64_t c = 0; c < kHidden; ++c) x.row(row)[c] = to_bf16(value_of(row, c));
    }
    // Row m holds copy m of kRows tokens with one expert each.
    std::vector<int32_t> source(kRows);
    std::iota(source.begin(), source.end(), 0);
    std::vector<float> weights(kRows, 2.0f), dots(kRows, -1.0f);
    const View sources(source.data(), DType::I32, {kRows});
    gather_rows({.x = x.view(),
                 .source = sources,
                 .weights = View(weights.data(), DType::F32, {kRows, 1}),
                 .out = out.view(),
                 .dot_with = x.view(),
                 .dots = View(dots.data(), DType::F32, {kRows, 1})},
                exec);
    for (const int64_t row : marked_rows()) {
        double squares = 0;
        for (int64_t c = 0; c < kHidden; ++c) {
            ASSERT_EQ(to_float(out.row(row)[c]), 2 * value_of(row, c)) << row << ", " << c;
            squares += static_cast<double>(value_of(row, c) * value_of(row, c));
        }
        EXPECT_NEAR(dots[static_cast<size_t>(row)] / squares, 1, 1e-5) << row;
    }
    // Back, in reverse order of rows.
    std::reverse(source.begin(), source.end());
    combine_rows({.y = x.view(), .row_of = View(source.data(), DType::I32, {kRows, 1}), .out = out.view()},
                 exec);
    for (const int64_t row : marked_rows()) {
        for (int64_t c = 0; c < kHidden; ++c)
            ASSERT_EQ(to_float(out.row(kRows - 1 - row)[c]), value_of(row, c)) << row << ", " << c;
    }
}

}  // namespace
}  // namespace moebius::ops
