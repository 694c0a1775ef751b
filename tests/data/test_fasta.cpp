#include "moebius/data/fasta.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<ReadRecord> read_text(std::string_view text) {
    const TempDir dir;
    return read_all(dir.write("in.fa", text));
}

std::string error_text(std::string_view content, std::string_view format = "auto") {
    const TempDir dir;
    const std::string path = dir.write("in.fa", content);
    const std::string error = error_of([&] { read_all(path, format); });
    EXPECT_THAT(error, StartsWith(path + ":"));  // every complaint names the file
    return error;
}

TEST(Fasta, NamesAndJoinedLines) {
    EXPECT_THAT(read_text(">chr1 the first one\nACGT\nACG\n>chr2\nTTT\n"),
                ElementsAre(ReadRecord{"chr1", "ACGTACG", 1}, ReadRecord{"chr2", "TTT", 4}));
}

TEST(Fasta, SoftMaskingAndIupacStayAsTheyAre) {
    const std::string all = "ACGTacgtNnRYSWKMBDHVryswkmbdhvUu-.*XxEFILPQZJO";
    EXPECT_EQ(read_text(">s\n" + all + "\n")[0].text, all);
}

TEST(Fasta, CrLf) {
    EXPECT_THAT(read_text(">a b\r\nACGT\r\n\r\nAC\r\n>c\r\nGG"),
                ElementsAre(ReadRecord{"a", "ACGTAC", 1}, ReadRecord{"c", "GG", 5}));
}

TEST(Fasta, BlankLinesAnywhere) {
    EXPECT_THAT(read_text("\n  \n>a\n\nAC\n\n\t\nGT\n\n>b\nT\n\n\n"),
                ElementsAre(ReadRecord{"a", "ACGT", 3}, ReadRecord{"b", "T", 10}));
}

TEST(Fasta, WhiteSpaceAtLineEndsIsDropped) {
    EXPECT_EQ(read_text(">a\nACGT  \nAC\t\n")[0].text, "ACGTAC");
}

TEST(Fasta, RecordsWithoutSequenceAndHeadersWithoutName) {
    EXPECT_THAT(read_text(">a\n>\nAC\n> b c\nG\n>d"),
                ElementsAre(ReadRecord{"a", "", 1}, ReadRecord{"", "AC", 2}, ReadRecord{"b", "G", 4},
                            ReadRecord{"d", "", 6}));
}

TEST(Fasta, NoNewlineAtTheEnd) {
    EXPECT_EQ(read_text(">a\nAC\nGT")[0].text, "ACGT");
}

// Lines, headers and blanks that straddle the reader's buffers, of 256 and 64 KiB.
TEST(Fasta, LongLinesAcrossBuffers) {
    for (const int64_t length : {65535, 65536, 65537, 262143, 262144, 262145, 700001}) {
        const std::string bases = random_bases(length, 1), more = random_bases(length - 3, 2);
        const std::string header(static_cast<size_t>(length), 'h');
        const auto records = read_text(">" + header + " d\r\n" + bases + std::string(70000, ' ') + "\r\n" +
                                       more + "\r\n>x\r\nA\r");
        ASSERT_EQ(records.size(), 2u);
        EXPECT_EQ(records[0].name, header);
        EXPECT_EQ(records[0].text, bases + more) << length;
        EXPECT_EQ(records[1], (ReadRecord{"x", "A", 4}));
    }
}

TEST(Fasta, Seek) {
    const TempDir dir;
    const auto source = open_source(dir.write("in.fa", ">a\nAC\n>b\nGG\nT\n>c\nT\n"));
    RecordHead head;
    while (source->next(head)) {
    }
    source->seek(1);
    ASSERT_TRUE(source->next(head));
    EXPECT_EQ(head.name, "b");
    EXPECT_EQ(head.index, 1);
    EXPECT_EQ(source->piece(), "GGT");
    source->seek(0);
    ASSERT_TRUE(source->next(head));
    EXPECT_EQ(head.name, "a");
    EXPECT_THAT(error_of([&] { source->seek(4); }), HasSubstr("has 3 records, record 4 was asked for"));
}

