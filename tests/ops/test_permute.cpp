// What the list of cases cannot say of the permutation: limits, no tokens, broken indices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "moebius/base/error.h"
#include "moebius/ops/permute/permute.h"

namespace moebius::ops {
namespace {

class Permute : public testing::Test {
  protected:
    Exec exec(bool dry = false) {
        return {.device = &device_, .pool = &pool_, .threads = &threads_, .dry = dry};
    }
    static View ints(std::vector<int32_t>& values, Shape shape) {
        return View(values.data(), DType::I32, shape);
    }
    static View floats(std::vector<float>& values, Shape shape) {
        return View(values.data(), DType::F32, shape);
    }

    Device device_ = Device::cpu_from_environment();
    HostArena pool_;
    ThreadPool threads_{2};
};

// A dry run touches nothing, so the memory need not be there.
PermutationArgs described(int64_t tokens, int64_t topk) {
    void* nowhere = reinterpret_cast<void*>(64);
    return {.topk_indices = View(nowhere, DType::I32, {tokens, topk}),
            .row_of = View(nowhere, DType::I32, {tokens, topk}),
            .source = View(nowhere, DType::I32, {tokens * topk}),
            .split_sizes = View(nowhere, DType::I32, {4})};
}

TEST_F(Permute, RowsAreCountedInInt32) {
    permutation(described((int64_t{1} << 31) - 1, 1), exec(true));
    permutation(described((int64_t{1} << 30) - 1, 2), exec(true));
    try {
        permutation(described(int64_t{1} << 30, 2), exec(true));
        FAIL() << "2^31 rows were taken";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("1073741824 tokens × 2"));
        EXPECT_THAT(error.what(), testing::HasSubstr("dataset.micro_batch_size"));
    }
}

TEST_F(Permute, NoTokens) {
    std::vector<int32_t> none(1), splits = {7, 7, 7};
    permutation({.topk_indices = ints(none, {0, 2}),
                 .row_of = ints(none, {0, 2}),
                 .source = ints(none, {0}),
                 .split_sizes = ints(splits, {3})},
                exec());
    EXPECT_THAT(splits, testing::ElementsAre(0, 0, 0));
    std::vector<float> rows(1);
    gather_rows(
        {.x = floats(rows, {0, 8}), .source = ints(none, {0}), .topk = 2, .out = floats(rows, {0, 8})},
        exec());
    combine_rows({.y = floats(rows, {0, 8}), .row_of = ints(none, {0, 2}), .out = floats(rows, {0, 8})},
                 exec());
    permute_scalars({.values = floats(rows, {0, 2}), .source = ints(none, {0}), .out = floats(rows, {0})},
                    exec());
}

TEST_F(Permute, EmptySplitsWriteNothing) {
    std::vector<float> x = {1, 2}, out = {5, 5}, weights = {1}, dots = {9};
    std::vector<int32_t> source = {0}, splits = {0, 0};
    gather_rows({.x = floats(x, {1, 2}),
                 .source = ints(source, {1}),
                 .weights = floats(weights, {1, 1}),
                 .split_sizes = ints(splits, {2}),
                 .out = floats(out, {1, 2}),
                 .dot_with = floats(x, {1, 2}),
                 .dots = floats(dots, {1, 1})},
                exec());
    EXPECT_THAT(out, testing::ElementsAre(5, 5));
    EXPECT_THAT(dots, testing::ElementsAre(9));
}

using PermuteDeathTest = Permute;

TEST_F(PermuteDeathTest, IndicesOutOfRangeAbort) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::vector<int32_t> chosen = {0, 3}, rows(2), source(2), splits(3), outside = {0, 2}, negative = {-1, 0};
    const PermutationArgs args{.topk_indices = ints(chosen, {1, 2}),
                               .row_of = ints(rows, {1, 2}),
                               .source = ints(source, {2}),
                               .split_sizes = ints(splits, {3})};
    EXPECT_DEATH(permutation(args, exec()), "copy 1 goes to expert 3 of 3");
    std::vector<float> x(4), out(4), scalars(2), moved(2);
    EXPECT_DEATH(
        gather_rows({.x = floats(x, {2, 2}), .source = ints(outside, {2}), .out = floats(out, {2, 2})},
                    exec()),
        "row 1 holds copy 2 of 2");
    EXPECT_DEATH(
        combine_rows({.y = floats(x, {2, 2}), .row_of = ints(negative, {2, 1}), .out = floats(out, {2, 2})},
                     exec()),
        "token 0 is in row -1 of 2");
    EXPECT_DEATH(
        permute_scalars(
            {.values = floats(scalars, {2, 1}), .source = ints(outside, {2}), .out = floats(moved, {2})},
            exec()),
        "row 1 holds copy 2 of 2");
    std::vector<int32_t> too_many = {2, 1}, sound = {1, 0};
    EXPECT_DEATH(gather_rows({.x = floats(x, {2, 2}),
                              .source = ints(sound, {2}),
                              .split_sizes = ints(too_many, {2}),
                              .out = floats(out, {2, 2})},
                             exec()),
                 "split_sizes add up to 3, out has 2 rows");
}

}  // namespace
}  // namespace moebius::ops
