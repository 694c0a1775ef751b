#include "moebius/data/dataset.h"

#include <gmock/gmock.h>

#include "moebius/data/inputs.h"
#include "moebius/data/token_store.h"
#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<const Dataset> open(const std::vector<std::string>& paths, int64_t memory_limit = 0) {
    return Dataset::open(
        {.paths = paths, .tokenizer = make_tokenizer("nucleotide"), .memory_limit = memory_limit});
}

std::string text_of(const Dataset& data, int64_t record) {
    std::vector<int32_t> ids(static_cast<size_t>(data.length(record)));
    data.read(record, 0, ids);
    return data.tokenizer().decode(ids);
}

TEST(TokenStore, EveryWidthAcrossBlocks) {
    for (const int32_t vocab : {256, 257, 65536, 65537, 1 << 30}) {
        TokenStore store(vocab);
        std::vector<int32_t> all;
        for (int64_t i = 0; i < TokenStore::kBlockTokens + 1000; ++i)
            all.push_back(static_cast<int32_t>((i * 2654435761) % vocab));
        const size_t cut = static_cast<size_t>(TokenStore::kBlockTokens) - 7;
        store.append(std::span(all).first(cut));
        store.append(std::span(all).subspan(cut));
        ASSERT_EQ(store.size(), static_cast<int64_t>(all.size()));
        EXPECT_EQ(store.width(), vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4);
        std::vector<int32_t> got(200, -1);
        store.read(TokenStore::kBlockTokens - 100, got);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + TokenStore::kBlockTokens - 100))
            << vocab;
    }
}

TEST(Dataset, RecordsOfSeveralFiles) {
    const TempDir dir;
    const auto data =
        open({dir.write("b.fa", ">x d\nACGT\n>y\nacNN\nG\n"), dir.write("a.fa.gz", gzip_member(">z\nTT"))});
    ASSERT_EQ(data->records(), 3);
    EXPECT_EQ(text_of(*data, 0), "ACGT");
    EXPECT_EQ(text_of(*data, 1), "acNNG");
    EXPECT_EQ(text_of(*data, 2), "TT");
    EXPECT_EQ(data->name(1), "y");
    EXPECT_EQ(data->file_of(2), 1);
    EXPECT_EQ(data->index_in_file(1), 1);
    EXPECT_EQ(data->index_in_file(2), 0);
    EXPECT_EQ(data->tokens(), 11);
    EXPECT_EQ(data->describe(2, 0, 2), (dir / "a.fa.gz") + ", record 0 (z), bases 1 to 2");
    EXPECT_EQ(data->files()[0].residues, 9);
    EXPECT_EQ(data->files()[0].lower_case, 2);
    EXPECT_EQ(data->lower_case_share(), 2.0 / 11.0);
    EXPECT_EQ(data->uncertain_share(), 2.0 / 11.0);  // two N
}

TEST(Dataset, FingerprintIsOfContent) {
    const TempDir dir;
    const auto a = open({dir.write("a.fa", ">x\nACGTAC\n")});
    EXPECT_EQ(open({dir.write("b.fa.gz", gzip_member(">x\nACG\nTAC"))})->fingerprint(), a->fingerprint());
    EXPECT_NE(open({dir.write("c.fa", ">x\nACGTAG\n")})->fingerprint(), a->fingerprint());
    EXPECT_NE(open({dir.write("d.fa", ">x\nACG\n>y\nTAC\n")})->fingerprint(), a->fingerprint());
}

TEST(Dataset, WarnsOfWhatIsOdd) {
    const TempDir dir;
    const LogLines log;
    const auto data =
        open({dir.write("a.fa", ">x\n>x\nACGTACGTACGTACGTACGTACGTACGTACGTACGTACGTE\n>x\nAC\n")});
    ASSERT_EQ(data->records(), 3);
    EXPECT_THAT(
        log.warnings,
        ElementsAre(AllOf(HasSubstr("1 of 43 residues (2.33 %)"), HasSubstr("'E' in record 1 (x)")),
                    HasSubstr("1 of 3 records have no sequence"), HasSubstr("2 records have a name")));
}

TEST(Dataset, CleanFileWarnsOfNothing) {
    const TempDir dir;
    const LogLines log;
    open({dir.write("a.fa", ">x\nACGTNRYSWKMBDHVacgtnu-.\n>y\nAC\n")});
    EXPECT_THAT(log.warnings, IsEmpty());
}

TEST(Dataset, ProteinsAreRefused) {
    const TempDir dir;
    const std::string path =
        dir.write("p.fa",
                  ">sp|P69905|HBA_"
                  "HUMAN\nMVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSHGSAQVKGHGKKVADALTNAVAHVDD\n");
    EXPECT_THAT(error_of([&] { open({path}); }),
                AllOf(HasSubstr(path), HasSubstr("residues (21.05 %)"), HasSubstr("'L' in record 0"),
                      HasSubstr("proteins"), HasSubstr("dataset.tokenizer = nucleotide")));
}

