#include "moebius/data/tokenizer.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NucleotideTokenizer, IdsAreBytes) {
    const auto t = make_tokenizer("nucleotide");
    EXPECT_EQ(t->vocab_size(), 256);
    EXPECT_THAT((std::vector{t->eos(), t->pad(), t->bos(), t->unk()}), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(t->encode("ACgtN"), ElementsAre(2, 'A', 'C', 'g', 't', 'N', 0));
    EXPECT_THAT(t->encode(""), ElementsAre(2, 0));
    EXPECT_THAT(t->encode(std::string_view("\0\1\2\3\4", 5)), ElementsAre(2, 3, 3, 3, 3, 4, 0));
    EXPECT_THAT(t->encode("\xc3\xa4"), ElementsAre(2, 0xc3, 0xa4, 0));
}

TEST(NucleotideTokenizer, SpecialTokensWrittenInText) {
    const auto t = make_tokenizer("nucleotide");
    EXPECT_THAT(t->encode("A<PAD>C<UNK><EOS><BOS>"), ElementsAre(2, 'A', 1, 'C', 3, 0, 2, 0));
    EXPECT_THAT(t->encode("<PAD"), ElementsAre(2, '<', 'P', 'A', 'D', 0));
}

TEST(NucleotideTokenizer, ResiduesInPieces) {
    const auto t = make_tokenizer("nucleotide");
    std::vector<int32_t> ids;
    t->encode_residues("AC", ids);
    t->encode_residues("gN-", ids);
    EXPECT_THAT(ids, ElementsAre('A', 'C', 'g', 'N', '-'));
    EXPECT_EQ(t->decode(ids), "ACgN-");
    EXPECT_EQ(t->decode(t->encode("ACGT")), "ACGT");
}

TEST(NucleotideTokenizer, Alphabet) {
    const auto t = make_tokenizer("nucleotide");
    for (int c = 0; c < 256; ++c) {
        const char letter = static_cast<char>(c);
        const bool iupac =
            std::string_view("ACGTUNRYSWKMBDHVacgtunryswkmbdhv-.").find(letter) != std::string_view::npos;
        EXPECT_EQ(t->is_known(letter), iupac) << c;
        const bool certain = std::string_view("ACGTacgt").find(letter) != std::string_view::npos;
        EXPECT_EQ(t->is_certain(c), certain) << c;
        EXPECT_EQ(t->upper(c), c >= 'a' && c <= 'z' ? c - 32 : c) << c;
    }
}

TEST(NucleotideTokenizer, HuggingFaceFiles) {
    const auto t = make_tokenizer("nucleotide");
    const auto files = hf_tokenizer_files(*t, 8192);
    ASSERT_EQ(files.size(), 3u);
    EXPECT_EQ(files[0].first, "tokenizer.json");
    const auto json = nlohmann::json::parse(files[0].second);
    const auto& vocab = json["model"]["vocab"];
    ASSERT_EQ(vocab.size(), 256u);
    std::vector<bool> seen(256);
    for (const auto& [text, id] : vocab.items()) seen.at(id.get<size_t>()) = true;
    EXPECT_THAT(seen, ::testing::Each(true));
    EXPECT_EQ(vocab["A"], 65);
    EXPECT_EQ(vocab["<BOS>"], 2);
    EXPECT_EQ(vocab["\u0120"], 32);  // how ByteLevel writes a space
    EXPECT_EQ(json["added_tokens"].size(), 4u);
    EXPECT_TRUE(json["model"]["merges"].empty());
    const auto config = nlohmann::json::parse(files[1].second);
    EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
    EXPECT_EQ(config["model_max_length"], 8192);
    EXPECT_EQ(nlohmann::json::parse(files[2].second)["pad_token"], "<PAD>");
}

// Against Hugging Face itself, where MOEBIUS_PYTHON names a Python that has tokenizers and transformers.
TEST(NucleotideTokenizer, HuggingFaceEncodesTheSame) {
    const char* python = std::getenv("MOEBIUS_PYTHON");
    if (python == nullptr) GTEST_SKIP() << "MOEBIUS_PYTHON is not set";
    const auto t = make_tokenizer("nucleotide");
    const TempDir dir;
    for (const auto& [name, content] : hf_tokenizer_files(*t, 8192)) dir.write(name, content);
    std::vector<std::string> texts = {"",
                                      "A",
                                      "ACGT acgt\nNN\t",
                                      random_bases(9000, 1, "ACGTacgtN"),
                                      "<BOS>",
                                      "A<PAD>C<UNK>",
                                      "<EOS><EOS>x<",
                                      "\u00e4\u20ac\U0001f9ec caf\u00e9",
                                      " <BOS> ",
                                      "x\r\n  y",
                                      "'s don't 123 ",
                                      std::string("\1\2\3\4 \0 z", 9)};
    std::string all;
    for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
    texts.push_back(all);
    std::string cases;
    for (const std::string& text : texts)
        cases += nlohmann::json{{"text", text}, {"ids", t->encode(text)}}.dump() + "\n";
    const std::string command = std::string(python) + " " MOEBIUS_SOURCE_DIR "/tools/check_tokenizer.py '" +
                                (dir / "") + "' '" + dir.write("cases.jsonl", cases) + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(Tokenizers, UnknownName) {
    EXPECT_THAT(error_of([] { make_tokenizer("esm"); }),
                ::testing::AllOf(HasSubstr("dataset.tokenizer = esm"), HasSubstr("nucleotide")));
    for (const TokenizerRow& row : tokenizers()) EXPECT_EQ(make_tokenizer(row.name)->name(), row.name);
}

}  // namespace
}  // namespace moebius::data::testing
