// The arena's placement, and what transfers, events and graphs do on the CPU.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "moebius/base/error.h"
#include "moebius/runtime/exec.h"
#include "moebius/runtime/graph.h"
#include "moebius/runtime/loan_pool.h"
#include "moebius/runtime/pinned.h"
#include "moebius/runtime/stream.h"
#include "moebius/runtime/transfer.h"

namespace moebius {
namespace {

Stream stream_of(uintptr_t number) {
    return {reinterpret_cast<void*>(number)};
}

// A card's memory without the card: what may be taken is limited, ranges may be apart, waits are noted.
class PretendMemory : public SystemMemory {
  public:
    struct Log {
        std::vector<std::pair<Stream, Stream>> waits;
        int64_t taken = 0;
        bool gone = false;
    };
    PretendMemory(Log& log, int64_t most, bool apart) : log_(log), most_(most), apart_(apart) {}
    ~PretendMemory() override { log_.gone = true; }
    std::string name() const override { return "pretended"; }
    size_t alignment() const override { return kCudaAlignment; }
    Range take(size_t more, size_t whole) override {
        const size_t bytes = apart_ ? whole : more;
        if (log_.taken + static_cast<int64_t>(bytes) > most_) return {};
        log_.taken += static_cast<int64_t>(bytes);
        if (apart_) next_ += 1 << 20;
        const Range range{reinterpret_cast<char*>(next_), bytes};
        next_ += bytes;
        return range;
    }
    void order(Stream first, Stream then) override { log_.waits.push_back({first, then}); }

  private:
    Log& log_;
    int64_t most_;
    bool apart_;
    uintptr_t next_ = 1 << 20;
};

struct Request {
    int64_t bytes;
    int64_t release_after;  // requests later
};

// One step: blocks of very different sizes, some long-lived. The addresses they got.
std::vector<void*> run_step(Arena& arena, const std::vector<Request>& requests, Stream stream) {
    std::vector<void*> addresses;
    std::multimap<int64_t, void*> due;
    for (size_t i = 0; i < requests.size(); ++i) {
        while (!due.empty() && due.begin()->first <= static_cast<int64_t>(i)) {
            arena.release(due.begin()->second, stream);
            due.erase(due.begin());
        }
        void* data = arena.allocate("block", static_cast<size_t>(requests[i].bytes), stream);
        addresses.push_back(data);
        due.emplace(static_cast<int64_t>(i) + requests[i].release_after, data);
    }
    for (const auto& [when, data] : due) arena.release(data, stream);
    return addresses;
}

std::vector<Request> random_requests(unsigned seed, int count) {
    std::mt19937 random(seed);
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
        const int64_t scale = int64_t{1} << (random() % 24);
        requests.push_back({static_cast<int64_t>(random() % 1000 + 1) * scale / 64,
                            static_cast<int64_t>(1 + random() % 40)});
    }
    return requests;
}

TEST(Arena, ARepeatedStepGetsTheSameAddressesAndTakesNothing) {
    for (const bool apart : {false, true}) {
        PretendMemory::Log log;
        Arena arena(std::make_unique<PretendMemory>(log, int64_t{1} << 50, apart));
        void* kept = arena.allocate("kept", 12345, {});
        for (unsigned seed = 0; seed < 8; ++seed) {
            const std::vector<Request> requests = random_requests(seed, 400);
            const std::vector<void*> first = run_step(arena, requests, {});
            std::vector<void*> again = run_step(arena, requests, {});
            if (!apart) {
                EXPECT_EQ(first, again);
            }
            // Ranges that lie apart may move blocks once more; then that is steady too.
            for (int i = 0; apart && i < 3; ++i) again = run_step(arena, requests, {});
            const int64_t taken = arena.report().system_allocations;
            EXPECT_EQ(run_step(arena, requests, {}), again);
            EXPECT_EQ(arena.report().system_allocations, taken);
        }
        arena.release(kept, {});
        EXPECT_EQ(arena.report().current_bytes, 0);
        EXPECT_TRUE(log.waits.empty());
    }
}

TEST(Arena, BlocksInUseNeverOverlap) {
    for (const bool apart : {false, true}) {
        PretendMemory::Log log;
        Arena arena(std::make_unique<PretendMemory>(log, int64_t{1} << 50, apart));
        std::mt19937 random(5);
        std::map<char*, size_t> live;
        for (int i = 0; i < 20000; ++i) {
            if (live.empty() || random() % 2) {
                const size_t bytes = random() % (1u << (random() % 20));
                auto* data = static_cast<char*>(arena.allocate("x", bytes, stream_of(random() % 3)));
                ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % kCudaAlignment, 0u);
                const auto next = live.lower_bound(data);
                if (next != live.end()) {
                    ASSERT_LE(data + bytes, next->first);
                }
                if (next != live.begin()) {
                    ASSERT_LE(std::prev(next)->first + std::prev(next)->second, data);
                }
                ASSERT_TRUE(live.emplace(data, std::max<size_t>(bytes, 1)).second);
            } else {
                auto chosen = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
                arena.release(chosen->first, stream_of(random() % 3));
                live.erase(chosen);
            }
        }
    }
}

