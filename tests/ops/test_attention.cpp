// What the list of cases cannot say of attention and the rotary embedding: scratch, non-finite values, no
// tokens, dry runs, broken arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "moebius/base/philox.h"
#include "moebius/ops/attention/attention.h"
#include "moebius/ops/rope/rope.h"

namespace moebius::ops {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Memory of a forward and a backward call, fp32, N(0, 1).
struct Tensors {
    std::vector<int32_t> cu_seqlens;
    int64_t tokens, heads, kv_heads, head_dim;
    std::vector<float> q, k, v, out, lse, dout, dq, dk, dv;

    Tensors(std::vector<int32_t> ends, int64_t tokens_, int64_t heads_, int64_t kv_heads_, int64_t head_dim_)
        : cu_seqlens(std::move(ends)),
          tokens(tokens_),
          heads(heads_),
          kv_heads(kv_heads_),
          head_dim(head_dim_) {
        uint64_t index = 0;
        const Philox random(3, "attention test");
        for (auto* x : {&q, &out, &dout, &dq}) x->resize(static_cast<size_t>(tokens * heads * head_dim));
        for (auto* x : {&k, &v, &dk, &dv}) x->resize(static_cast<size_t>(tokens * kv_heads * head_dim));
        for (auto* x : {&q, &k, &v, &dout}) {
            for (float& value : *x) value = static_cast<float>(random.normal(index++));
        }
        lse.resize(static_cast<size_t>(heads * tokens));
    }
    View over(std::vector<float>& x, int64_t count) {
        return View(x.data(), DType::F32, {tokens, count, head_dim});
    }
    AttentionArgs forward() {
        return {.shape = {.cu_seqlens =
                              View(cu_seqlens.data(), DType::I32, {static_cast<int64_t>(cu_seqlens.size())}),
                          .max_seqlen = tokens,
                          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))},
                .q = over(q, heads),
                .k = over(k, kv_heads),
                .v = over(v, kv_heads),
                .out = over(out, heads),
                .lse = View(lse.data(), DType::F32, {heads, tokens})};
    }
    AttentionBackwardArgs backward() {
        const AttentionArgs f = forward();
        return {.shape = f.shape,
                .q = f.q,
                .k = f.k,
                .v = f.v,
                .out = f.out,
                .lse = f.lse,
                .dout = over(dout, heads),
                .dq = over(dq, heads),
                .dk = over(dk, kv_heads),
                .dv = over(dv, kv_heads)};
    }
};

class Attention : public testing::Test {
  protected:
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }
    // The most scratch that forward or backward holds over one sequence.
    int64_t peak(int length, int window, bool backward) {
        Tensors t({0, length}, length, 2, 1, 16);
        HostArena pool;
        Exec with = exec();
        with.pool = &pool;
        AttentionArgs forward = t.forward();
        forward.shape.window = window;
        attention(forward, with);
        if (!backward) return pool.report().peak_bytes;
        HostArena fresh;
        with.pool = &fresh;
        AttentionBackwardArgs args = t.backward();
        args.shape.window = window;
        attention_backward(args, with);
        return fresh.report().peak_bytes;
    }

    Device device_ = Device::cpu_from_environment();
    HostArena pool_;
    ThreadPool threads_{2};
};

TEST_F(Attention, ForwardScratchDoesNotGrowWithTheSequence) {
    const int64_t some = peak(500, 0, false);
    EXPECT_GT(some, 0);
    // Two heads in a piece instead of one, no more.
    EXPECT_LE(peak(4000, 0, false), 2 * some);
}

TEST_F(Attention, BackwardScratchGrowsNoFasterThanTheSequence) {
    const int64_t some = peak(1000, 0, true), more = peak(4000, 0, true);
    EXPECT_LE(more, 5 * some);
    EXPECT_LT(more, int64_t{4000} * 4000 * 4) << "as much as the scores of one head";
    EXPECT_LT(peak(4000, 64, true), more) << "a window's parts of dq are shorter";
}

TEST_F(Attention, NaNReachesWhoSeesItAndNobodyElse) {
    Tensors t({0, 40, 70}, 70, 2, 1, 16);
    t.q[static_cast<size_t>((10 * 2 + 1) * 16 + 3)] = kNaN;  // query 10 of head 1
    t.k[static_cast<size_t>(30 * 16)] = kNaN;                // key 30: seen by queries 30 to 39
    attention(t.forward(), exec());
    attention_backward(t.backward(), exec());
    for (int64_t head = 0; head < 2; ++head) {
        for (int64_t i = 0; i < 70; ++i) {
            const bool touched = (head == 1 && i == 10) || (i >= 30 && i < 40);
            const auto first = static_cast<size_t>((i * 2 + head) * 16);
            EXPECT_EQ(std::isnan(t.lse[static_cast<size_t>(head * 70 + i)]), touched) << head << " " << i;
            EXPECT_EQ(std::isnan(t.out[first]), touched) << head << " " << i;
            // A tile multiplies the key that is NaN by the zeros of earlier queries too: their dq may be NaN.
            if (touched) {
                EXPECT_TRUE(std::isnan(t.dq[first])) << head << " " << i;
            } else if (i >= 40) {
                EXPECT_TRUE(std::isfinite(t.dq[first])) << head << " " << i;
            }
        }
    }
    EXPECT_TRUE(std::isnan(t.dk[0])) << "key 0 is seen by queries that are NaN";
    EXPECT_TRUE(std::isfinite(t.dk[static_cast<size_t>(40 * 16)])) << "another sequence";
}

