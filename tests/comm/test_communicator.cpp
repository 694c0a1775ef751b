// The self backend, what every backend checks before it moves a byte, and the registry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/comm/registry.h"
#include "moebius/comm/self.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
View view_of(std::vector<T>& values, Shape shape) {
    return View(values.data(), DTypeOf<T>::value, shape);
}
template <class T>
View view_of(std::vector<T>& values) {
    return view_of(values, {static_cast<int64_t>(values.size())});
}

std::string message_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing was thrown";
}

class Self : public testing::Test {
  protected:
    std::unique_ptr<Communicator> comm_ = make_self_communicator();
    Stream stream_;
};

TEST_F(Self, IsRankZeroOfOne) {
    EXPECT_EQ(comm_->backend(), "self");
    EXPECT_EQ(comm_->rank(), 0);
    EXPECT_EQ(comm_->size(), 1);
    EXPECT_TRUE(comm_->capturable());
}

template <class T>
void expect_sum_of_one(Communicator& comm) {
    std::vector<T> data = {static_cast<T>(1), static_cast<T>(-2), static_cast<T>(3)};
    comm.all_reduce(view_of(data), {}, "sum");
    EXPECT_THAT(data, ElementsAre(static_cast<T>(1), static_cast<T>(-2), static_cast<T>(3)));
    std::vector<T> part(3);
    comm.reduce_scatter(view_of(data), view_of(part), {}, "sum");
    EXPECT_EQ(part, data);
}

TEST_F(Self, SumsOfOneRankKeepTheBits) {
    expect_sum_of_one<float>(*comm_);
    expect_sum_of_one<double>(*comm_);
    expect_sum_of_one<int32_t>(*comm_);
    expect_sum_of_one<int64_t>(*comm_);
}

TEST_F(Self, BroadcastKeepsTheData) {
    std::vector<uint8_t> data = {1, 2, 3};
    comm_->broadcast(view_of(data), 0, stream_, "seed");
    EXPECT_THAT(data, ElementsAre(1, 2, 3));
    comm_->barrier(stream_, "start");
}

TEST_F(Self, GatherCopiesOrStaysInPlace) {
    std::vector<float> send = {1, 2}, receive(2);
    comm_->all_gather(view_of(send), view_of(receive, {1, 2}), stream_, "gather");
    EXPECT_EQ(receive, send);
    comm_->all_gather(view_of(send), view_of(send), stream_, "gather");
    EXPECT_THAT(send, ElementsAre(1, 2));
    comm_->reduce_scatter(view_of(send), view_of(send), stream_, "scatter");
    EXPECT_THAT(send, ElementsAre(1, 2));
}

TEST_F(Self, AllToAllCopies) {
    std::vector<int32_t> send = {4, 5, 6}, receive(3);
    comm_->all_to_all(view_of(send), view_of(receive), stream_, "counts");
    EXPECT_EQ(receive, send);
}

TEST_F(Self, AllToAllVLeavesRowsPastTheCount) {
    std::vector<float> send = {1, 2, 3, 4, 5, 6}, receive(8, -1.0f);
    const std::vector<int64_t> rows = {2};
    comm_->all_to_all_v(view_of(send, {3, 2}), rows, view_of(receive, {4, 2}), rows, stream_, "rows");
    EXPECT_THAT(receive, ElementsAre(1, 2, 3, 4, -1, -1, -1, -1));
    const std::vector<int64_t> none = {0};
    std::vector<float> empty;
    comm_->all_to_all_v(view_of(empty, {0, 2}), none, view_of(receive, {4, 2}), none, stream_, "rows");
    EXPECT_THAT(receive, ElementsAre(1, 2, 3, 4, -1, -1, -1, -1));
}

TEST_F(Self, EmptyViewsAreLegal) {
    comm_->all_reduce(View(nullptr, DType::F32, {0}), stream_, "nothing");
    comm_->all_gather(View(nullptr, DType::F32, {0}), View(nullptr, DType::F32, {1, 0}), stream_, "nothing");
}

TEST_F(Self, SplitGivesAGroupOfOneOrNone) {
    const auto group = comm_->split(3, 0, "experts");
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->size(), 1);
    EXPECT_EQ(comm_->split(-1, 0, "experts"), nullptr);
    comm_->abort();  // the part lives on
    group->barrier(stream_, "experts");
}

TEST_F(Self, EveryCallAfterAbortThrowsAndNamesIt) {
    std::thread other([&] { comm_->abort(); });
    other.join();
    comm_->abort();
    std::vector<float> a = {1}, b = {2};
    const std::vector<int64_t> rows = {1};
    const std::vector<std::function<void()>> calls = {
        [&] { comm_->all_reduce(view_of(a), stream_, "layer 3 dispatch"); },
        [&] { comm_->broadcast(view_of(a), 0, stream_, "layer 3 dispatch"); },
        [&] { comm_->all_gather(view_of(a), view_of(b), stream_, "layer 3 dispatch"); },
        [&] { comm_->reduce_scatter(view_of(a), view_of(b), stream_, "layer 3 dispatch"); },
        [&] { comm_->all_to_all(view_of(a), view_of(b), stream_, "layer 3 dispatch"); },
        [&] { comm_->all_to_all_v(view_of(a), rows, view_of(b), rows, stream_, "layer 3 dispatch"); },
        [&] { comm_->barrier(stream_, "layer 3 dispatch"); },
        [&] { comm_->split(0, 0, "layer 3 dispatch"); },
    };
    for (const auto& call : calls) {
        EXPECT_THROW(call(), CommError);
        EXPECT_THAT(message_of(call), HasSubstr("layer 3 dispatch"));
    }
    EXPECT_EQ(b[0], 2) << "nothing moves any more";
}

