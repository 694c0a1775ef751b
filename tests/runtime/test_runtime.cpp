#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "moebius/base/error.h"
#include "moebius/runtime/exec.h"

namespace moebius {
namespace {

TEST(ThreadPool, RunsEveryPieceOnceAndNamesItsThread) {
    for (const int threads : {1, 2, 3, 5, 8, 16}) {
        ThreadPool pool(threads);
        for (const int64_t pieces : {0, 1, 2, 7, 1000}) {
            std::vector<int> runs(static_cast<size_t>(pieces));
            pool.run(pieces, [&](int64_t piece, int thread) {
                ASSERT_GE(thread, 0);
                ASSERT_LT(thread, threads);
                ++runs[static_cast<size_t>(piece)];
            });
            for (const int count : runs) EXPECT_EQ(count, 1);
        }
    }
}

// What pieces wrote is there when run returns, and the next run sees it: no lock in the caller.
TEST(ThreadPool, OrdersRuns) {
    ThreadPool pool(4);
    std::vector<int64_t> values(4096, 0);
    for (int round = 0; round < 200; ++round) {
        pool.run(64, [&](int64_t piece, int) {
            for (int64_t i = piece * 64; i < piece * 64 + 64; ++i) ++values[static_cast<size_t>(i)];
        });
    }
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 4096 * 200);
}

TEST(ThreadPool, ThrowsAPiecesExceptionAndGoesOn) {
    ThreadPool pool(3);
    EXPECT_THROW(pool.run(50,
                          [](int64_t piece, int) {
                              if (piece == 17) throw Error("piece 17");
                          }),
                 Error);
    int64_t count = 0;
    pool.run(1, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count, 1);
}

TEST(HostArena, ASteadyPatternAsksTheSystemOnce) {
    HostArena arena;
    int64_t asked = 0;
    for (int step = 0; step < 5; ++step) {
        void* a = arena.allocate("a", 1000, {});
        void* b = arena.allocate("b", 3 << 20, {});
        EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % kAlignment, 0u);
        std::memset(b, 1, 3 << 20);
        arena.release(a, {});
        arena.release(b, {});
        if (step == 0) asked = arena.report().system_allocations;
    }
    const PoolReport report = arena.report();
    EXPECT_EQ(report.system_allocations, asked);
    EXPECT_EQ(report.current_bytes, 0);
    EXPECT_EQ(report.peak_bytes, 1000 + (3 << 20));
    EXPECT_NE(report.str().find("b "), std::string::npos);
}

TEST(HostArena, NamesWhatDidNotFit) {
    HostArena arena(1 << 20);
    void* kept = arena.allocate("kept", 600 << 10, {});
    try {
        arena.allocate("too much", 600 << 10, {});
        FAIL() << "the limit was passed";
    } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("too much"), std::string::npos);
        EXPECT_NE(std::string(error.what()).find("kept"), std::string::npos);
    }
    arena.release(kept, {});
}

TEST(Isa, NamesAndRefusals) {
    EXPECT_EQ(isa_from_name("baseline"), Isa::Baseline);
    EXPECT_THROW(isa_from_name("sse9"), Error);
    EXPECT_EQ(Device::cpu("baseline").isa(), Isa::Baseline);
    EXPECT_EQ(Device::cpu().isa(), detect_isa());
}

TEST(VariantLog, CountsCallsAndCosts) {
    VariantLog log;
    log.record("gemm", "cpu_packed", {}, {.flops = 2, .bytes = 3});
    log.record("gemm", "cpu_packed", {}, {.flops = 2, .bytes = 3});
    log.record("gemm", "cpu_naive", {"cpu_packed: because"}, {});
    ASSERT_EQ(log.entries().size(), 2u);
    EXPECT_EQ(log.entries()[0].calls, 2);
    EXPECT_EQ(log.entries()[0].cost.flops, 4);
}

}  // namespace
}  // namespace moebius
