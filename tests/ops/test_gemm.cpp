// The matrix kernel's promises: bits that depend on a row and a column alone, pieces of the depth that add up
// to the whole, 64-bit offsets; and the published fault of an empty expert at its size.
#include "moebius/ops/gemm/gemm.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <functional>

#include "moebius/base/error.h"
#include "moebius/ops/gemm/cpu_kernel.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops {
namespace {

// Every level that this CPU has.
std::vector<Isa> levels() {
    std::vector<Isa> all;
    for (const Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512}) {
        if (isa <= detect_isa()) all.push_back(isa);
    }
    return all;
}

// Numbers that a float product of some hundred terms does not hold exactly.
float value_at(int64_t index, uint32_t salt) {
    const uint32_t hash = (static_cast<uint32_t>(index) + salt * 977u) * 2654435761u;
    return static_cast<float>(hash >> 8) * 0x1p-23f - 1.0f;
}
std::vector<float> numbers(int64_t count, uint32_t salt) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_at(i, salt);
    return values;
}
std::vector<BF16> halves(const std::vector<float>& values) {
    std::vector<BF16> out;
    for (const float value : values) out.push_back(to_bf16(value));
    return out;
}

// 64-byte aligned floats.
struct Floats {
    explicit Floats(int64_t count) : memory(static_cast<size_t>(count) + 16, std::nanf("")) {}
    float* data() {
        return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    }
    std::vector<float> memory;
};

struct Product {
    bool transpose_a = false, transpose_b = false;
    int64_t m = 0, n = 0, k = 0;
};

template <class A, class B>
void expect_tile(Isa isa, const Product& p, const std::vector<A>& a, const std::vector<B>& b,
                 bool accumulate) {
    const int64_t a_stride = p.transpose_a ? p.m : p.k, b_stride = p.transpose_b ? p.k : p.n;
    std::vector<float> c = numbers(p.m * p.n, 3);
    const std::vector<float> before = c;
    Floats scratch(cpu::tile_scratch_floats(isa, p.m, p.n, p.k));
    cpu::tile_multiply(isa, p.transpose_a, p.transpose_b, p.m, p.n, p.k, a.data(), a_stride, b.data(),
                       b_stride, c.data(), p.n, accumulate, scratch.data());
    double worst = 0;
    for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
            const auto at = static_cast<size_t>(i * p.n + j);
            double sum = accumulate ? static_cast<double>(before[at]) : 0;
            for (int64_t q = 0; q < p.k; ++q) {
                const auto x = static_cast<size_t>(p.transpose_a ? q * a_stride + i : i * a_stride + q);
                const auto y = static_cast<size_t>(p.transpose_b ? j * b_stride + q : q * b_stride + j);
                sum += static_cast<double>(to_float(a[x])) * static_cast<double>(to_float(b[y]));
            }
            worst = std::max(worst, std::abs(sum - static_cast<double>(c[at])));
        }
    }
    // Terms are at most 1: k roundings of at most half an ulp of k.
    const double k = static_cast<double>(p.k + 1);
    EXPECT_LE(worst, k * k * 0x1p-24) << name(isa) << " " << p.m << "x" << p.n << "x" << p.k;
}

TEST(MatrixKernel, SmallTilesOfEveryShapeAndType) {
    for (const Isa isa : levels()) {
        for (const int64_t m : {1, 5, 14, 15, 64}) {
            for (const int64_t n : {1, 8, 31, 33, 64}) {
                for (const int64_t k : {1, 3, 16, 64, 300}) {
                    const std::vector<float> a = numbers(m * k, 1), b = numbers(k * n, 2);
                    for (const int kind : {0, 1, 2, 3}) {
                        const Product p{(kind & 1) != 0, (kind & 2) != 0, m, n, k};
                        expect_tile(isa, p, a, b, false);
                        expect_tile(isa, p, halves(a), b, true);
                        expect_tile(isa, p, a, halves(b), false);
                        expect_tile(isa, p, halves(a), halves(b), true);
                    }
                }
            }
        }
    }
}