// Rank 1 of 2, moves nothing: what reaches a backend has passed the checks.
class Second final : public Communicator {
  public:
    std::string_view backend() const override { return "second"; }
    int rank() const override { return 1; }
    int size() const override { return 2; }
    bool capturable() const override { return false; }
    std::unique_ptr<Communicator> split(int, int, std::string_view) override { return nullptr; }
    void abort() noexcept override {}

    std::vector<std::string> calls;

  protected:
    void do_all_reduce(const View&, Stream, std::string_view what) override { note("all_reduce", what); }
    void do_broadcast(const View&, int root, Stream, std::string_view what) override {
        note("broadcast from " + std::to_string(root), what);
    }
    void do_all_gather(const View&, const View&, Stream, std::string_view what) override {
        note("all_gather", what);
    }
    void do_reduce_scatter(const View&, const View&, Stream, std::string_view what) override {
        note("reduce_scatter", what);
    }
    void do_all_to_all(const View&, const View&, Stream, std::string_view what) override {
        note("all_to_all", what);
    }
    void do_all_to_all_v(const View&, std::span<const int64_t>, const View&, std::span<const int64_t>, Stream,
                         std::string_view what) override {
        note("all_to_all_v", what);
    }
    void do_barrier(Stream, std::string_view what) override { note("barrier", what); }

  private:
    void note(const std::string& call, std::string_view what) {
        calls.push_back(call + ": " + std::string(what));
    }
};

TEST(Checks, SoundCallsReachTheBackend) {
    Second comm;
    std::vector<float> one(2), two(4), other(4);
    std::vector<BF16> low(2), lows(4);
    const std::vector<int64_t> out = {2, 1}, in = {0, 1};
    comm.all_reduce(view_of(one), {}, "a");
    comm.broadcast(view_of(low), 1, {}, "b");
    comm.all_gather(view_of(low), view_of(lows), {}, "c");
    comm.all_gather(view_of(two).rows(2, 2), view_of(two), {}, "own part");
    comm.reduce_scatter(view_of(two), view_of(one), {}, "d");
    comm.all_to_all(view_of(two), view_of(other), {}, "e");
    comm.all_to_all_v(view_of(two), out, view_of(other), in, {}, "f");
    comm.barrier({}, "g");
    EXPECT_THAT(comm.calls,
                ElementsAre("all_reduce: a", "broadcast from 1: b", "all_gather: c", "all_gather: own part",
                            "reduce_scatter: d", "all_to_all: e", "all_to_all_v: f", "barrier: g"));
}

TEST(ChecksDeathTest, UnsoundCallsAbortAndNameThemselves) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    Second comm;
    std::vector<float> one(2), two(4), other(4);
    std::vector<BF16> low(4);
    const std::vector<int64_t> rows = {1, 1}, too_many = {3, 2}, short_list = {1}, negative = {-1, 1};
    View strided = view_of(two, {2, 2}).columns(0, 1);
    EXPECT_DEATH(comm.all_reduce(view_of(low), {}, "layer 1"), "layer 1: no sums of bf16");
    EXPECT_DEATH(comm.all_reduce(strided, {}, "layer 1"), "layer 1: .*not dense");
    EXPECT_DEATH(comm.broadcast(view_of(one), 2, {}, "layer 1"), "layer 1: root 2 of 2");
    EXPECT_DEATH(comm.all_gather(view_of(one), view_of(one), {}, "layer 1"), "layer 1: 2 elements from 2");
    EXPECT_DEATH(comm.all_gather(view_of(two).rows(0, 2), view_of(two), {}, "layer 1"), "layer 1: .*overlap");
    EXPECT_DEATH(comm.all_gather(view_of(one), view_of(low), {}, "layer 1"), "layer 1: sends f32");
    EXPECT_DEATH(comm.reduce_scatter(view_of(low), view_of(low), {}, "layer 1"), "layer 1: no sums of bf16");
    EXPECT_DEATH(comm.reduce_scatter(view_of(one), view_of(two), {}, "layer 1"), "layer 1: 2 elements to 2");
    EXPECT_DEATH(comm.all_to_all(view_of(one), view_of(two), {}, "layer 1"), "layer 1: sends 2");
    EXPECT_DEATH(comm.all_to_all(view_of(two), view_of(two), {}, "layer 1"), "layer 1: .*overlap");
    const auto v = [&](const std::vector<int64_t>& send, const std::vector<int64_t>& receive) {
        comm.all_to_all_v(view_of(two), send, view_of(other), receive, {}, "layer 1");
    };
    EXPECT_DEATH(v(too_many, rows), "layer 1: 5 rows in");
    EXPECT_DEATH(v(rows, short_list), "layer 1: 1 row counts for 2 ranks");
    EXPECT_DEATH(v(negative, rows), "layer 1: -1 rows");
    EXPECT_DEATH(v(rows, {1, 0}), "layer 1: a rank sends itself 1 rows and receives 0");
}

TEST(Registry, MakesByNameAndNamesWhatThereIs) {
    EXPECT_EQ(make_communicator("self")->backend(), "self");
    EXPECT_THAT(message_of([] { make_communicator("carrier pigeon"); }),
                testing::AllOf(HasSubstr("carrier pigeon"), HasSubstr("self")));
    for (const CommBackend& backend : comm_backends()) {
        EXPECT_FALSE(backend.description.empty()) << backend.name;
        ASSERT_NE(backend.make, nullptr) << backend.name;
        EXPECT_EQ(backend.make()->backend(), backend.name);
    }
}

}  // namespace
}  // namespace moebius
