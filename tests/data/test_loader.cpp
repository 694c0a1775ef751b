#include "moebius/data/loader.h"

#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
std::vector<T> copy(std::span<T> values) {
    return {values.begin(), values.end()};
}

// All that a step holds, as one list of numbers.
std::vector<int64_t> flat(const StepBatch& batch) {
    std::vector<int64_t> all = {batch.number, batch.epoch, batch.labels, batch.real_tokens, batch.tokens};
    for (const MicroBatch& micro : batch.micro) {
        for (const auto part :
             {micro.tokens, micro.targets, micro.positions, micro.cu_seqlens, micro.cu_seqlens_capacity})
            all.insert(all.end(), part.begin(), part.end());
        all.insert(all.end(), micro.valid.begin(), micro.valid.end());
        all.insert(all.end(), {micro.max_seqlen, micro.labels, micro.real_tokens});
        for (const SequenceOrigin& o : micro.origins)
            all.insert(all.end(), {o.record, o.base, o.bases, o.first, o.tokens});
    }
    return all;
}

std::vector<std::vector<int64_t>> steps_of(Loader& loader, int count) {
    std::vector<std::vector<int64_t>> steps;
    for (int i = 0; i < count; ++i) steps.push_back(flat(*loader.next_step()));
    return steps;
}

// What must hold for any micro-batch, whatever the options.
void check_consistent(const WindowSet& windows, const MicroBatch& micro, const BatchShape& shape,
                      bool masked = true) {
    const auto capacity = static_cast<size_t>(shape.capacity);
    ASSERT_EQ(micro.tokens.size(), capacity);
    ASSERT_EQ(micro.targets.size(), capacity);
    ASSERT_EQ(micro.positions.size(), capacity);
    ASSERT_EQ(micro.valid.size(), capacity);
    ASSERT_GE(micro.cu_seqlens.size(), 2u);
    EXPECT_EQ(micro.cu_seqlens.front(), 0);
    EXPECT_EQ(micro.cu_seqlens.back(), shape.capacity);
    EXPECT_EQ(micro.max_seqlen, shape.max_seqlen);
    int64_t labels = 0, real = 0;
    size_t origin = 0;
    for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
        const auto begin = static_cast<size_t>(micro.cu_seqlens[s]),
                   end = static_cast<size_t>(micro.cu_seqlens[s + 1]);
        ASSERT_LT(begin, end);
        EXPECT_LE(static_cast<int64_t>(end - begin), shape.max_seqlen);
        EXPECT_EQ(static_cast<int64_t>(begin) % shape.multiple, 0);
        size_t count = 0;
        while (begin + count < end && micro.valid[begin + count]) ++count;
        for (size_t i = begin; i < end; ++i) {
            EXPECT_EQ(micro.positions[i], static_cast<int32_t>(i - begin));
            const bool is_real = i < begin + count;
            EXPECT_EQ(micro.valid[i], is_real ? 1 : 0);
            EXPECT_TRUE(is_real || micro.tokens[i] == 1);
            const bool has_next = i + 1 < begin + count;
            const int32_t next = has_next ? micro.tokens[i + 1] : 0;
            const bool counts =
                has_next && (!masked || std::string_view("ACGTacgt").find(static_cast<char>(next)) !=
                                            std::string_view::npos);
            EXPECT_EQ(micro.targets[i], counts ? next : kIgnore);
            labels += counts;
        }
        real += static_cast<int64_t>(count);
        if (count == 0) continue;
        ASSERT_LT(origin, micro.origins.size());
        const SequenceOrigin& from = micro.origins[origin++];
        EXPECT_EQ(from.first, static_cast<int32_t>(begin));
        EXPECT_EQ(from.tokens, static_cast<int32_t>(count));
        std::vector<int32_t> bases(static_cast<size_t>(from.bases)), expected;
        windows.data().read(from.record, from.base, bases);
        for (size_t i = begin; i < begin + count; ++i)
            if (micro.tokens[i] > 3) expected.push_back(micro.tokens[i]);
        EXPECT_EQ(bases, expected);
    }
    EXPECT_EQ(origin, micro.origins.size());
    EXPECT_EQ(micro.labels, labels);
    EXPECT_EQ(micro.real_tokens, real);
}