// ---- compressed files

const std::string& sample() {
    static const std::string text = ">one\n" + random_bases(5000, 3) + "\n>two\nACGTN\n";
    return text;
}

TEST(FastaCompressed, GzipAndBgzipOfSeveralMembers) {
    const TempDir dir;
    const auto expected = read_all(dir.write("plain.fa", sample()));
    ASSERT_EQ(expected.size(), 2u);
    const std::string_view text = sample();
    for (const size_t cut : {size_t{1}, size_t{7}, size_t{2500}, text.size() - 1}) {
        const auto a = text.substr(0, cut), b = text.substr(cut);
        const std::string files[] = {
            gzip_member(a) + gzip_member(b),
            gzip_member(a) + gzip_member("") + gzip_member(b),
            bgzip_blocks(a) + bgzip_blocks(b) + bgzip_end(),
            bgzip_blocks(a) + bgzip_end() + bgzip_blocks(b, 333) +
                bgzip_end(),  // two files, put together by cat
            gzip_member(a) + bgzip_blocks(b) + bgzip_end(),
        };
        for (size_t i = 0; i < std::size(files); ++i)
            EXPECT_EQ(read_all(dir.write("x.fa.gz", files[i])), expected) << "kind " << i << ", cut " << cut;
    }
}

// Whatever is cut off, at every byte: an error, never a shorter genome.
TEST(FastaCompressed, TruncationAtEveryByte) {
    const TempDir dir;
    const std::string text = ">one\nACGTACGTAC\nGT\n>two\nACGTN\n";
    const std::string files[] = {gzip_member(text), gzip_member(text) + gzip_member(">three\nAC\n"),
                                 bgzip_blocks(text, 10) + bgzip_end()};
    for (size_t kind = 0; kind < std::size(files); ++kind) {
        ASSERT_FALSE(read_all(dir.write("whole.gz", files[kind])).empty());
        for (size_t bytes = 1; bytes < files[kind].size(); ++bytes) {
            if (kind == 1 && bytes == files[0].size()) continue;  // a whole file of one member
            const std::string path = dir.write("cut.gz", files[kind].substr(0, bytes));
            EXPECT_THAT(error_of([&] { read_all(path); }), StartsWith(path + ":"))
                << kind << ", " << bytes << " bytes";
        }
    }
}

TEST(FastaCompressed, BgzipCutAtABlockBorder) {
    const std::string whole = bgzip_blocks(sample()) + bgzip_end();
    EXPECT_THAT(error_text(whole.substr(0, whole.size() - 28)),
                HasSubstr("end marker is missing: the file is truncated"));
}

TEST(FastaCompressed, EveryDamagedByteOfThePayloadIsSeen) {
    const std::string text = ">one\nACGTACGTAC\n";
    for (const bool bgzip : {false, true}) {
        const std::string whole = bgzip ? bgzip_blocks(text, 5) + bgzip_end() : gzip_member(text);
        const size_t first = bgzip ? 23 : 15;
        for (size_t at = first; at < first + 5; ++at) {
            std::string damaged = whole;
            damaged[at] ^= 2;
            EXPECT_THAT(error_text(damaged, "fasta"), HasSubstr("damaged")) << at;
        }
    }
}

TEST(FastaCompressed, GarbageAfterTheLastMember) {
    EXPECT_THAT(error_text(gzip_member(sample()) + "garbage and more garbage"), HasSubstr("line 1 or later"));
    const std::string genome = ">a\n" + random_bases(1 << 20, 1) + "\n>b\nACGT\n";
    EXPECT_THAT(error_text(gzip_member(genome) + "garbage and more garbage"), HasSubstr("line 2 or later"));
    EXPECT_THAT(error_text(bgzip_blocks(sample()) + bgzip_end() + "garbage and more garbage" + bgzip_end()),
                HasSubstr("damaged"));
    EXPECT_NE(error_text(bgzip_blocks(sample()) + bgzip_end() + "garbage"), "");
}

