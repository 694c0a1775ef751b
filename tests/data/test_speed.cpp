// How fast files are read and batches made, printed into the log: figures, not limits. Also that memory does
// not depend on a record's length.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kBases = 10'000'000;
#else
constexpr int64_t kBases = 250'000'000;
#endif

// Of this thread, so that a busy machine does not change the figures.
double cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int64_t peak_kilobytes() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

// A record of `bases` in lines of `line` (0: a single one); its checksum by position, to compare with.
uint64_t write_genome(const std::string& path, int64_t bases, int64_t line) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    std::fputs(">chr1\n", file);
    const std::string block = random_bases(line > 0 ? line * 1000 : 1 << 20, 1, "ACGTacgtN");
    uint64_t sum = 0;
    for (int64_t at = 0; at < bases;) {
        const auto count =
            std::min<int64_t>(line > 0 ? line : static_cast<int64_t>(block.size()), bases - at);
        const char* from = block.data() + (line > 0 ? at % static_cast<int64_t>(block.size()) : 0);
        std::fwrite(from, 1, static_cast<size_t>(count), file);
        if (line > 0) std::fputc('\n', file);
        at += count;
    }
    for (int64_t i = 0; i < bases; ++i)
        sum += static_cast<uint8_t>(block[static_cast<size_t>(i) % block.size()]);
    std::fclose(file);
    return sum;
}

struct Reading {
    int64_t bases = 0;
    uint64_t sum = 0;
    double seconds = 0;  // without the sum
};

Reading read_file(const std::string& path) {
    Reading reading;
    RecordHead head;
    auto source = open_source(path, "fasta");
    while (source->next(head))
        for (auto piece = source->piece(); !piece.empty(); piece = source->piece()) {
            reading.bases += static_cast<int64_t>(piece.size());
            for (const char c : piece) reading.sum += static_cast<uint8_t>(c);
        }
    const double begin = cpu_seconds();
    source = open_source(path, "fasta");
    while (source->next(head))
        while (!source->piece().empty()) {
        }
    reading.seconds = cpu_seconds() - begin;
    return reading;
}

void report(const char* what, const std::string& path, double seconds) {
    const auto bytes = static_cast<double>(std::filesystem::file_size(path));
    std::printf("[ figure   ] %s: %.0f MB of file, %.0f MB/s\n", what, bytes / 1e6, bytes / 1e6 / seconds);
}

TEST(Speed, SingleLineRecordOf250MegabasesInBoundedMemory) {
    const TempDir dir;
    const std::string path = dir / "line.fa";
    const uint64_t sum = write_genome(path, kBases, 0);
    const int64_t before = peak_kilobytes();
    const Reading reading = read_file(path);
    EXPECT_EQ(reading.bases, kBases);
    EXPECT_EQ(reading.sum, sum);
    EXPECT_LT(peak_kilobytes() - before, 16 << 10);
    report("plain FASTA, one line, parsed on one core", path, reading.seconds);
}

TEST(Speed, WrappedLinesAndDataset) {
    const TempDir dir;
    const std::string path = dir / "wrapped.fa";
    constexpr int64_t kWrapped = kBases / 5;
    const uint64_t sum = write_genome(path, kWrapped, 70);
    const Reading reading = read_file(path);
    EXPECT_EQ(reading.bases, kWrapped);
    EXPECT_EQ(reading.sum, sum);
    report("plain FASTA, lines of 70, parsed on one core", path, reading.seconds);

    const auto begin = cpu_seconds();
    const auto data =
        Dataset::open({.paths = {path}, .tokenizer = make_tokenizer("nucleotide"), .max_unknown_share = 1});
    report("plain FASTA, lines of 70, to tokens in memory", path, cpu_seconds() - begin);
    EXPECT_EQ(data->tokens(), kWrapped);
    EXPECT_LT(data->memory_bytes(), kWrapped + 2 * TokenStore::kBlockTokens);

    const std::string shorter = dir / "shorter.fa";
    write_genome(shorter, 10'000'000, 70);
    ASSERT_EQ(std::system(("gzip -1 -c '" + shorter + "' > '" + shorter + ".gz'").c_str()), 0);
    const Reading packed = read_file(shorter + ".gz");
    EXPECT_EQ(packed.bases, 10'000'000);
    report("gzip FASTA, lines of 70, parsed on one core", shorter + ".gz", packed.seconds);
    std::printf("[ figure   ]   which is %.0f MB/s of text\n", 10 * 71.0 / 70 / packed.seconds);
}

TEST(Speed, Batches) {
    const auto set = windows_of({random_bases(4'000'000, 1)}, 1024, 200);
    LoaderOptions options{.num_workers = 0};
    Loader loader(set, options);
    constexpr int kSteps = 200;
    int64_t tokens = 0;
    const auto begin = cpu_seconds();
    for (int step = 0; step < kSteps; ++step) tokens += loader.next_step()->real_tokens;
    const double seconds = cpu_seconds() - begin;
    EXPECT_GT(tokens, 0);
    std::printf(
        "[ figure   ] batch of 8 x 1024 tokens, made on the calling thread: %.3f ms, %.0f M tokens/s\n",
        1e3 * seconds / kSteps, static_cast<double>(tokens) / 1e6 / seconds);
}

// A record beyond 2 GiB, from a bgzip file that repeats one block; 20 s, so only where MOEBIUS_LARGE_TESTS is
// set.
TEST(Speed, RecordLongerThan32Bits) {
    if (std::getenv("MOEBIUS_LARGE_TESTS") == nullptr) GTEST_SKIP() << "MOEBIUS_LARGE_TESTS is not set";
    const TempDir dir;
    constexpr int64_t kBlock = 65000, kBlocks = 34000;
    dir.write("block", std::string(kBlock, 'A'));
    ASSERT_EQ(std::system(("bgzip -c '" + (dir / "block") + "' > '" + (dir / "block.gz") + "'").c_str()), 0);
    std::string block;
    std::ifstream in(dir / "block.gz", std::ios::binary);
    block.assign(std::istreambuf_iterator<char>(in), {});
    block.resize(block.size() - 28);  // without the end marker
    {
        std::ofstream out(dir / "long.fa.gz", std::ios::binary);
        out << bgzip_blocks(">long\n");
        for (int64_t i = 0; i < kBlocks; ++i) out << block;
        out << bgzip_end();
    }
    EXPECT_EQ(read_file(dir / "long.fa.gz").bases, kBlock * kBlocks);
}

}  // namespace
}  // namespace moebius::data::testing