LoaderOptions plain(int64_t rows, int64_t buffer = 1) {
    return {.micro_batch_size = rows, .buffer_size = buffer, .num_workers = 0};
}

LoaderOptions packed(int64_t tokens, bool split, int64_t buffer = 1) {
    return {.token_micro_batch_size = tokens,
            .use_sequence_packing = true,
            .split_samples = split,
            .buffer_size = buffer,
            .num_workers = 0};
}

std::vector<std::string> mixed_sequences() {
    std::vector<std::string> texts;
    for (int i = 0; i < 23; ++i)
        texts.push_back(random_bases(1 + (i * 37) % 90, static_cast<uint32_t>(i), "ACGTacgtN"));
    return texts;
}

// ---- what a batch holds

TEST(Batch, PaddedRowsByHand) {
    Loader loader(windows_of({"ACgN", "T"}, 8), plain(3));
    const StepBatch* step = loader.next_step();
    ASSERT_EQ(step->micro.size(), 1u);
    const MicroBatch& m = step->micro[0];
    constexpr int32_t i = kIgnore;
    EXPECT_THAT(copy(m.tokens), ElementsAre(2, 'A', 'C', 'g', 'N', 0, 1, 1, 2, 'T', 0, 1, 1, 1, 1, 1,  //
                                            2, 'A', 'C', 'g', 'N', 0, 1, 1));
    EXPECT_THAT(copy(m.targets), ElementsAre('A', 'C', 'g', i, i, i, i, i, 'T', i, i, i, i, i, i, i, 'A', 'C',
                                             'g', i, i, i, i, i));
    EXPECT_THAT(copy(m.cu_seqlens), ElementsAre(0, 8, 16, 24));
    EXPECT_THAT(copy(m.valid),
                ElementsAre(1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0));
    EXPECT_EQ(step->labels, 7);
    EXPECT_EQ(step->real_tokens, 15);
    EXPECT_EQ(step->tokens, 24);
    EXPECT_EQ(step->epoch, 1);  // the third row is the next epoch's: the tail is carried over
    EXPECT_THAT(describe_origins(loader.windows().data(), m, 2),
                AllOf(HasSubstr("record 0 (s0), bases 1 to 4; "),
                      HasSubstr("record 1 (s1), bases 1 to 1; and 1 more")));
}

TEST(Batch, LabelRules) {
    LoaderOptions options = plain(1);
    options.labels = {.mask_degenerate_bases = false, .uppercase = true};
    Loader all(windows_of({"ACgn"}, 7), options);
    const MicroBatch& m = all.next_step()->micro[0];
    EXPECT_THAT(copy(m.tokens), ElementsAre(2, 'A', 'C', 'g', 'n', 0, 1));
    EXPECT_THAT(copy(m.targets), ElementsAre('A', 'C', 'G', 'N', 0, kIgnore, kIgnore));
    EXPECT_EQ(m.labels, 5);
    options.labels.mask_degenerate_bases = true;
    Loader masked(windows_of({"ACgn"}, 7), options);
    EXPECT_THAT(copy(masked.next_step()->micro[0].targets),
                ElementsAre('A', 'C', 'G', kIgnore, kIgnore, kIgnore, kIgnore));
}

TEST(Batch, AllLabelsMasked) {
    Loader loader(windows_of({"NNNN"}, 8), plain(2));
    EXPECT_EQ(loader.next_step()->labels, 0);
}

TEST(Batch, EachBaseCountsOnce) {
    const std::string text = random_bases(100, 5);
    for (const bool packing : {false, true}) {
        LoaderOptions options = packing ? packed(7, true) : plain(3);
        options.one_epoch = true;
        options.labels.each_base_once = true;
        Loader loader(windows_of({text}, 22, 15), options);
        int64_t labels = 0;
        std::vector<int> seen(100, 0);
        while (const StepBatch* step = loader.next_step()) {
            labels += step->labels;
            for (const SequenceOrigin& o : step->micro[0].origins) {
                const auto tokens = step->micro[0].tokens.subspan(static_cast<size_t>(o.first),
                                                                  static_cast<size_t>(o.tokens));
                int64_t base = o.base;
                for (size_t i = 0; i < tokens.size(); ++i) {
                    if (tokens[i] <= 3) continue;
                    if (i > 0 && step->micro[0].targets[static_cast<size_t>(o.first) + i - 1] != kIgnore)
                        ++seen[static_cast<size_t>(base)];
                    ++base;
                }
            }
        }
        const int64_t counted = std::accumulate(seen.begin(), seen.end(), int64_t{0});
        EXPECT_EQ(counted, labels);
        EXPECT_LE(*std::max_element(seen.begin(), seen.end()), 1);
        EXPECT_TRUE(packing || labels == 100) << labels;
    }
}