TEST(FastaCompressed, RealToolsWriteWhatWeRead) {
    const TempDir dir;
    const std::string plain = dir.write("in.fa", ">c\n" + random_bases(300000, 5) + "\n");
    const auto expected = read_all(plain);
    ASSERT_EQ(std::system(("gzip -kc '" + plain + "' > '" + plain + ".gz'").c_str()), 0);
    EXPECT_EQ(read_all(plain + ".gz"), expected);
    if (std::system("command -v bgzip > /dev/null 2>&1") != 0) GTEST_SKIP() << "bgzip is not installed";
    ASSERT_EQ(std::system(("bgzip -c '" + plain + "' > '" + plain + ".bgz'").c_str()), 0);
    EXPECT_EQ(read_all(plain + ".bgz"), expected);
}

// ---- what is refused

TEST(FastaErrors, IllegalCharactersWithLineAndColumn) {
    EXPECT_THAT(error_text(">a\nACGT\nAC7T\n"),
                HasSubstr("line 3, column 3: '7' is not allowed in a sequence"));
    EXPECT_THAT(error_text(std::string(">a\nAC\0GT\n", 9)), HasSubstr("line 2, column 3: byte 0x00"));
    EXPECT_THAT(error_text(">a\nAC\x01\n"), HasSubstr("line 2, column 3: byte 0x01"));
    EXPECT_THAT(error_text(">a\nAC\xc3\xa4\n"), HasSubstr("line 2, column 3: byte 0xC3"));
    EXPECT_THAT(error_text(">a\nAC>b\nGT\n"),
                HasSubstr("line 2, column 3: '>' is not allowed in a sequence: a header"));
    EXPECT_THAT(error_text(">a\nACGT\n;comment\n"), HasSubstr("line 3, column 1: ';'"));
    EXPECT_THAT(error_text(">a\nAC\rGT\n"), HasSubstr("line 2, column 3: carriage return"));
    EXPECT_THAT(error_text(">a\nACG\n+\n!!!\n"), HasSubstr("line 3, column 1: '+'"));
    for (int c = 1; c < 256; ++c) {
        const bool letter = std::isalpha(c) != 0 && c < 128;
        const bool fine = letter || c == '*' || c == '-' || c == '.' || c == '\n';
        if (fine) continue;
        EXPECT_THAT(error_text(">a\nACGT\nA" + std::string(1, static_cast<char>(c)) + "C\n"),
                    HasSubstr("line 3"))
            << c;
    }
}

TEST(FastaErrors, IllegalCharacterDeepInALongLine) {
    std::string bases = random_bases(400000, 1);
    bases[300000] = '!';
    EXPECT_THAT(error_text(">a\n" + bases + "\n"), HasSubstr("line 2, column 300001: '!'"));
}

TEST(FastaErrors, WhiteSpaceWithinALine) {
    EXPECT_THAT(error_text(">a\nAC GT\n"), HasSubstr("line 2, column 3"));
    EXPECT_THAT(error_text(">a\n ACGT\n"), HasSubstr("line 2, column 1"));
    EXPECT_THAT(error_text(">a\nA" + std::string(400000, ' ') + "C\n"),
                HasSubstr("line 2, column 2: white space within a line of sequence"));
}

TEST(FastaErrors, OldMacLineEnds) {
    EXPECT_THAT(error_text(">a\rACGT\rACGT\r"), AllOf(HasSubstr("line 1"), HasSubstr("carriage return")));
}