TEST(Arena, LargeBlocksFitIntoWhatSmallOnesLeft) {
    PretendMemory::Log log;
    Arena arena(std::make_unique<PretendMemory>(log, int64_t{1} << 50, false));
    const size_t gib = size_t{1} << 30;
    void* a = arena.allocate("a", 3 * gib, {});
    void* b = arena.allocate("b", 2 * gib, {});
    void* end = arena.allocate("end", 1, {});
    arena.release(a, {});
    arena.release(b, {});
    void* c = arena.allocate("c", 5 * gib - 1000, {});
    EXPECT_EQ(c, a);
    EXPECT_EQ(arena.report().system_bytes, static_cast<int64_t>(5 * gib + kCudaAlignment));
    arena.release(c, {});
    arena.release(end, {});
}

TEST(Arena, AnotherStreamWaitsForTheOneThatReleased) {
    PretendMemory::Log log;
    Arena arena(std::make_unique<PretendMemory>(log, int64_t{1} << 50, false));
    void* a = arena.allocate("a", 1000, stream_of(1));
    void* b = arena.allocate("b", 1000, stream_of(1));
    arena.release(a, stream_of(1));
    EXPECT_EQ(arena.allocate("a", 1000, stream_of(1)), a);
    EXPECT_TRUE(log.waits.empty());
    arena.release(a, stream_of(1));
    EXPECT_EQ(arena.allocate("a", 1000, stream_of(2)), a);
    ASSERT_EQ(log.waits.size(), 1u);
    EXPECT_EQ(log.waits[0].first.handle, stream_of(1).handle);
    EXPECT_EQ(log.waits[0].second.handle, stream_of(2).handle);
    // The last block joins what lies behind it; the next one there waits too.
    arena.release(b, stream_of(1));
    EXPECT_EQ(arena.allocate("b", 5000, stream_of(2)), b);
    EXPECT_EQ(log.waits.size(), 2u);
    arena.release(a, stream_of(2));
    arena.release(b, stream_of(2));
}

TEST(Arena, SaysWhatHoldsTheMemoryThatIsMissing) {
    PretendMemory::Log log;
    {
        Arena arena(std::make_unique<PretendMemory>(log, 1 << 20, false));
        void* kept = arena.allocate("moments", 900 << 10, {});
        try {
            arena.allocate("activations", 200 << 10, {});
            FAIL() << "there was no more";
        } catch (const DeviceError& error) {
            for (const char* word : {"pretended", "activations", "moments", "204800"}) {
                EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word;
            }
        }
        void* fits = arena.allocate("small", 100 << 10, {});
        arena.release(fits, {});
        arena.release(kept, {});
    }
    EXPECT_TRUE(log.gone);
}