TEST(Batch, ConsistentUnderEveryOption) {
    for (const int64_t multiple : {1, 4, 8})
        for (const int mode : {0, 1, 2}) {
            LoaderOptions options = mode == 0 ? plain(3, 7) : packed(mode == 1 ? 48 : 40, mode == 1, 7);
            options.grad_acc_steps = 2;
            options.pad_multiple = multiple;
            const auto set = windows_of(mixed_sequences(), 31, 9);
            Loader loader(set, options);
            for (int step = 0; step < 40; ++step) {
                const StepBatch* batch = loader.next_step();
                ASSERT_EQ(batch->micro.size(), 2u);
                for (const MicroBatch& micro : batch->micro) check_consistent(*set, micro, loader.shape());
                EXPECT_EQ(batch->labels, batch->micro[0].labels + batch->micro[1].labels);
                EXPECT_EQ(batch->tokens, 2 * loader.shape().capacity);
            }
        }
}

// ---- packing

TEST(Packing, SplitFillsEveryBatchAndBeginsANewSequence) {
    Loader loader(windows_of({"ACGT", "AC", "GGG"}, 10), packed(8, true));
    const StepBatch* a = loader.next_step();  // 6 + 2 of 4
    EXPECT_THAT(copy(a->micro[0].tokens), ElementsAre(2, 'A', 'C', 'G', 'T', 0, 2, 'A'));
    EXPECT_THAT(copy(a->micro[0].cu_seqlens), ElementsAre(0, 6, 8));
    EXPECT_THAT(copy(a->micro[0].cu_seqlens_capacity), ElementsAre(0, 6, 8, 8, 8, 8, 8));
    EXPECT_EQ(a->micro[0].targets[7], kIgnore);  // nothing is predicted across the cut
    const StepBatch* b = loader.next_step();     // the rest, 2, then 5, then 1 of the next epoch
    EXPECT_THAT(copy(b->micro[0].tokens), ElementsAre('C', 0, 2, 'G', 'G', 'G', 0, 2));
    EXPECT_THAT(copy(b->micro[0].positions), ElementsAre(0, 1, 0, 1, 2, 3, 4, 0));
    EXPECT_EQ(b->micro[0].origins[0].base, 1);
}

TEST(Packing, WithoutSplitTheBatchIsShortAndPadded) {
    Loader loader(windows_of({"ACGT", "AC", "GGG"}, 10), packed(9, false));
    const StepBatch* a = loader.next_step();
    EXPECT_THAT(copy(a->micro[0].tokens), ElementsAre(2, 'A', 'C', 'G', 'T', 0, 1, 1, 1));
    EXPECT_THAT(copy(a->micro[0].cu_seqlens), ElementsAre(0, 6, 9));  // the padding is a sequence too
    EXPECT_THAT(copy(a->micro[0].valid), ElementsAre(1, 1, 1, 1, 1, 1, 0, 0, 0));
    EXPECT_EQ(a->micro[0].origins.size(), 1u);
    EXPECT_THAT(copy(loader.next_step()->micro[0].tokens), ElementsAre(2, 'A', 'C', 0, 2, 'G', 'G', 'G', 0));
}

TEST(Packing, EveryTokenOnceAnEpoch) {
    for (const bool split : {true, false})
        for (const int64_t capacity : {33, 50, 64, 200}) {
            LoaderOptions options = packed(capacity, split, 10);
            options.one_epoch = true;
            const auto set = windows_of(mixed_sequences(), 31, 9);
            Loader loader(set, options);
            int64_t tokens = 0;
            while (const StepBatch* step = loader.next_step()) tokens += step->real_tokens;
            EXPECT_EQ(tokens, set->tokens_with_overlap());
        }
}

