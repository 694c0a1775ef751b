// What is saved comes back bit for bit, in whichever form it is held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "moebius/base/split_float.h"
#include "moebius/checkpoint/state_files.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

FileSystem& real = real_file_system();

struct RoundTrip {
    const char* name;
    ToyOptions state;
    DType model_dtype;
};

class RoundTrips : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(RoundTrips, GivesBackEveryBit) {
    const ScratchFolder scratch;
    ToyState state(GetParam().state);
    state.fill(7);
    Store store({.directory = scratch.path() / "a" / "b"}, real);
    store.save(toy_request(state, 7, GetParam().model_dtype));
    EXPECT_EQ(store.last_saved(), 7);
    state.poison();
    ASSERT_NE(state.difference(7), "");
    const auto found = latest(real, scratch.path() / "a" / "b");
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step(), 7);
    EXPECT_EQ(found->path().filename(), "step_000007");
    EXPECT_EQ(found->trainer(), "{\"step\":7,\"lr\":0.1,\"seed\":18446744073709551615}");
    const LoadReport report = found->load(toy_layouts(), state.entries());
    EXPECT_EQ(state.difference(7), "");
    EXPECT_THAT(report.unused, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, RoundTrips,
    ::testing::Values(
        RoundTrip{"f32", {}, DType::F32},
        RoundTrip{"bf16_with_masters", {.weight_dtype = DType::BF16, .masters = true}, DType::BF16},
        RoundTrip{"bf16_exported_as_f32", {.weight_dtype = DType::BF16, .masters = true}, DType::F32},
        // Rounded in model/, so the exact ones are kept as state.
        RoundTrip{"f32_exported_as_bf16", {}, DType::BF16}),
    [](const auto& info) { return info.param.name; });

// Weights and masters of the toy's tensors in either form; some masters are ties.
class MasterState {
  public:
    explicit MasterState(bool remainders) {
        for (const ToyTensor& tensor : toy_tensors()) {
            const int64_t count = tensor.shape.numel();
            const GlobalSlice slice{tensor.name, tensor.shape, 0, count};
            const View weights(memory(count * 2), DType::BF16, {count});
            entries_.push_back({slice, weights, StateKind::Weight});
            if (remainders) {
                entries_.push_back(
                    {slice, weights, StateKind::Master, View(memory(count * 2), DType::I16, {count})});
            } else {
                entries_.push_back({slice, View(memory(count * 4), DType::F32, {count}), StateKind::Master});
            }
        }
    }
    static float master(const StateEntry& entry, int64_t i) {
        const float value = toy_value(entry.slice.name, StateKind::Weight, 3, i);
        if (i % 3 != 0) return value;
        return std::bit_cast<float>((std::bit_cast<uint32_t>(value) & ~0xFFFFu) | 0x8000u);
    }
    void fill() {
        for (const StateEntry& entry : entries_) {
            for (int64_t i = 0; i < entry.slice.count; ++i) {
                const float value = master(entry, i);
                const SplitFloat parts = split_float(value);
                if (entry.remainder) {
                    entry.view.as<BF16>()[i] = parts.rounded;
                    entry.remainder.as<int16_t>()[i] = parts.remainder;
                } else if (entry.kind == StateKind::Master) {
                    entry.view.as<float>()[i] = value;
                } else {
                    entry.view.as<BF16>()[i] = to_bf16(value);
                }
            }
        }
    }
    void poison() {
        for (const StateEntry& entry : entries_)
            std::memset(entry.view.data, 0xFF, static_cast<size_t>(entry.view.bytes()));
    }
    void expect_masters() const {
        for (const StateEntry& entry : entries_) {
            if (entry.kind != StateKind::Master) continue;
            for (int64_t i = 0; i < entry.slice.count; ++i) {
                const float got =
                    entry.remainder ? join_float({entry.view.as<BF16>()[i], entry.remainder.as<int16_t>()[i]})
                                    : entry.view.as<float>()[i];
                ASSERT_EQ(got, master(entry, i)) << entry.slice.name << " " << i;
            }
        }
    }
    SaveRequest request() const {
        SaveRequest request = toy_request(ToyState({}), 3, DType::BF16);
        request.entries = entries_;
        return request;
    }
    const std::vector<StateEntry>& entries() const { return entries_; }

  private:
    void* memory(int64_t bytes) {
        memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
        return memory_.back().get();
    }
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<StateEntry> entries_;
};

// A checkpoint does not say in which form its masters were held: each opens in the other, bit for bit.
TEST(Store, MastersHeldAsRemaindersAreStoredAsTheMastersTheyAre) {
    const Path file = Path("step_000003") / kOptimizerFolder / state_file_name(0, 1);
    std::string written[3];
    for (const int way : {0, 1, 2}) {  // fp32; remainders; remainders, asynchronous
        const ScratchFolder scratch;
        MasterState state(way > 0);
        state.fill();
        {
            Store store({.directory = scratch.path(), .async = way == 2}, real);
            store.save(state.request());
            if (way == 2) state.poison();
            store.wait();
        }
        written[way] = read_text(real, scratch.path() / file);
        for (const bool remainders : {false, true}) {
            MasterState again(remainders);
            again.poison();
            const auto found = latest(real, scratch.path());
            ASSERT_TRUE(found);
            // Masters first: what is read into the weights after them must not spoil them.
            std::vector<StateEntry> entries = again.entries();
            std::reverse(entries.begin(), entries.end());
            found->load(toy_layouts(), entries);
            again.expect_masters();
        }
    }
    EXPECT_EQ(written[0], written[1]);
    EXPECT_EQ(written[0], written[2]);
}

TEST(Checkpoint, MomentsInBf16AreReadAsF32) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(4);
    std::vector<BF16> narrow(4);
    SaveRequest request = toy_request(state, 4);
    for (StateEntry& entry : request.entries) {
        if (entry.slice.name != "norm" || entry.kind != StateKind::Moment1) continue;
        for (int64_t i = 0; i < 4; ++i) narrow[static_cast<size_t>(i)] = to_bf16(entry.view.as<float>()[i]);
        entry.view = View(narrow.data(), DType::BF16, {4});
    }
    Store({.directory = scratch.path()}, real).save(request);
    state.poison();
    latest(real, scratch.path())->load(toy_layouts(), state.entries());
    for (const StateEntry& entry : state.entries()) {
        if (entry.slice.name != "norm" || entry.kind != StateKind::Moment1) continue;
        for (size_t i = 0; i < 4; ++i) EXPECT_EQ(entry.view.as<float>()[i], to_float(narrow[i]));
    }
    // Not the other way round.
    ToyState wide({});
    wide.fill(5);
    Store({.directory = scratch.path()}, real).save(toy_request(wide, 5));
    EXPECT_THAT(error_of([&] { latest(real, scratch.path())->load(toy_layouts(), request.entries); }),
                HasSubstr("moment1 of norm has dtype F32, expected BF16"));
}

}  // namespace
}  // namespace moebius::checkpoint::testing