TEST(CountingPool, PredictsWhatAnArenaTakes) {
    PretendMemory::Log log;
    Arena arena(std::make_unique<PretendMemory>(log, int64_t{1} << 50, false));
    CountingPool plan(kCudaAlignment);
    const std::vector<Request> requests = random_requests(77, 1000);
    run_step(arena, requests, {});
    run_step(plan, requests, {});
    EXPECT_EQ(plan.report().system_bytes, arena.report().system_bytes);
    EXPECT_EQ(plan.report().peak_bytes, arena.report().peak_bytes);
}

TEST(CountingPool, SaysWhoHeldWhatAtThePeak) {
    CountingPool pool;
    const auto row = [&](const std::string& name) {
        for (const PoolReport::Row& r : pool.report().rows) {
            if (r.name == name) return r;
        }
        return PoolReport::Row{};
    };
    void* const early = pool.allocate("early", 1000, {});
    pool.release(early, {});
    void* const a = pool.allocate("a", 300, {});
    void* const b = pool.allocate("b", 900, {});
    EXPECT_EQ(row("b").at_peak_bytes, 900) << "while the peak is now";
    pool.release(b, {});
    void* const c = pool.allocate("c", 200, {});
    void* const late = pool.allocate("a", 500, {});
    EXPECT_EQ(pool.report().peak_bytes, 1200);
    EXPECT_EQ(row("early").at_peak_bytes, 0);
    EXPECT_EQ(row("a").at_peak_bytes, 300);
    EXPECT_EQ(row("a").peak_bytes, 800);
    EXPECT_EQ(row("b").at_peak_bytes, 900);
    EXPECT_EQ(row("c").at_peak_bytes, 0);
    const std::vector<PoolReport::Row> largest = pool.report().at_peak(1);
    ASSERT_EQ(largest.size(), 1u);
    EXPECT_EQ(largest[0].name, "b");
    for (void* block : {a, c, late}) pool.release(block, {});
}

TEST(LoanPool, GivesWhatFitsAndElseAsksUpstream) {
    HostArena own;
    alignas(kCudaAlignment) static char memory[4096];
    LoanPool pool({.stream = stream_of(1), .pool = &own});
    const auto lies_in = [&](void* data, size_t begin, size_t bytes) {
        const char* at = static_cast<char*>(data);
        return at >= memory + begin && at < memory + begin + bytes;
    };
    void* const before = pool.allocate("a", 256, stream_of(1));
    EXPECT_EQ(own.report().current_bytes, 256) << "nothing is lent yet";
    pool.lend(1, memory + 1, 1024);  // whole steps of 256: three
    pool.lend(2, memory + 2048, 2048);
    void* const large = pool.allocate("b", 1500, stream_of(1));
    EXPECT_TRUE(lies_in(large, 2048, 1));
    void* const small = pool.allocate("c", 500, stream_of(1));
    EXPECT_TRUE(lies_in(small, 2048 + 1536, 1)) << "the block that fits best";
    void* const other = pool.allocate("d", 600, stream_of(1));
    EXPECT_TRUE(lies_in(other, 256, 1));
    EXPECT_EQ(own.report().current_bytes, 256);
    void* const beyond = pool.allocate("e", 256, stream_of(1));
    EXPECT_EQ(own.report().current_bytes, 512) << "the ranges are full";
    EXPECT_DEATH(pool.take_back(2), "is in use");
    pool.release(large, stream_of(1));
    EXPECT_DEATH(pool.take_back(2), "is in use");
    pool.release(small, stream_of(1));
    void* const whole = pool.allocate("f", 2048, stream_of(1));
    EXPECT_TRUE(lies_in(whole, 2048, 1)) << "neighbours merged";
    pool.release(whole, stream_of(1));
    pool.take_back(2);
    void* const later = pool.allocate("g", 2048, stream_of(1));
    EXPECT_FALSE(lies_in(later, 0, sizeof memory));
    pool.release(other, stream_of(1));
    void* const elsewhere = pool.allocate("h", 256, stream_of(2));
    EXPECT_FALSE(lies_in(elsewhere, 0, sizeof memory)) << "another stream";
    pool.take_back(1);
    EXPECT_EQ(pool.peak_bytes(), 1536 + 512 + 768);
    for (void* block : {before, beyond, later}) pool.release(block, stream_of(1));
    pool.release(elsewhere, stream_of(2));
    EXPECT_EQ(own.report().current_bytes, 0);
}

