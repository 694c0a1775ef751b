#include <gtest/gtest.h>

#include "moebius/base/split_float.h"
#include "moebius/tensor/parameter.h"
#include "moebius/tensor/staging.h"

namespace moebius {
namespace {

struct Fixture {
    Device device = Device::cpu();
    HostArena pool;
    ThreadPool threads{2};
    Exec exec{.device = &device, .pool = &pool, .threads = &threads};
};

TEST(View, SlicesAndSplits) {
    std::vector<float> data(24);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
    const View view(data.data(), DType::F32, {4, 6});
    EXPECT_EQ(*view.rows(1, 2).as<float>(), 6.0f);
    EXPECT_EQ(*view.at(3).as<float>(), 18.0f);
    const View columns = view.columns(2, 4);
    EXPECT_FALSE(columns.contiguous());
    const View split = columns.split_last(2);
    EXPECT_TRUE(split.shape == (Shape{4, 2, 2}));
    EXPECT_EQ(split.as<float>()[split.stride[0] + split.stride[1]], 10.0f);
}

TEST(Tensor, GivesMemoryBackWithTheLastHandle) {
    Fixture f;
    {
        const Tensor a = Tensor::zeros("a", {3, 5}, DType::BF16, f.exec);
        const Tensor b = a.alias(a.view().rows(1, 1));
        EXPECT_EQ(f.pool.report().current_bytes, 30);
    }
    EXPECT_EQ(f.pool.report().current_bytes, 0);
    bool deleted = false;
    {
        const Tensor adopted = Tensor::adopt(View(&deleted, DType::U8, {1}), [&] { deleted = true; });
    }
    EXPECT_TRUE(deleted);
}

TEST(ParameterSet, LayoutDoesNotChangeInitialValues) {
    Fixture f;
    const ParameterSpec weight{.name = "w", .shape = {8, 3}, .init_std = 0.5};
    ParameterSet one, two;
    one.declare(weight);
    two.declare({.name = "before", .shape = {100}, .init = Init::Ones, .decay = false});
    two.declare(weight);
    for (ParameterSet* set : {&one, &two}) {
        set->place({}, f.exec);
        set->fill(9, f.exec);
    }
    for (int64_t i = 0; i < 24; ++i) {
        EXPECT_EQ(one.find("w")->value.as<float>()[i], two.find("w")->value.as<float>()[i]);
    }
    EXPECT_EQ(two.segments().size(), 2u);
    EXPECT_FALSE(two.segments()[0].decay);
    EXPECT_EQ(two.find("before")->value.as<float>()[99], 1.0f);
}

TEST(ParameterSet, MastersKeepWhatRoundingDrops) {
    Fixture f;
    ParameterSet set;
    Parameter* w = set.declare({.name = "w", .shape = {50, 4}, .zero_row = 2});
    set.place({.dtype = DType::BF16}, f.exec);
    set.fill(1, f.exec);
    int differ = 0;
    for (int64_t i = 0; i < 200; ++i) {
        const float master = w->master.as<float>()[i];
        EXPECT_EQ(w->value.as<BF16>()[i].bits, to_bf16(master).bits);
        differ += to_float(to_bf16(master)) != master;
    }
    EXPECT_GT(differ, 100);
    EXPECT_EQ(w->master.as<float>()[2 * 4], 0.0f);
    EXPECT_EQ(set.state(true).size(), 4u);  // weight, master, two moments
}

// Remainders hold the masters that fp32 ones would be, from the same seed.
TEST(ParameterSet, RemaindersHoldTheSameMasters) {
    Fixture f;
    ParameterSet wide, split;
    for (ParameterSet* set : {&wide, &split}) set->declare({.name = "w", .shape = {50, 4}, .zero_row = 2});
    wide.place({.dtype = DType::BF16}, f.exec);
    split.place({.dtype = DType::BF16, .masters = Masters::Remainders}, f.exec);
    wide.fill(1, f.exec);
    split.fill(1, f.exec);
    const Parameter* w = split.find("w");
    EXPECT_FALSE(w->master);
    const auto joined = [&](int64_t i) {
        return join_float({w->value.as<BF16>()[i], w->remainder.as<int16_t>()[i]});
    };
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(joined(i), wide.find("w")->master.as<float>()[i]) << i;
    const std::vector<StateEntry> state = split.state(true);
    ASSERT_EQ(state.size(), 4u);
    EXPECT_EQ(state[1].kind, StateKind::Master);
    EXPECT_EQ(state[1].stored_dtype(), DType::F32);
    split.masters_from_values(f.exec);
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(joined(i), to_float(w->value.as<BF16>()[i])) << i;
}

TEST(ParameterSet, WithoutMastersThereAreNone) {
    Fixture f;
    ParameterSet set;
    const Parameter* w = set.declare({.name = "w", .shape = {50, 4}});
    set.place({.dtype = DType::BF16,
               .grad_dtype = DType::BF16,
               .state_dtype = DType::BF16,
               .masters = Masters::None},
              f.exec);
    set.fill(1, f.exec);
    EXPECT_FALSE(w->master || w->remainder);
    EXPECT_EQ(w->main_grad.dtype, DType::BF16);
    EXPECT_EQ(w->m.dtype, DType::BF16);
    EXPECT_EQ(set.state(true).size(), 3u);
    EXPECT_NE(to_float(w->value.as<BF16>()[7]), 0.0f);
}

TEST(ParameterSet, SaysHowManyBytesAParameterTakes) {
    const std::pair<PlaceOptions, int64_t> kForms[] = {
        {{}, 16},
        {{.train = false}, 4},
        {{.dtype = DType::BF16}, 18},
        {{.dtype = DType::BF16, .masters = Masters::Remainders}, 16},
        {{.dtype = DType::BF16, .masters = Masters::None}, 14},
        {{.dtype = DType::BF16,
          .grad_dtype = DType::BF16,
          .state_dtype = DType::BF16,
          .masters = Masters::None},
         8},
        {{.dtype = DType::BF16, .gradients_only = true}, 6}};
    for (const auto& [options, bytes] : kForms) {
        Fixture f;
        ParameterSet set;
        set.declare({.name = "w", .shape = {64, 10}});
        set.place(options, f.exec);
        EXPECT_EQ(bytes_per_parameter(options), bytes);
        EXPECT_EQ(f.pool.report().current_bytes, 640 * bytes);
    }
}

TEST(HostStaging, JoinsAndSplitsInPieces) {
    Fixture f;
    constexpr int64_t kCount = 37;
    const Tensor rounded = Tensor::empty("rounded", {kCount}, DType::BF16, f.exec);
    const Tensor remainder = Tensor::empty("remainder", {kCount}, DType::I16, f.exec);
    const auto value = [](int64_t i) { return 1.0f + static_cast<float>(i) * 0x1p-23f * 8191.0f; };
    for (const int64_t piece_bytes : {0, 1, 6, 1000}) {
        const HostStaging staging(f.exec, piece_bytes);
        fill_zero(rounded, f.exec);
        fill_zero(remainder, f.exec);
        staging.write_split(rounded, remainder, [&](const View& piece, int64_t begin) {
            for (int64_t i = 0; i < piece.numel(); ++i) piece.as<float>()[i] = value(begin + i);
        });
        std::vector<float> seen;
        staging.read_joined(rounded, remainder, [&](const View& piece, int64_t begin) {
            EXPECT_EQ(begin, static_cast<int64_t>(seen.size()));
            seen.insert(seen.end(), piece.as<float>(), piece.as<float>() + piece.numel());
        });
        ASSERT_EQ(seen.size(), static_cast<size_t>(kCount));
        for (int64_t i = 0; i < kCount; ++i) {
            EXPECT_EQ(seen[static_cast<size_t>(i)], value(i));
            EXPECT_EQ(rounded.view().as<BF16>()[i].bits, split_float(value(i)).rounded.bits);
        }
    }
}

TEST(HostStaging, PiecesCoverAViewOnce) {
    Fixture f;
    const Tensor tensor = Tensor::empty("t", {5, 7}, DType::F32, f.exec);
    for (const int64_t piece_bytes : {0, 1, 4, 12, 139, 140, 1000}) {
        const HostStaging staging(f.exec, piece_bytes);
        fill_zero(tensor, f.exec);
        int64_t next = 0, longest = 0;
        staging.write(tensor, [&](const View& piece, int64_t begin) {
            EXPECT_EQ(begin, next);
            next += piece.numel();
            longest = std::max(longest, piece.numel());
            for (int64_t i = 0; i < piece.numel(); ++i)
                piece.as<float>()[i] = static_cast<float>(100 + begin + i);
        });
        EXPECT_EQ(next, 35);
        EXPECT_EQ(longest, piece_bytes == 0 ? 35 : std::clamp<int64_t>(piece_bytes / 4, 1, 35));
        std::vector<float> seen;
        staging.read(tensor, [&](const View& piece, int64_t begin) {
            EXPECT_EQ(begin, static_cast<int64_t>(seen.size()));
            if (piece_bytes > 0) {
                EXPECT_NE(piece.data, tensor.view().as<float>() + begin);
            }
            seen.insert(seen.end(), piece.as<float>(), piece.as<float>() + piece.numel());
        });
        ASSERT_EQ(seen.size(), 35u);
        for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<float>(100 + i));
    }
}

TEST(ParameterSet, AGradientThatNothingWroteBecomesZero) {
    Fixture f;
    ParameterSet set;
    Parameter* w = set.declare({.name = "w", .shape = {4}});
    set.place({}, f.exec);
    w->main_grad.as<float>()[0] = 7;
    set.begin_step();
    EXPECT_EQ(w->take_fresh(), 0.0f);
    EXPECT_EQ(w->take_fresh(), 1.0f);
    set.finish_gradients(f.exec);
    EXPECT_EQ(w->main_grad.as<float>()[0], 7.0f) << "a written gradient stays";
    set.begin_step();
    set.finish_gradients(f.exec);
    EXPECT_EQ(w->main_grad.as<float>()[0], 0.0f);
}

}  // namespace
}  // namespace moebius