class GemmBits : public testing::Test {
  protected:
    GemmBits() : device_(Device::cpu_from_environment()), threads_(2) {}
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }
    std::vector<float> product(GemmKind kind, View a, View b, Shape out, std::vector<float> start = {}) {
        const float beta = start.empty() ? 0 : 1;
        std::vector<float> c = std::move(start);
        c.resize(static_cast<size_t>(out.numel()), std::nanf(""));
        gemm({.kind = kind, .a = a, .b = b, .out = View(c.data(), DType::F32, out), .beta = beta}, exec());
        return c;
    }

    Device device_;
    HostArena pool_;
    ThreadPool threads_;
};

// A row of the result has the same bits whatever rows and columns stand beside it.
TEST_F(GemmBits, RowsDoNotDependOnTheirNeighbours) {
    constexpr int64_t kM = 133, kN = 75, kK = 600;
    std::vector<float> x = numbers(kM * kK, 1), w = numbers(kN * kK, 2);
    const View a(x.data(), DType::F32, {kM, kK}), b(w.data(), DType::F32, {kN, kK});
    const std::vector<float> all = product(GemmKind::Forward, a, b, {kM, kN});
    for (const int64_t row : {0, 13, 14, 100, 132}) {
        const auto one = product(GemmKind::Forward, a.rows(row, 1), b, {1, kN});
        EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * kN)) << row;
    }
    for (const int64_t column : {0, 31, 32, 74}) {
        const auto one = product(GemmKind::Forward, a, b.rows(column, 1), {kM, 1});
        for (int64_t i = 0; i < kM; ++i)
            ASSERT_EQ(one[static_cast<size_t>(i)], all[static_cast<size_t>(i * kN + column)]);
    }
}

// A weight gradient in two calls, cut at a slice of rows, has the bits of one call.
TEST_F(GemmBits, DepthCutAtASliceAddsUpToTheWhole) {
    constexpr int64_t kM = 2600, kN = 40, kK = 33, kCut = 2048;
    std::vector<float> dy = numbers(kM * kN, 1), x = numbers(kM * kK, 2);
    const View a(dy.data(), DType::F32, {kM, kN}), b(x.data(), DType::F32, {kM, kK});
    const auto whole = product(GemmKind::Wgrad, a, b, {kN, kK});
    const auto first = product(GemmKind::Wgrad, a.rows(0, kCut), b.rows(0, kCut), {kN, kK});
    const auto both =
        product(GemmKind::Wgrad, a.rows(kCut, kM - kCut), b.rows(kCut, kM - kCut), {kN, kK}, first);
    EXPECT_EQ(whole, both);
    EXPECT_NE(whole, first);
}

// Rows further apart than 2^31 elements: memory that is only reserved, of which a few pages are touched.
TEST_F(GemmBits, OffsetsBeyond32Bits) {
    constexpr int64_t kRows = 3, kColumns = 20, kStride = (int64_t{3} << 30) / 2;
    constexpr size_t kBytes = static_cast<size_t>(kRows * kStride) * 2;
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "no " << kBytes << " bytes of address space";
    View far(memory, DType::BF16, {kRows, kColumns});
    far.stride[0] = kStride;
    std::vector<BF16> near = halves(numbers(kRows * kColumns, 1));
    for (int64_t i = 0; i < kRows; ++i) {
        std::copy_n(near.data() + i * kColumns, kColumns, far.as<BF16>() + i * kStride);
    }
    const View close(near.data(), DType::BF16, {kRows, kColumns});
    std::vector<float> w = numbers(7 * kColumns, 2), y = numbers(kRows * 7, 3);
    const View weight(w.data(), DType::F32, {7, kColumns}), dy(y.data(), DType::F32, {kRows, 7});
    EXPECT_EQ(product(GemmKind::Forward, far, weight, {kRows, 7}),
              product(GemmKind::Forward, close, weight, {kRows, 7}));
    EXPECT_EQ(product(GemmKind::Wgrad, dy, far, {7, kColumns}),
              product(GemmKind::Wgrad, dy, close, {7, kColumns}));
    // As the result, too.
    std::vector<BF16> expected(static_cast<size_t>(kRows * kColumns));
    gemm({.kind = GemmKind::Dgrad,
          .a = dy,
          .b = weight,
          .out = View(expected.data(), DType::BF16, {kRows, kColumns})},
         exec());
    gemm({.kind = GemmKind::Dgrad, .a = dy, .b = weight, .out = far}, exec());
    for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
            EXPECT_EQ(far.as<BF16>()[i * kStride + j].bits,
                      expected[static_cast<size_t>(i * kColumns + j)].bits);
        }
    }
    munmap(memory, kBytes);
}