TEST_F(Attention, NoTokensAndNoSequences) {
    Tensors none({0}, 0, 2, 1, 16);
    attention(none.forward(), exec());
    attention_backward(none.backward(), exec());
    Tensors empty({0, 0, 0}, 5, 2, 1, 16);
    empty.out.assign(empty.out.size(), 7.0f);
    empty.dk.assign(empty.dk.size(), 7.0f);
    attention(empty.forward(), exec());
    attention_backward(empty.backward(), exec());
    EXPECT_EQ(empty.out, std::vector<float>(empty.out.size(), 7.0f));
    EXPECT_EQ(empty.dk, std::vector<float>(empty.dk.size(), 7.0f));
}

TEST_F(Attention, ADryRunCountsAndTouchesNothing) {
    void* nowhere = reinterpret_cast<void*>(64);
    const auto tokens = [&](int64_t heads) { return View(nowhere, DType::BF16, {8192, heads, 64}); };
    Cost total;
    Exec dry = exec();
    dry.dry = true;
    dry.cost = &total;
    const AttentionShape shape{
        .cu_seqlens = View(nowhere, DType::I32, {9}), .max_seqlen = 1024, .scale = 0.125f};
    const View lse(nowhere, DType::F32, {4, 8192});
    attention({.shape = shape, .q = tokens(4), .k = tokens(2), .v = tokens(2), .out = tokens(4), .lse = lse},
              dry);
    const double pairs = 8.0 * 4 * 1024 * 1025 / 2;
    EXPECT_DOUBLE_EQ(total.flops, 4.0 * 64 * pairs);
    attention_backward({.shape = shape,
                        .q = tokens(4),
                        .k = tokens(2),
                        .v = tokens(2),
                        .out = tokens(4),
                        .lse = lse,
                        .dout = tokens(4),
                        .dq = tokens(4),
                        .dk = tokens(2),
                        .dv = tokens(2)},
                       dry);
    EXPECT_DOUBLE_EQ(total.flops, 14.0 * 64 * pairs);
}

TEST_F(Attention, AWindowCutsTheCost) {
    Tensors t({0, 10}, 10, 1, 1, 1);
    AttentionArgs args = t.forward();
    args.shape.window = 3;
    EXPECT_DOUBLE_EQ(cost(args).flops, 4.0 * (1 + 2 + 8 * 3));
}

using AttentionDeathTest = Attention;

TEST_F(AttentionDeathTest, BrokenArguments) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    Tensors t({0, 3, 9}, 9, 4, 2, 8);
    AttentionArgs args = t.forward();
    args.shape.max_seqlen = 5;
    EXPECT_DEATH(attention(args, exec()), "max_seqlen 5");
    args = t.forward();
    t.cu_seqlens[2] = 10;
    EXPECT_DEATH(attention(args, exec()), "tokens 9");
    args.k = args.v = View(t.k.data(), DType::F32, {9, 3, 8});
    EXPECT_DEATH(attention(args, exec()), "4 query heads, 3 kv heads");
}

class Rope : public Attention {
  protected:
    static View heads(std::vector<float>& x) { return View(x.data(), DType::F32, {5, 2, 8}); }
    std::vector<int32_t> positions_ = {0, 1, 2, 3, 70000};
    View positions() { return View(positions_.data(), DType::I32, {5}); }
};

TEST_F(Rope, TurnsBackAndKeepsPositionZero) {
    std::vector<float> x(80);
    const Philox random(5, "rope test");
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random.normal(i));
    std::vector<float> turned(80), back(80);
    rope({.x = heads(x), .positions = positions(), .out = heads(turned)}, exec());
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(turned[i], x[i]);
    EXPECT_GT(std::abs(turned[16] - x[16]), 0.01f);
    rope({.x = heads(turned), .positions = positions(), .out = heads(back), .inverse = true}, exec());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 1e-6f);
}

TEST_F(Rope, NoTokens) {
    float nothing = 0;
    const View none(&nothing, DType::F32, {0, 2, 8});
    rope({.x = none, .positions = View(&nothing, DType::I32, {0}), .out = none}, exec());
}

using RopeDeathTest = Rope;

TEST_F(RopeDeathTest, BrokenArguments) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    std::vector<float> x(80);
    positions_[3] = -2;
    EXPECT_DEATH(rope({.x = heads(x), .positions = positions(), .out = heads(x)}, exec()), "position -2");
    const View odd(x.data(), DType::F32, {5, 2, 7});
    EXPECT_DEATH(rope({.x = odd, .positions = positions(), .out = odd}, exec()), "head_dim 7 must be even");
}

