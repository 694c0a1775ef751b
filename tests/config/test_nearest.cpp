#include "moebius/config/nearest.h"

#include <gtest/gtest.h>

namespace moebius::config {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
    EXPECT_EQ(edit_distance("", ""), 0);
    EXPECT_EQ(edit_distance("", "abc"), 3);
    EXPECT_EQ(edit_distance("abc", ""), 3);
    EXPECT_EQ(edit_distance("stride", "stride"), 0);
    EXPECT_EQ(edit_distance("strid", "stride"), 1);
    EXPECT_EQ(edit_distance("stridde", "stride"), 1);
    EXPECT_EQ(edit_distance("strade", "stride"), 1);
    EXPECT_EQ(edit_distance("strdie", "stride"), 1);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
    EXPECT_EQ(edit_distance("FASTA", "fasta"), 0);
}

TEST(Nearest, TakesTheClosestAndTheFirstOfEquals) {
    EXPECT_EQ(nearest("strid", {"path", "stride", "strides"}), "stride");
    EXPECT_EQ(nearest("ab", {"ax", "ay"}), "ax");
}

TEST(Nearest, IsNothingWhenAllAreFar) {
    EXPECT_EQ(nearest("zzzzzz", {"path", "stride"}), std::nullopt);
    EXPECT_EQ(nearest("fp16", {"fp32"}), std::nullopt);  // two letters of four
    EXPECT_EQ(nearest("x", {"a"}), std::nullopt);        // no letter in common
    EXPECT_EQ(nearest("path", {}), std::nullopt);
    EXPECT_EQ(nearest(std::string(300, 'a'), {std::string(299, 'a')}), std::nullopt);  // no key is so long
}

TEST(Nearest, KnowsWhatOthersCallIt) {
    EXPECT_EQ(nearest("gpu", {"auto", "cpu", "cuda"}), "cuda");  // cpu has the smaller distance
    EXPECT_EQ(nearest("GPU", {"auto", "cpu", "cuda"}), "cuda");
    EXPECT_EQ(nearest("bfloat16", {"fp32", "bf16"}), "bf16");
    EXPECT_EQ(nearest("float32", {"fp32", "bf16"}), "fp32");
    EXPECT_EQ(nearest("gpu", {"fp32", "bf16"}), std::nullopt);
}

TEST(Suggestion, AsksOrLists) {
    EXPECT_EQ(suggestion("fsata", {"fasta", "fastq"}), "; did you mean fasta?");
    EXPECT_EQ(suggestion("zzzzzz", {"fasta", "fastq"}), "; known: fasta, fastq");
    EXPECT_EQ(suggestion("zzzzzz", {}), "");
    EXPECT_EQ(suggestion("zzzzzz", std::vector<std::string>(13, "fasta")), "");
}

}  // namespace
}  // namespace moebius::config
