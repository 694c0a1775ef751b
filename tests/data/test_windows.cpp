#include "moebius/data/windows.h"

#include <gmock/gmock.h>

#include <cmath>

#include "moebius/data/count_model.h"
#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Windows, TheExampleOfTheRule) {
    EXPECT_EQ(windows_of({random_bases(3000, 1)}, 1000, 800)->size(), 12);
}

// Every base is in a window, the overlaps are as said, all but the last are full, and the text is the
// record's.
TEST(Windows, CoverEveryRecordExactly) {
    for (const int64_t length : {3, 4, 10, 33})
        for (const int64_t stride : {0, 1, 7, 30})
            for (const int64_t n : {1, 2, 8, 9, 31, 62, 100}) {
                const int64_t payload = length - 2;
                if (stride >= payload) continue;
                const std::vector<std::string> texts = {random_bases(n, 3), "AC", random_bases(2 * n, 4)};
                const auto set = windows_of(texts, length, stride);
                int64_t window = 0, tokens = 0, longest = 0, shortest = INT64_MAX;
                for (size_t r = 0; r < texts.size(); ++r) {
                    const auto size = static_cast<int64_t>(texts[r].size());
                    const int64_t count = 1 + static_cast<int64_t>(std::ceil(
                                                  static_cast<double>(std::max<int64_t>(0, size - payload)) /
                                                  static_cast<double>(payload - stride)));
                    int64_t covered = 0;
                    for (int64_t k = 0; k < count; ++k, ++window) {
                        const Window w = set->at(window);
                        EXPECT_EQ(w.record, static_cast<int64_t>(r));
                        EXPECT_EQ(w.begin, k * (payload - stride));
                        EXPECT_EQ(w.overlap, k == 0 ? 0 : stride);
                        EXPECT_EQ(w.begin + w.overlap, covered);
                        EXPECT_GT(w.length, w.overlap);
                        EXPECT_TRUE(w.length == payload || k + 1 == count);
                        covered = w.begin + w.length;
                        std::vector<int32_t> ids(static_cast<size_t>(w.length + 2));
                        set->read(w, 0, ids);
                        EXPECT_EQ(ids, set->data().tokenizer().encode(texts[r].substr(
                                           static_cast<size_t>(w.begin), static_cast<size_t>(w.length))));
                        tokens += w.length + 2;
                        longest = std::max(longest, w.length + 2);
                        shortest = std::min(shortest, w.length + 2);
                    }
                    EXPECT_EQ(covered, size);
                }
                EXPECT_EQ(window, set->size());
                EXPECT_EQ(tokens, set->tokens_with_overlap());
                EXPECT_EQ(longest, set->max_length());
                EXPECT_EQ(shortest, set->min_length());
                EXPECT_EQ(set->tokens(), 3 * n + 2);
            }
}

TEST(Windows, PartsOfAWindow) {
    const auto set = windows_of({"ACGT"}, 10, 0);
    for (int64_t begin = 0; begin <= 6; ++begin)
        for (int64_t end = begin; end <= 6; ++end) {
            const std::vector<int32_t> whole = {2, 'A', 'C', 'G', 'T', 0};
            std::vector<int32_t> ids(static_cast<size_t>(end - begin), -1);
            set->read(set->at(0), begin, ids);
            EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.begin() + begin));
        }
}

TEST(Windows, WithoutStrideNothingIsCut) {
    EXPECT_EQ(windows_of({"ACGTACGT", "AC"}, 10, std::nullopt)->size(), 2);
    EXPECT_THAT(
        error_of([] {
            windows_of({"AC", "ACGTACGTA"}, 10, std::nullopt);
        }),
        AllOf(HasSubstr("record 1 (s1)"), HasSubstr("11 tokens"), HasSubstr("dataset.max_seq_length = 10")));
}

TEST(Windows, Errors) {
    EXPECT_THAT(error_of([] { windows_of({"ACGT"}, 1000, 998); }),
                HasSubstr("dataset.stride = 998 must be smaller than dataset.max_seq_length - 2 = 998"));
    EXPECT_THAT(error_of([] { windows_of({"ACGT"}, 1000, -1); }), HasSubstr("dataset.stride = -1"));
    EXPECT_THAT(error_of([] { windows_of({"ACGT"}, 2, 0); }), HasSubstr("dataset.max_seq_length = 2"));
    const auto data = dataset_of({"ACGT"});
    EXPECT_THAT(error_of([&] { WindowSet(data, {}, {}); }), HasSubstr("no sequence"));
}