// Splits of a public report, hidden 2048, intermediate 768, after a run in which every expert had rows: both
// weights' gradients of experts 1 and 4 are zero, not those of before.
TEST_F(GemmBits, EmptyExpertsAfterAFullRunAtTheReportedSize) {
    constexpr int64_t kRows = 3268, kHidden = 2048, kIntermediate = 768, kExperts = 6;
    std::vector<BF16> x = halves(numbers(kRows * kHidden, 1)),
                      dc = halves(numbers(kRows * 2 * kIntermediate, 2));
    std::vector<float> gradient(static_cast<size_t>(kExperts * kHidden * 2 * kIntermediate));
    const auto run = [&](std::vector<int64_t> splits, int64_t out, int64_t in) {
        grouped_gemm({.kind = GemmKind::Wgrad,
                      .a = View(out == kHidden ? x.data() : dc.data(), DType::BF16, {kRows, out}),
                      .b = View(in == kHidden ? x.data() : dc.data(), DType::BF16, {kRows, in}),
                      .out = View(gradient.data(), DType::F32, {kExperts, out, in}),
                      .split_sizes = View(splits.data(), DType::I64, {kExperts})},
                     exec());
    };
    for (const auto& [out, in] : {std::pair{2 * kIntermediate, kHidden}, {kHidden, kIntermediate}}) {
        std::fill(gradient.begin(), gradient.end(), 1.0f);  // of the run before
        const auto largest = [&](int64_t e) {
            float most = 0;
            for (int64_t i = e * out * in; i < (e + 1) * out * in; ++i)
                most = std::max(most, std::abs(gradient[static_cast<size_t>(i)]));
            return most;
        };
        run({162, 0, 2577, 446, 0, 83}, out, in);
        for (int64_t e = 0; e < kExperts; ++e) {
            if (e == 1 || e == 4) {
                EXPECT_EQ(largest(e), 0) << e;
            } else {
                EXPECT_GT(largest(e), 2) << e;
            }
        }
    }
}

TEST_F(GemmBits, MisfitsAreErrorsWithTheShapes) {
    std::vector<float> memory(64);
    const View a(memory.data(), DType::F32, {3, 5}), b(memory.data(), DType::F32, {4, 6}),
        out(memory.data(), DType::F32, {3, 4});
    try {
        gemm({.a = a, .b = b, .out = out}, exec());
        FAIL() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "gemm: shapes don't fit: a (3, 5), b (4, 6), out (3, 4)");
    }
    const ForcedVariants forced{{"gemm", "cpu_quick"}};
    Exec with = exec();
    with.forced = &forced;
    EXPECT_THROW(gemm({.a = a, .b = b.columns(0, 5), .out = out}, with), Error);
}

// Sums of nothing are zeros, or what was there.
TEST_F(GemmBits, NoDepthAndNoRows) {
    std::vector<float> none(1), c(6, 5.0f);
    View a(none.data(), DType::F32, {2, 0}), b(none.data(), DType::F32, {3, 0});
    const View out(c.data(), DType::F32, {2, 3});
    gemm({.a = a, .b = b, .out = out, .beta = 1}, exec());
    EXPECT_EQ(c, std::vector<float>(6, 5.0f));
    gemm({.a = a, .b = b, .out = out}, exec());
    EXPECT_EQ(c, std::vector<float>(6, 0.0f));
    c.assign(6, 5.0f);
    gemm({.kind = GemmKind::Wgrad,
          .a = View(none.data(), DType::F32, {0, 2}),
          .b = View(none.data(), DType::F32, {0, 3}),
          .out = out},
         exec());
    EXPECT_EQ(c, std::vector<float>(6, 0.0f));
}

}  // namespace
}  // namespace moebius::ops
