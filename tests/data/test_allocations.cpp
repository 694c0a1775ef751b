// A loader allocates nothing after its first step, on any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/data/support.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
std::atomic<int64_t> g_allocations{0};
}

void* operator new(std::size_t bytes) {
    ++g_allocations;
    if (void* p = std::malloc(bytes)) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}

namespace moebius::data::testing {
namespace {

TEST(Loader, AllocatesNothingInASteadyState) {
    std::vector<std::string> texts;
    for (int i = 0; i < 50; ++i) texts.push_back(random_bases(1 + (i * 37) % 90, static_cast<uint32_t>(i)));
    const auto set = windows_of(texts, 31, 9);
    for (const bool packing : {false, true})
        for (const int workers : {0, 2}) {
            LoaderOptions options{
                .micro_batch_size = 3, .use_sequence_packing = packing, .num_workers = workers};
            Loader loader(set, options);
            loader.next_step();
            const int64_t before = g_allocations;
            for (int step = 0; step < 300; ++step) loader.next_step();
            EXPECT_EQ(g_allocations, before) << packing << ", " << workers << " workers";
            EXPECT_FALSE(loader.position().empty());
            EXPECT_GT(g_allocations, before);  // the counter counts
        }
}

}  // namespace
}  // namespace moebius::data::testing

#endif