TEST(Split, HeldOutIsTheEndAndSharesNothing) {
    const auto data = dataset_of({random_bases(50, 1), "", random_bases(30, 2), random_bases(20, 3)});
    for (const double fraction : {0.001, 0.05, 0.057, 0.2, 0.5, 0.99}) {
        const Split split = split_held_out(*data, fraction);
        EXPECT_EQ(split.held_out_tokens, std::max<int64_t>(1, static_cast<int64_t>(fraction * 100)));
        EXPECT_EQ(split.training_tokens + split.held_out_tokens, 100);
        std::vector<int> owner(100, 0);
        for (const Range& r : split.training)
            for (int64_t i = r.begin; i < r.end; ++i)
                owner[static_cast<size_t>(data->first_token(r.record) + i)] += 1;
        for (const Range& r : split.held_out)
            for (int64_t i = r.begin; i < r.end; ++i)
                owner[static_cast<size_t>(data->first_token(r.record) + i)] += 10;
        for (int64_t i = 0; i < 100; ++i)
            EXPECT_EQ(owner[static_cast<size_t>(i)], i < split.training_tokens ? 1 : 10);
    }
    EXPECT_TRUE(split_held_out(*data, 0).held_out.empty());
    EXPECT_THAT(error_of([&] { split_held_out(*data, 1.0); }), HasSubstr("validation.fraction = 1"));
    EXPECT_THAT(error_of([&] { split_held_out(*data, -0.1); }), HasSubstr("validation.fraction = -0.1"));
    EXPECT_THAT(error_of([&] { split_held_out(*dataset_of({"A"}), 0.5); }),
                HasSubstr("none of the 1 tokens"));
}

TEST(Split, NoWindowSpansTheCut) {
    const auto data = dataset_of({random_bases(1000, 1)});
    const Split split = split_held_out(*data, 0.05);
    const WindowOptions options{.max_seq_length = 102, .stride = 20};
    const WindowSet training(data, split.training, options), held_out(data, split.held_out, options);
    for (int64_t i = 0; i < training.size(); ++i)
        EXPECT_LE(training.at(i).begin + training.at(i).length, 950);
    for (int64_t i = 0; i < held_out.size(); ++i) EXPECT_GE(held_out.at(i).begin, 950);
    EXPECT_THAT(describe_ranges(*data, split.held_out), HasSubstr("bases 951 to 1000 of"));
    EXPECT_THAT(describe_ranges(*data, split.training), HasSubstr("bases 1 to 950 of"));
}

// ---- count models

TEST(CountModel, ByHand) {
    const auto data = dataset_of({"AACC", "ac"});
    const std::vector<Range> training = {{0, 0, 4}}, held_out = {{1, 0, 2}};
    // A→A, A→C, C→C: p(c|a) = (1 + 1)/(2 + 4)
    const auto order1 = count_model_loss(*data, training, held_out, 1);
    EXPECT_EQ(order1.predictions, 1);
    EXPECT_DOUBLE_EQ(order1.nats, -std::log(2.0 / 6.0));
    // p(a) = p(c) = 3/8
    const auto order0 = count_model_loss(*data, training, held_out, 0);
    EXPECT_EQ(order0.predictions, 2);
    EXPECT_DOUBLE_EQ(order0.nats, -std::log(3.0 / 8.0));
}

TEST(CountModel, BreaksAtUnknownBasesAndBorders) {
    const auto data = dataset_of({"ACGTNACGT", "AC"});
    EXPECT_EQ(count_model_loss(*data, {{0, 0, 9}}, {{0, 0, 9}}, 3).predictions, 2);
    EXPECT_EQ(count_model_loss(*data, {{0, 0, 9}}, {{0, 0, 9}}, 1).predictions, 6);
    EXPECT_EQ(count_model_loss(*data, {{0, 0, 9}}, {{0, 0, 2}, {0, 2, 4}, {1, 0, 2}}, 1).predictions, 3);
    EXPECT_EQ(count_model_loss(*data, {{0, 0, 9}}, {{1, 0, 2}}, 3).predictions, 0);
}

TEST(CountModel, LongRangesAcrossChunks) {
    const std::string text = random_bases(200000, 7, "ACGTN");
    const auto data = dataset_of({text});
    std::array<std::array<double, 4>, 4> counts{};
    int64_t pairs = 0;
    const auto code = [](char c) { return std::string_view("ACGT").find(c); };
    for (size_t i = 1; i < text.size(); ++i)
        if (text[i] != 'N' && text[i - 1] != 'N') counts[code(text[i - 1])][code(text[i])] += 1, ++pairs;
    double nats = 0;
    for (const auto& row : counts)
        for (const double n : row) nats -= n * std::log((n + 1) / (row[0] + row[1] + row[2] + row[3] + 4));
    const auto loss = count_model_loss(*data, {{0, 0, 200000}}, {{0, 0, 200000}}, 1);
    EXPECT_EQ(loss.predictions, pairs);
    EXPECT_NEAR(loss.nats, nats / static_cast<double>(pairs), 1e-12);
}

// Escherichia coli 536, where MOEBIUS_GENOME names NC_008253.fna.gz.
TEST(CountModel, OnTheGenome) {
    const char* path = std::getenv("MOEBIUS_GENOME");
    if (path == nullptr) GTEST_SKIP() << "MOEBIUS_GENOME is not set";
    const auto data = Dataset::open({.paths = {path}, .tokenizer = make_tokenizer("nucleotide")});
    EXPECT_EQ(data->tokens(), 4938920);
    const Split split = split_held_out(*data, 0.05);
    EXPECT_NEAR(count_model_loss(*data, split.training, split.held_out, 1).nats, 1.3775, 1e-4);
    EXPECT_NEAR(count_model_loss(*data, split.training, split.held_out, 3).nats, 1.357, 5e-4);
}

}  // namespace
}  // namespace moebius::data::testing
