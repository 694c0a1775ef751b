#include "tests/gpu/large_offsets.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"
#include "moebius/ops/permute/permute.h"
#include "moebius/ops/rms_norm/rms_norm.h"
#include "moebius/ops/swiglu/swiglu.h"
#include "moebius/runtime/transfer.h"
#include "moebius/tensor/tensor.h"

namespace moebius::gpu_tests {
namespace {

constexpr int64_t kRows = 300000, kHidden = 7168, kNarrow = 16, kExperts = 2;
static_assert(kRows * kHidden > (int64_t{1} << 31));

// Exact in bf16; sums of a row are large, so that a row of zeros or another row is far away.
float value_of(int64_t row, int64_t column) {
    return static_cast<float>((row * 7 + column) % 127 + 1) / 64;
}

// The first and last rows, and those around the 2^31st element.
std::vector<int64_t> marked_rows() {
    std::vector<int64_t> rows = {0, 1, kRows - 2, kRows - 1};
    for (int64_t d = -2; d <= 2; ++d) rows.push_back((int64_t{1} << 31) / kHidden + d);
    return rows;
}

class LargeOffsets {
  public:
    LargeOffsets(const Exec& exec, const std::function<void(const std::string&, const std::string&)>& report)
        : exec_(exec), report_(report) {
        x_ = Tensor::zeros("large.x", {kRows, kHidden}, DType::BF16, exec_);
        out_ = Tensor::empty("large.out", {kRows, kHidden}, DType::BF16, exec_);
        for (const int64_t row : marked_rows()) put_row(x_, row);
    }

    void run() {
        rows_of_copies();
        norms();
        activations();
        wide_products();
        sums();
    }

  private:
    static void put(std::vector<BF16>& values, int64_t row) {
        for (size_t c = 0; c < values.size(); ++c)
            values[c] = to_bf16(value_of(row, static_cast<int64_t>(c)));
    }
    void put_row(const View& matrix, int64_t row) {
        std::vector<BF16> values(static_cast<size_t>(matrix.size(1)));
        put(values, row);
        copy_to_device(matrix.rows(row, 1).data, values.data(), values.size() * sizeof(BF16), exec_);
        synchronize(exec_);
    }
    template <class T>
    Tensor list(const char* name, const std::vector<T>& values, DType dtype, Shape shape) {
        Tensor tensor = Tensor::empty(name, shape, dtype, exec_);
        copy_to_device(tensor.view().data, values.data(), values.size() * sizeof(T), exec_);
        synchronize(exec_);
        return tensor;
    }

    // Runs `op` on a poisoned `out` and compares its row `at(row)` with want(row, column) for every marked
    // row.
    template <class Op, class At, class Want>
    void check(const std::string& name, const View& out, Op op, At at, Want want) {
        Exec dry = exec_;
        dry.dry = true;
        try {
            op(dry);
        } catch (const Error& error) {
            return report_(name, std::string("skipped: ") + error.what());
        }
        fill_bytes(out.data, 0xFF, static_cast<size_t>(out.bytes()), exec_);
        op(exec_);
        synchronize(exec_);
        std::vector<BF16> row(static_cast<size_t>(out.size(1)));
        for (const int64_t marked : marked_rows()) {
            copy_to_host(row.data(), out.rows(at(marked), 1).data, row.size() * sizeof(BF16), exec_);
            synchronize(exec_);
            for (int64_t c = 0; c < out.size(1); ++c) {
                const double expected = want(marked, c), got = to_float(row[static_cast<size_t>(c)]);
                if (!(std::abs(got - expected) <= 0.01 * std::abs(expected))) {
                    return report_(name, "row " + std::to_string(at(marked)) + ", column " +
                                             std::to_string(c) + ": " + std::to_string(got) + " instead of " +
                                             std::to_string(expected));
                }
            }
        }
        report_(name, "");
    }

    void rows_of_copies() {
        std::vector<int32_t> source(kRows);
        std::iota(source.begin(), source.end(), 0);
        std::reverse(source.begin(), source.end());
        const Tensor sources = list("large.source", source, DType::I32, {kRows});
        const View row_of = sources.view().reshaped({kRows, 1});
        const auto turned = [](int64_t row) { return kRows - 1 - row; };
        const auto same = [](int64_t row, int64_t c) { return static_cast<double>(value_of(row, c)); };
        check(
            "gather_rows", out_,
            [&](const Exec& exec) { ops::gather_rows({.x = x_, .source = sources, .out = out_}, exec); },
            turned, same);
        check(
            "combine_rows", out_,
            [&](const Exec& exec) { ops::combine_rows({.y = x_, .row_of = row_of, .out = out_}, exec); },
            turned, same);
    }