// Where a real address would be one that a counting pool has given.
TEST(LoanPool, OfADryRunHasAddressesOfItsOwn) {
    CountingPool own;
    LoanPool pool({.pool = &own, .dry = true});
    void* const before = pool.allocate("a", 4096, {});
    pool.lend(0, before, 4096);
    void* const lent = pool.allocate("b", 4096, {});
    EXPECT_NE(lent, before);
    EXPECT_EQ(own.report().current_bytes, 4096);
    pool.release(before, {});
    EXPECT_EQ(own.report().current_bytes, 0);
    pool.release(lent, {});
    pool.take_back(0);
}

TEST(HostArena, GrowsInOneRange) {
    HostArena arena;
    std::vector<void*> blocks;
    for (int i = 0; i < 50; ++i) {
        blocks.push_back(arena.allocate("block", 300000, {}));
        std::memset(blocks.back(), i, 300000);
    }
    for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(static_cast<char*>(blocks[static_cast<size_t>(i)])[299999], i);
        arena.release(blocks[static_cast<size_t>(i)], {});
    }
    const int64_t taken = arena.report().system_bytes;
    void* all = arena.allocate("all", 50 * 300000, {});
    std::memset(all, 1, 50 * 300000);
    EXPECT_EQ(arena.report().system_bytes, taken);
    arena.release(all, {});
}

class OnCpu : public testing::Test {
  protected:
    Device device_ = Device::cpu();
    Exec exec_{.device = &device_};
};

TEST_F(OnCpu, TransfersAreDoneWhenTheyReturn) {
    const std::vector<int> from{1, 2, 3};
    std::vector<int> device(3), to(3), filled(3, 7);
    copy_to_device(device.data(), from.data(), 12, exec_);
    copy(to.data(), device.data(), 12, exec_);
    EXPECT_EQ(to, from);
    copy_to_host(to.data(), device.data() + 1, 8, exec_);
    EXPECT_EQ(to, (std::vector<int>{2, 3, 3}));
    zero(filled.data(), 8, exec_);
    EXPECT_EQ(filled, (std::vector<int>{0, 0, 7}));
    fill_bytes(filled.data(), 0xFF, 4, exec_);
    EXPECT_EQ(filled[0], -1);
    synchronize(exec_);
    Exec dry = exec_;
    dry.dry = true;
    zero(nullptr, 100, dry);
    copy(nullptr, nullptr, 100, dry);
    synchronize(dry);
}

TEST_F(OnCpu, StreamsAndEventsAreNoObstacle) {
    OwnedStream stream(device_);
    Event begin(device_, true), end(device_, true);
    begin.record(stream);
    end.record(stream);
    end.wait(stream);
    end.synchronize();
    EXPECT_TRUE(end.done());
    EXPECT_GE(end.seconds_since(begin), 0);
    OwnedStream moved = std::move(stream);
    moved.synchronize();
}

TEST_F(OnCpu, NoGraphs) {
    Graph graph;
    EXPECT_THROW(graph.capture(exec_, [] {}), DeviceError);
    EXPECT_FALSE(graph);
}

TEST_F(OnCpu, PinnedMemoryIsReused) {
    PinnedMemory memory(device_);
    void* a = memory.allocate(10000);
    std::memset(a, 1, 10000);
    memory.deallocate(a, 10000);
    EXPECT_EQ(memory.allocate(10001), a);
    memory.deallocate(a, 10001);
    EXPECT_GT(memory.system_bytes(), 10000u);
}

// No card here, or one: the answer is whole either way, and a device that isn't there names the way out.
TEST(CudaDevices, SayWhyThereAreNone) {
    const CudaDevices devices = visible_cuda_devices();
    EXPECT_NE(devices.all.empty(), devices.why_none.empty());
    try {
        Device::cuda(1000);
        FAIL() << "there are no 1001 cards";
    } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("device=cpu"), std::string::npos) << error.what();
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace moebius