TEST(FastaErrors, NotFasta) {
    EXPECT_THAT(error_text("ACGT\n>a\nAC\n"), HasSubstr("line 1: not FASTA: it begins with 'A', not '>'"));
    EXPECT_THAT(error_text("\n\nhello\n", "fasta"),
                HasSubstr("line 3, column 1: not FASTA: it begins with 'h'"));
    EXPECT_THAT(error_text("@r\nAC\n+\n!!\n"), HasSubstr("FASTQ"));
    EXPECT_THAT(error_text("{\"text\": 1}"), HasSubstr("JSON"));
    EXPECT_THAT(error_text("\xef\xbb\xbf>a\nAC\n"), HasSubstr("byte order mark"));
    EXPECT_THAT(error_text(gzip_member(gzip_member(sample()))), HasSubstr("compressed twice"));
    EXPECT_THAT(error_text("BZh91AY&SY"), HasSubstr("bzip2"));
    EXPECT_THAT(error_text("\n \n\n"), HasSubstr("without a FASTA record"));
    EXPECT_THAT(error_text(gzip_member("")), HasSubstr("without a FASTA record"));
    EXPECT_THAT(error_text(">" + std::string(2 << 20, 'x')), HasSubstr("a header of more than"));
}

TEST(FastaErrors, UnknownFormat) {
    const TempDir dir;
    const std::string path = dir.write("in.fa", ">a\nAC\n");
    EXPECT_THAT(error_of([&] { open_source(path, "fastq"); }),
                AllOf(HasSubstr("dataset.format = fastq"), HasSubstr("fasta")));
}

TEST(FastaErrors, FilesThatCannotBeRead) {
    const TempDir dir;
    EXPECT_THAT(error_of([&] { open_source(dir / "none.fa"); }),
                AllOf(HasSubstr("none.fa"), HasSubstr("No such file")));
    EXPECT_THAT(error_of([&] { open_source(dir / ""); }), HasSubstr("is a directory"));
    EXPECT_THAT(error_of([&] { open_source(dir.write("empty.fa", "")); }), HasSubstr("empty.fa is empty"));
    EXPECT_THAT(error_of([&] { open_source("/dev/null"); }), HasSubstr("not a regular file"));
    EXPECT_THAT(error_of([&] { open_source("http://example.org/x.fa"); }), HasSubstr("No such file"));
    if (::geteuid() == 0) GTEST_SKIP() << "root may read any file: the unreadable one was not tried";
    const std::string secret = dir.write("secret.fa", ">a\nAC\n");
    std::filesystem::permissions(secret, std::filesystem::perms::none);
    EXPECT_THAT(error_of([&] { open_source(secret); }), HasSubstr("Permission denied"));
}

// ---- samtools, where it is installed: the same names and bases, or it refuses

TEST(FastaSamtools, ReadsTheSame) {
    if (std::system("command -v samtools > /dev/null 2>&1") != 0) GTEST_SKIP() << "samtools is not installed";
    const std::string texts[] = {
        ">a x\nACGT\nACGT\nAC\n>b\nNNNN\n",
        ">a\r\nACgt\r\nRYKM\r\nAC",
        "\n\n>a\nAC\n\n>b\nGT\n\n",
        "> lead\nACGT\n>b\ttab\nA\n",
        ">a\nACGT  \nACGT  \nAC  \n",
        ">long\n" + random_bases(400000, 9) + "\n>b\nacgtnryswkmbdhvACGTNRYSWKMBDHV-*.\n",
    };
    int compared = 0;
    for (const std::string& text : texts) {
        const TempDir dir;
        const std::string path = dir.write("in.fa", text);
        for (const ReadRecord& record : read_all(path)) {
            const std::string command = "samtools faidx -n 0 '" + path + "' '" + record.name +
                                        "' 2>/dev/null | grep -v '>' | tr -d '\\n' > '" + (dir / "out") + "'";
            ASSERT_EQ(std::system(command.c_str()), 0) << text.substr(0, 40);
            std::string theirs;
            std::ifstream(dir / "out") >> theirs;
            EXPECT_EQ(theirs, record.text) << text.substr(0, 40);
            ++compared;
        }
    }
    EXPECT_EQ(compared, 10);
}

}  // namespace
}  // namespace moebius::data::testing