    void norms() {
        const Tensor weight =
            list("large.weight", std::vector<BF16>(kHidden, to_bf16(2.0f)), DType::BF16, {kHidden});
        check(
            "rms_norm", out_,
            [&](const Exec& exec) { ops::rms_norm({.x = x_, .weight = weight, .y = out_}, exec); }, stay,
            [last = int64_t{-1}, squares = 0.0](int64_t row, int64_t c) mutable {
                if (row != std::exchange(last, row)) {
                    squares = 0;
                    for (int64_t i = 0; i < kHidden; ++i) squares += std::pow(value_of(row, i), 2);
                }
                return 2 * value_of(row, c) / std::sqrt(squares / static_cast<double>(kHidden));
            });
    }

    void activations() {
        const View half(out_.view().data, DType::BF16, {kRows, kHidden / 2});
        check(
            "scaled_glu", half, [&](const Exec& exec) { ops::scaled_glu({.x = x_, .y = half}, exec); }, stay,
            [](int64_t row, int64_t c) {
                const double gate = value_of(row, c);
                return gate / (1 + std::exp(-gate)) * value_of(row, c + kHidden / 2);
            });
    }

    // A long row in, and a long row out.
    void wide_products() {
        std::vector<BF16> values(static_cast<size_t>(kExperts * kNarrow * kHidden));
        const auto weight_of = [](int64_t expert, int64_t n) {
            return static_cast<float>(n % 5 + 1 + expert);
        };
        for (int64_t i = 0; i < kExperts * kNarrow * kHidden; ++i) {
            values[static_cast<size_t>(i)] =
                to_bf16(weight_of(i / (kNarrow * kHidden), i / kHidden % kNarrow));
        }
        const Tensor weight = list("large.experts", values, DType::BF16, {kExperts, kNarrow, kHidden});
        const Tensor splits =
            list("large.splits", std::vector<int32_t>{1, kRows - 1}, DType::I32, {kExperts});
        const View narrow(out_.view().data, DType::BF16, {kRows, kNarrow});
        check(
            "grouped_gemm forward", narrow,
            [&](const Exec& exec) {
                ops::grouped_gemm({.a = x_, .b = weight, .out = narrow, .split_sizes = splits}, exec);
            },
            stay,
            [&](int64_t row, int64_t n) {
                double sum = 0;
                for (int64_t c = 0; c < kHidden; ++c) sum += value_of(row, c);
                return sum * weight_of(row > 0, n);
            });
        const Tensor dy = Tensor::zeros("large.dy", {kRows, kNarrow}, DType::BF16, exec_);
        for (const int64_t row : marked_rows()) put_row(dy, row);
        check(
            "grouped_gemm dgrad", out_,
            [&](const Exec& exec) {
                ops::grouped_gemm(
                    {.kind = ops::GemmKind::Dgrad, .a = dy, .b = weight, .out = out_, .split_sizes = splits},
                    exec);
            },
            stay,
            [&](int64_t row, int64_t) {
                double sum = 0;
                for (int64_t n = 0; n < kNarrow; ++n) sum += value_of(row, n) * weight_of(row > 0, n);
                return sum;
            });
    }

    void sums() {
        const View flat = x_.view().reshaped({kRows * kHidden});
        const View out = out_.view().reshaped({kRows * kHidden});
        check(
            "add", out_, [&](const Exec& exec) { ops::add({.x = flat, .y = flat, .out = out}, exec); }, stay,
            [](int64_t row, int64_t c) { return 2.0 * value_of(row, c); });
    }

    static int64_t stay(int64_t row) { return row; }

    const Exec& exec_;
    const std::function<void(const std::string&, const std::string&)>& report_;
    Tensor x_, out_;
};

}  // namespace

void test_large_offsets(const Exec& exec,
                        const std::function<void(const std::string&, const std::string&)>& report) {
    LargeOffsets(exec, report).run();
}

}  // namespace moebius::gpu_tests