TEST(Packing, Errors) {
    const auto set = windows_of({"AC", random_bases(60, 1)}, 100);
    EXPECT_THAT(error_of([&] { Loader(set, packed(61, false)); }),
                AllOf(HasSubstr("record 1 (s1), bases 1 to 60"), HasSubstr("62 tokens"), HasSubstr("of 61"),
                      HasSubstr("dataset.split_samples_in_token_packing")));
    EXPECT_EQ(error_of([&] { Loader(set, packed(62, false)); }), "");
    EXPECT_EQ(error_of([&] { Loader(set, packed(10, true)); }), "");
    LoaderOptions options = packed(62, true);
    options.pad_multiple = 8;
    EXPECT_THAT(error_of([&] { Loader(set, options); }),
                HasSubstr("divisible by dataset.pad_sequences_to_be_divisible_by = 8"));
    options = packed(62, true);
    options.use_sequence_packing = false;
    EXPECT_THAT(error_of([&] { Loader(set, options); }), HasSubstr("use_sequence_packing"));
    options = packed(62, true);
    options.token_micro_batch_size.reset();
    Loader loader(set, options);
    EXPECT_EQ(loader.shape().capacity, 8 * 100);
}

TEST(LoaderOptions, OutOfRange) {
    const auto set = windows_of({"ACGT"}, 10);
    const auto error = [&](auto change) {
        LoaderOptions options = plain(2);
        change(options);
        return error_of([&] { Loader(set, options); });
    };
    EXPECT_THAT(error([](auto& o) { o.micro_batch_size = 0; }), HasSubstr("dataset.micro_batch_size = 0"));
    EXPECT_THAT(error([](auto& o) { o.grad_acc_steps = 0; }), HasSubstr("grad_acc_steps = 0"));
    EXPECT_THAT(error([](auto& o) { o.buffer_size = 0; }), HasSubstr("dataset.buffer_size = 0"));
    EXPECT_THAT(error([](auto& o) { o.num_workers = -1; }), HasSubstr("dataset.num_workers = -1"));
    EXPECT_THAT(error([](auto& o) { o.prefetch_factor = 0; }), HasSubstr("dataset.prefetch_factor = 0"));
    EXPECT_THAT(error([](auto& o) { o.pad_multiple = 0; }),
                HasSubstr("dataset.pad_sequences_to_be_divisible_by = 0"));
    EXPECT_THAT(error([](auto& o) { o.micro_batch_size = int64_t{1} << 31; }),
                HasSubstr("at most 2147483647"));
}

// ---- the stream

TEST(Loader, SameBatchesWhateverTheWorkers) {
    const auto set = windows_of(mixed_sequences(), 31, 9);
    for (const bool packing : {false, true}) {
        std::vector<std::vector<int64_t>> expected;
        std::string position;
        for (const int workers : {0, 1, 2, 5}) {
            LoaderOptions options = packing ? packed(50, true, 12) : plain(3, 12);
            options.grad_acc_steps = 2;
            options.num_workers = workers;
            options.prefetch_factor = 2;
            Loader loader(set, options);
            const auto steps = steps_of(loader, 60);
            if (workers == 0) {
                expected = steps;
                position = loader.position();
                EXPECT_GT(steps.back()[1], 2);  // epochs went by
                EXPECT_NE(steps[0], steps[1]);
            }
            EXPECT_EQ(steps, expected) << workers << " workers";
            EXPECT_EQ(loader.position(), position) << workers << " workers";
        }
    }
}

TEST(Loader, SeedsAndEpochsDiffer) {
    const auto set = windows_of(mixed_sequences(), 31, 9);
    LoaderOptions options = plain(4, 1000);
    Loader a(set, options);
    options.seed = 43;
    Loader b(set, options);
    EXPECT_NE(flat(*a.next_step()), flat(*b.next_step()));
}

TEST(Loader, TailIsCarriedIntoTheNextEpoch) {
    const auto set = windows_of({"A", "C", "G", "T", "AA"}, 5);
    Loader loader(set, plain(3, 100));
    std::map<int64_t, int> seen;
    for (int step = 0; step < 5; ++step)  // 15 rows: three epochs of five
        for (const SequenceOrigin& o : loader.next_step()->micro[0].origins) ++seen[o.record];
    EXPECT_EQ(seen, (std::map<int64_t, int>{{0, 3}, {1, 3}, {2, 3}, {3, 3}, {4, 3}}));
}