TEST(Dataset, NothingToTrainOn) {
    const TempDir dir;
    EXPECT_THAT(error_of([&] { open({dir.write("a.fa", ">x\n>y\n")}); }), HasSubstr("has any sequence"));
}

// Sizes that do not fit 64 bits in sum are more than any memory, not less than none.
TEST(Dataset, SizesThatOverflowAreTooLarge) {
    // Memory's file system takes sparse files of any size; those on disks mostly do not.
    const std::filesystem::path folder = "/dev/shm/moebius_sparse_" + std::to_string(::getpid());
    std::error_code error;
    std::filesystem::create_directory(folder, error);
    std::vector<std::string> paths;
    for (const char* name : {"a.fa", "b.fa", "c.fa"}) {
        paths.push_back((folder / name).string());
        std::ofstream(paths.back()) << ">x\nACGT\n";
        if (!error) std::filesystem::resize_file(paths.back(), uint64_t{1} << 62, error);
    }
    const std::string message = error ? "" : error_of([&] { open(paths, 1 << 20); });
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    if (error) GTEST_SKIP() << "no file system in memory: " << error.message();
    EXPECT_THAT(message, HasSubstr("9223372036854775807 bytes"));
}

TEST(Dataset, MemoryLimitIsSaidBeforeReading) {
    const TempDir dir;
    const std::string path = dir.write("a.fa", ">x\n" + random_bases(20000, 1) + "\n");
    EXPECT_THAT(error_of([&] { open({path}, 10000); }),
                AllOf(HasSubstr("20004 bytes"), HasSubstr("10000"), HasSubstr("dataset.path")));
    EXPECT_EQ(open({path}, 21000)->tokens(), 20000);
}

TEST(Inputs, DirectoriesGlobsAndLists) {
    const TempDir dir;
    const std::string a = dir.write("a.fna", ">a\nA\n"), b = dir.write("b.fa.gz", "x"),
                      c = dir.write("c.fasta.bgz", "x");
    dir.write("a.fna.fai", "x");
    dir.write("README", "x");
    EXPECT_THAT(expand_paths({dir / ""}), ElementsAre(a, b, c));
    EXPECT_THAT(expand_paths({dir / "*.f*a*z", a}), ElementsAre(b, c, a));
    EXPECT_THAT(expand_paths({c, a}), ElementsAre(c, a));
    const std::string odd = dir.write("odd[1].fa", ">a\nA\n");
    EXPECT_THAT(expand_paths({odd}), ElementsAre(odd));  // a file's own name comes before a pattern
    const auto files = describe_inputs({a});
    EXPECT_EQ(files[0].bytes, 5);
    EXPECT_EQ(files[0].checksum.size(), 32u);
}

TEST(Inputs, Errors) {
    const TempDir dir;
    const std::string a = dir.write("a.fa", ">a\nA\n");
    EXPECT_THAT(error_of([&] { expand_paths({}); }), HasSubstr("dataset.path"));
    EXPECT_THAT(error_of([&] { expand_paths({""}); }), HasSubstr("empty entry"));
    EXPECT_THAT(error_of([&] { expand_paths({dir / "*.fastq"}); }), HasSubstr("matches no file"));
    EXPECT_THAT(error_of([&] { expand_paths({a, dir / "."}); }), HasSubstr("twice"));
    std::filesystem::create_directory(dir / "sub");
    EXPECT_THAT(error_of([&] { expand_paths({dir / "sub"}); }), HasSubstr("holds no file of a known format"));
    EXPECT_THAT(error_of([&] { open({dir / "missing.fa"}); }), HasSubstr("No such file"));
}

TEST(Inputs, FilesOfADirectory) {
    const TempDir dir;
    const std::string upper = dir.write("B.FASTA", ">a\nA\n"),
                      packed = dir.write("c.Fsa.GZ", gzip_member(">a\nC"));
    dir.write("d.txt", "x");
    std::filesystem::create_directory(dir / "a.fna");  // a folder all the same
    EXPECT_EQ(expand_paths({dir / "."}).size(), 2u);
    EXPECT_THAT(expand_paths({dir / "."}).front(), HasSubstr("B.FASTA"));
    std::filesystem::remove(upper);
    std::filesystem::remove(packed);
    EXPECT_THAT(error_of([&] { expand_paths({dir / "."}); }),
                AllOf(HasSubstr("1 other files"), HasSubstr("1 folders in it"), HasSubstr("*.fna")));
    // One file twice: what is held out would be trained on.
    dir.write("x.fa", ">a\nA\n");
    dir.write("x.fa.gz", gzip_member(">a\nA"));
    EXPECT_THAT(error_of([&] { expand_paths({dir / "."}); }),
                AllOf(HasSubstr("x.fa "), HasSubstr("x.fa.gz"), HasSubstr("twice")));
}

}  // namespace
}  // namespace moebius::data::testing