// One head over one sequence in bf16 whose values share a large part, as those of a trained model do: a
// score's gradient is then a small difference of two large numbers.
struct AlikeValues {
    static constexpr int64_t kTokens = 80, kDim = 16;
    std::vector<int32_t> cu_seqlens{0, kTokens};
    std::vector<BF16> q, k, v, dout, out, rest, dq, dk, dv;
    std::vector<float> lse = std::vector<float>(kTokens);
    std::vector<double> exact_dq, exact_dk;

    AlikeValues() {
        const Philox random(5, "alike values");
        uint64_t index = 0;
        const auto fill = [&](std::vector<BF16>& x, double common, double spread) {
            x.resize(kTokens * kDim);
            for (BF16& value : x)
                value = to_bf16(static_cast<float>(common + spread * random.normal(index++)));
        };
        fill(q, 0, 1);
        fill(k, 1, 0.5);
        fill(v, 4, 0.2);
        fill(dout, 0, 1);
        for (auto* x : {&out, &rest, &dq, &dk, &dv}) x->assign(kTokens * kDim, to_bf16(kNaN));
        exact();
    }
    static double dot(const std::vector<BF16>& a, int64_t i, const std::vector<BF16>& b, int64_t j) {
        double total = 0;
        for (int64_t c = 0; c < kDim; ++c) total += at(a, i, c) * at(b, j, c);
        return total;
    }
    static double at(const std::vector<BF16>& x, int64_t row, int64_t column) {
        return static_cast<double>(to_float(x[static_cast<size_t>(row * kDim + column)]));
    }
    void exact() {
        exact_dq.assign(kTokens * kDim, 0);
        exact_dk = exact_dq;
        for (int64_t i = 0; i < kTokens; ++i) {
            std::vector<double> p, dp;
            double sum = 0, mean = 0;
            for (int64_t j = 0; j <= i; ++j) {
                p.push_back(std::exp(dot(q, i, k, j) / std::sqrt(double{kDim})));
                dp.push_back(dot(dout, i, v, j));
                sum += p.back();
                mean += p.back() * dp.back();
            }
            for (size_t j = 0; j < p.size(); ++j) {
                const double ds = p[j] / sum * (dp[j] - mean / sum) / std::sqrt(double{kDim});
                for (size_t c = 0; c < kDim; ++c) {
                    exact_dq[static_cast<size_t>(i) * kDim + c] +=
                        ds * at(k, static_cast<int64_t>(j), static_cast<int64_t>(c));
                    exact_dk[j * kDim + c] += ds * at(q, i, static_cast<int64_t>(c));
                }
            }
        }
    }
    void run(bool with_rest, const Exec& exec) {
        const auto over = [](auto& x) { return View(x.data(), DType::BF16, {kTokens, 1, kDim}); };
        const AttentionShape shape{.cu_seqlens = View(cu_seqlens.data(), DType::I32, {2}),
                                   .max_seqlen = kTokens,
                                   .scale = 1.0f / std::sqrt(float{kDim})};
        const View out_rest = with_rest ? over(rest) : View(), log_sums(lse.data(), DType::F32, {1, kTokens});
        attention({shape, over(q), over(k), over(v), over(out), log_sums, out_rest}, exec);
        attention_backward({.shape = shape,
                            .q = over(q),
                            .k = over(k),
                            .v = over(v),
                            .out = over(out),
                            .lse = log_sums,
                            .dout = over(dout),
                            .dq = over(dq),
                            .dk = over(dk),
                            .dv = over(dv),
                            .out_rest = out_rest},
                           exec);
    }
    static double error(const std::vector<BF16>& x, const std::vector<double>& exact) {
        double difference = 0, norm = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
            const double d = static_cast<double>(to_float(x[i])) - exact[i];
            difference += d * d;
            norm += exact[i] * exact[i];
        }
        return std::sqrt(difference / norm);
    }
};

TEST_F(Attention, TheRestOfOutSparesGradientsItsRounding) {
    AlikeValues t;
    t.run(false, exec());
    const double plain_dq = AlikeValues::error(t.dq, t.exact_dq),
                 plain_dk = AlikeValues::error(t.dk, t.exact_dk);
    t.run(true, exec());
    // What is left is the rounding of dq and dk themselves.
    EXPECT_LT(AlikeValues::error(t.dq, t.exact_dq), 0x1p-8);
    EXPECT_LT(AlikeValues::error(t.dk, t.exact_dk), 0x1p-8);
    EXPECT_GT(plain_dq, 0.01);
    EXPECT_GT(plain_dk, 0.01);
    for (size_t i = 0; i < t.out.size(); ++i) {
        const float out = to_float(t.out[i]), rest = to_float(t.rest[i]);
        EXPECT_LE(std::abs(rest), std::abs(out) * 0x1p-8f) << i;
    }
}

}  // namespace
}  // namespace moebius::ops