TEST(Loader, OneEpochEndsWithPadding) {
    for (const int workers : {0, 3}) {
        LoaderOptions options = plain(3);
        options.one_epoch = true;
        options.num_workers = workers;
        const auto set = windows_of({"A", "C", "G", "T"}, 5);
        Loader loader(set, options);
        EXPECT_EQ(loader.next_step()->real_tokens, 9);
        const StepBatch* last = loader.next_step();
        ASSERT_NE(last, nullptr);
        EXPECT_EQ(last->real_tokens, 3);
        check_consistent(*set, last->micro[0], loader.shape());
        EXPECT_EQ(loader.next_step(), nullptr);
        EXPECT_EQ(loader.next_step(), nullptr);
    }
}

TEST(Loader, BatchStaysUntilTheNextCall) {
    LoaderOptions options = plain(2, 10);
    options.num_workers = 4;
    options.prefetch_factor = 1;
    const auto set = windows_of(mixed_sequences(), 31, 9);
    Loader loader(set, options);
    for (int step = 0; step < 30; ++step) {
        const StepBatch* batch = loader.next_step();
        const auto before = flat(*batch);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        EXPECT_EQ(flat(*batch), before);
    }
}

TEST(Loader, PrefetchIsBounded) {
    std::atomic<int64_t> made{0};
    LoaderOptions options = plain(1);
    options.num_workers = 2;
    options.prefetch_factor = 3;
    options.before_fill = [&](int64_t) { ++made; };
    Loader loader(windows_of(mixed_sequences(), 31, 9), options);
    for (int returned = 1; returned <= 5; ++returned) {
        loader.next_step();
        for (int wait = 0; wait < 1000 && made < returned + 6; ++wait)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_EQ(made, returned + 6);
    }
}

TEST(Loader, FailuresOfWorkersComeOutOfNextStep) {
    for (const int workers : {0, 1, 4}) {
        LoaderOptions options = plain(1);
        options.num_workers = workers;
        options.before_fill = [](int64_t number) {
            if (number >= 5) throw Error("reading failed at " + std::to_string(number));
        };
        Loader loader(windows_of(mixed_sequences(), 31, 9), options);
        for (int step = 0; step < 5; ++step) EXPECT_EQ(loader.next_step()->number, step);
        const std::string position = loader.position();
        for (int again = 0; again < 3; ++again)
            EXPECT_EQ(error_of([&] { loader.next_step(); }), "reading failed at 5") << workers;
        EXPECT_EQ(loader.position(), position);
    }
}

TEST(Loader, ClosesWhileWorkersWait) {
    for (int i = 0; i < 20; ++i) {
        LoaderOptions options = plain(1);
        options.num_workers = 3;
        Loader loader(windows_of({"ACGT"}, 10), options);
        if (i % 2 == 0) loader.next_step();
    }
}

// Counts what is allocated and not given back.
class CountingResource : public std::pmr::memory_resource {
  public:
    int64_t live = 0, allocations = 0;

  private:
    void* do_allocate(size_t bytes, size_t alignment) override {
        live += static_cast<int64_t>(bytes);
        ++allocations;
        return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* p, size_t bytes, size_t alignment) override {
        live -= static_cast<int64_t>(bytes);
        std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(Loader, MemoryComesFromTheResourceAtTheStartOnly) {
    CountingResource memory;
    {
        LoaderOptions options = plain(4, 10);
        options.num_workers = 2;
        options.prefetch_factor = 2;
        options.memory = &memory;
        Loader loader(windows_of(mixed_sequences(), 31, 9), options);
        EXPECT_EQ(memory.allocations, 5);
        EXPECT_EQ(memory.live, loader.memory_bytes());
        for (int step = 0; step < 50; ++step) {
            const StepBatch* batch = loader.next_step();
            EXPECT_EQ(reinterpret_cast<uintptr_t>(batch->micro[0].tokens.data()) % 64, 0u);
        }
        EXPECT_EQ(memory.allocations, 5);
    }
    EXPECT_EQ(memory.live, 0);
}

}  // namespace
}  // namespace moebius::data::testing
