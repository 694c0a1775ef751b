// The fused MLP against the chain of ops that it replaces, bit for bit; the experts' edge cases; errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "moebius/base/error.h"
#include "moebius/base/philox.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"
#include "moebius/ops/grouped_mlp/grouped_mlp.h"

namespace moebius::ops {
namespace {

// Memory with a view; starts as NaN.
struct Block {
    std::vector<char> memory;
    View view;

    Block(DType dtype, Shape shape) : memory(static_cast<size_t>(bytes_of(dtype, shape.numel())), '\xFF') {
        view = View(memory.data(), dtype, shape);
    }
    void fill(const char* name, double spread, int64_t rows = -1) {
        const Philox random(5, name);
        const int64_t count = rows < 0 ? view.numel() : rows * (view.numel() / view.size(0));
        for (int64_t i = 0; i < count; ++i) {
            const auto value = static_cast<float>(spread * random.normal(static_cast<uint64_t>(i)));
            if (view.dtype == DType::BF16) {
                view.as<BF16>()[i] = to_bf16(value);
            } else {
                view.as<float>()[i] = value;
            }
        }
    }
};

struct Mlp {
    int64_t hidden, intermediate, capacity, rows;
    std::vector<int64_t> splits;
    GluOptions options;
    Block x, gate_up, down, scales, dy;

    Mlp(DType dtype, std::vector<int64_t> sizes, int64_t capacity, int64_t hidden, int64_t intermediate)
        : hidden(hidden),
          intermediate(intermediate),
          capacity(capacity),
          rows(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})),
          splits(std::move(sizes)),
          x(dtype, {capacity, hidden}),
          gate_up(dtype, {experts(), 2 * intermediate, hidden}),
          down(dtype, {experts(), hidden, intermediate}),
          scales(DType::F32, {capacity}),
          dy(dtype, {capacity, hidden}) {
        x.fill("x", 1, rows);
        gate_up.fill("gate_up", 2 / std::sqrt(static_cast<double>(hidden)));
        down.fill("down", 1 / std::sqrt(static_cast<double>(intermediate)));
        scales.fill("scales", 1, rows);
        dy.fill("dy", 1, rows);
    }
    int64_t experts() const { return static_cast<int64_t>(splits.size()); }
    View split_sizes() { return View(splits.data(), DType::I64, {experts()}); }
};

struct Result {
    Block c, y, dx, dgate_up, ddown, dscales;

    explicit Result(const Mlp& m, DType gradients = DType::F32)
        : c(m.x.view.dtype, {m.capacity, 2 * m.intermediate}),
          y(m.x.view.dtype, m.x.view.shape),
          dx(m.x.view.dtype, m.x.view.shape),
          dgate_up(gradients, m.gate_up.view.shape),
          ddown(gradients, m.down.view.shape),
          dscales(DType::F32, {m.capacity}) {}
    std::vector<std::pair<const char*, const Block*>> all() const {
        return {{"c", &c},         {"y", &y},
                {"dx", &dx},       {"dgate_up", &dgate_up},
                {"ddown", &ddown}, {"dscales", &dscales}};
    }
};

// `c`: r's own, or a copy of it that backward may overwrite.
GroupedMlpBackwardArgs backward_of(Mlp& m, Result& r, const View& c, float beta) {
    return {.options = m.options,
            .x = m.x.view,
            .c = c,
            .gate_up = m.gate_up.view,
            .down = m.down.view,
            .scales = m.scales.view,
            .split_sizes = m.split_sizes(),
            .dy = m.dy.view,
            .dx = r.dx.view,
            .dgate_up = r.dgate_up.view,
            .ddown = r.ddown.view,
            .dscales = r.dscales.view,
            .beta_gate_up = beta,
            .beta_down = beta,
            .overwrite_c = c.data != r.c.view.data};
}

void run_fused(Mlp& m, Result& r, const Exec& exec, float beta = 0) {
    grouped_mlp({.options = m.options,
                 .x = m.x.view,
                 .gate_up = m.gate_up.view,
                 .down = m.down.view,
                 .scales = m.scales.view,
                 .split_sizes = m.split_sizes(),
                 .c = r.c.view,
                 .y = r.y.view},
                exec);
    grouped_mlp_backward(backward_of(m, r, r.c.view, beta), exec);
}

void run_chain(Mlp& m, Result& r, const Exec& exec, float beta = 0) {
    const DType dtype = m.x.view.dtype;
    Block activation(dtype, {m.capacity, m.intermediate}), again(dtype, {m.capacity, m.intermediate});
    Block dactivation(dtype, {m.capacity, m.intermediate}), dc(dtype, {m.capacity, 2 * m.intermediate});
    const auto product = [&](GemmKind kind, const View& a, const View& b, const View& out) {
        grouped_gemm({.kind = kind,
                      .a = a,
                      .b = b,
                      .out = out,
                      .split_sizes = m.split_sizes(),
                      .beta = kind == GemmKind::Wgrad ? beta : 0},
                     exec);
    };
    product(GemmKind::Forward, m.x.view, m.gate_up.view, r.c.view);
    scaled_glu({.options = m.options,
                .x = r.c.view,
                .scales = m.scales.view,
                .split_sizes = m.split_sizes(),
                .y = activation.view},
               exec);
    product(GemmKind::Forward, activation.view, m.down.view, r.y.view);
    product(GemmKind::Dgrad, m.dy.view, m.down.view, dactivation.view);
    scaled_glu_backward({.options = m.options,
                         .x = r.c.view,
                         .scales = m.scales.view,
                         .split_sizes = m.split_sizes(),
                         .dy = dactivation.view,
                         .dx = dc.view,
                         .dscales = r.dscales.view,
                         .y = again.view},
                        exec);
    EXPECT_EQ(activation.memory, again.memory);
    product(GemmKind::Dgrad, dc.view, m.gate_up.view, r.dx.view);
    product(GemmKind::Wgrad, dc.view, m.x.view, r.dgate_up.view);
    product(GemmKind::Wgrad, m.dy.view, activation.view, r.ddown.view);
}

class GroupedMlp : public testing::Test {
  protected:
    GroupedMlp() : device_(Device::cpu_from_environment()), threads_(2) {}
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }

    void expect_same_bits(Mlp& m, DType gradients = DType::F32) {
        Result fused(m, gradients), chain(m, gradients);
        for (const float beta : {0.0f, 1.0f}) {  // the second adds to what the first left
            run_fused(m, fused, exec(), beta);
            run_chain(m, chain, exec(), beta);
            for (size_t i = 0; i < fused.all().size(); ++i) {
                EXPECT_EQ(fused.all()[i].second->memory, chain.all()[i].second->memory)
                    << fused.all()[i].first << ", beta " << beta << ", " << name(m.x.view.dtype);
            }
        }
        EXPECT_EQ(pool_.report().current_bytes, 0);
    }

    Device device_;
    HostArena pool_;
    ThreadPool threads_;
};

TEST_F(GroupedMlp, EqualsTheUnfusedChainBitForBit) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        // Depths of several blocks, an empty expert, one row, spare rows; odd sizes.
        Mlp m(dtype, {1, 300, 0, 77}, 400, 270, 150);
        expect_same_bits(m);
        m.options.interleave = 25;
        expect_same_bits(m);
        m.options = {.kind = GluKind::ClampedQuickGeGlu, .limit = 1.5f};
        expect_same_bits(m);
        // An expert of more rows than one chunk of packed rows.
        Mlp deep(dtype, {2500, 3, 2050}, 4553, 24, 17);
        expect_same_bits(deep);
    }
}

// Rounded once, also where an expert's rows lie in several waves, of which one ends an expert and begins
// another.
TEST_F(GroupedMlp, GradientsInBf16EqualThoseOfTheUnfusedChain) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        Mlp m(dtype, {1, 300, 0, 77}, 400, 270, 150);
        expect_same_bits(m, DType::BF16);
    }
    constexpr int64_t kIntermediate = 2048, kWave = (int64_t{64} << 20) / (2 * 3 * kIntermediate);
    Mlp waves(DType::BF16, {kWave + 600, 3, kWave + 1500, 20}, 2 * kWave + 2130, 16, kIntermediate);
    expect_same_bits(waves, DType::BF16);
}

TEST_F(GroupedMlp, LoopOfDenseProductsGivesTheBitsOfTheGroupedOne) {
    Mlp m(DType::BF16, {130, 0, 33, 2}, 170, 65, 40);
    Result grouped(m), loop(m);
    run_chain(m, grouped, exec());
    const ForcedVariants forced{{"grouped_gemm", "cpu_loop"}};
    Exec with = exec();
    with.forced = &forced;
    run_chain(m, loop, with);
    for (size_t i = 0; i < loop.all().size(); ++i)
        EXPECT_EQ(loop.all()[i].second->memory, grouped.all()[i].second->memory) << loop.all()[i].first;
}

// A published fault: gradients of an expert without rows were those of the step before.
TEST_F(GroupedMlp, EmptyExpertAfterAFullRunHasZeroGradients) {
    const std::vector<int64_t> splits = {162, 0, 2577, 446, 0, 83};
    for (const bool fused : {true, false}) {
        Mlp m(DType::F32, {500, 500, 500, 500, 500, 768}, 3268, 96, 36);
        Result r(m);
        const auto run = fused ? run_fused : run_chain;
        run(m, r, exec(), 0);
        m.splits = splits;
        run(m, r, exec(), 0);
        for (int64_t e = 0; e < m.experts(); ++e) {
            for (const View& gradient : {r.dgate_up.view.at(e), r.ddown.view.at(e)}) {
                double norm = 0;
                for (int64_t i = 0; i < gradient.numel(); ++i)
                    norm += static_cast<double>(gradient.as<float>()[i]) * gradient.as<float>()[i];
                if (splits[static_cast<size_t>(e)] == 0) {
                    EXPECT_EQ(norm, 0) << "expert " << e << (fused ? ", fused" : ", chain");
                } else {
                    EXPECT_GT(norm, 0) << "expert " << e;
                }
            }
        }
    }
}

// With beta = 1 an empty expert's part stays as it was, whatever it holds.
TEST_F(GroupedMlp, AccumulationLeavesAnEmptyExpertAlone) {
    Mlp m(DType::F32, {20, 0, 9}, 29, 33, 12);
    Result r(m);  // all NaN
    for (Block* block : {&r.dgate_up, &r.ddown}) {
        for (const int64_t e : {0, 2}) {
            const View part = block->view.at(e);
            std::memset(part.data, 0, static_cast<size_t>(part.bytes()));
        }
    }
    run_fused(m, r, exec(), 1);
    for (const Block* block : {&r.dgate_up, &r.ddown}) {
        const View empty = block->view.at(1), full = block->view.at(2);
        for (int64_t i = 0; i < empty.numel(); ++i) {
            EXPECT_NE(empty.as<float>()[i], empty.as<float>()[i]);
            EXPECT_TRUE(std::isfinite(full.as<float>()[i]));
        }
    }
}

// All rows to one expert, or spread: within the stated bound, which 24,000 rows would exceed if their
// gradients were kept whole.
TEST_F(GroupedMlp, ScratchIsBoundedWhateverTheSplits) {
    constexpr int64_t kRows = 24000, kHidden = 128, kIntermediate = 192;
    for (const std::vector<int64_t>& splits :
         {std::vector<int64_t>{5000, 5000, 5000, 5000}, {0, 0, kRows, 0}}) {
        Mlp m(DType::BF16, splits, kRows, kHidden, kIntermediate);
        Result r(m);
        HostArena pool;
        Exec with = exec();
        with.pool = &pool;
        run_fused(m, r, with);
        EXPECT_LE(pool.report().peak_bytes, (int64_t{64} << 20) + (int64_t{4} << 20));
        EXPECT_GT(kRows * 4 * (3 * kIntermediate + 2 * kHidden), int64_t{65} << 20);
    }
}

TEST_F(GroupedMlp, WritesNothingWithoutRows) {
    Mlp m(DType::F32, {0, 0}, 5, 8, 4);
    Result r(m);
    run_fused(m, r, exec());
    for (const Block* block : {&r.c, &r.y, &r.dx, &r.dscales}) {
        for (const char byte : block->memory) EXPECT_EQ(byte, '\xFF');
    }
    for (const char byte : r.dgate_up.memory) EXPECT_EQ(byte, 0);
    for (const char byte : r.ddown.memory) EXPECT_EQ(byte, 0);
}

std::string message_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing was thrown";
}

TEST_F(GroupedMlp, ErrorsNameTheNumbers) {
    Mlp m(DType::F32, {3, 4}, 10, 8, 6);
    Result r(m);
    const auto fused = [&] { run_fused(m, r, exec()); };
    m.splits = {3, -4};
    EXPECT_NE(message_of(fused).find("split_sizes[1] = -4 is negative"), std::string::npos);
    m.splits = {8, 4};
    EXPECT_NE(message_of(fused).find("more than the 10 rows"), std::string::npos);
    m.splits = {int64_t{1} << 62, int64_t{1} << 62};
    EXPECT_NE(message_of(fused).find("more than the 10 rows"), std::string::npos);
    m.splits = {3, 4};
    m.options.interleave = 4;
    EXPECT_NE(message_of(fused).find("glu_interleave_size = 4 does not divide"), std::string::npos);
    m.options.interleave = 0;
    run_fused(m, r, exec());
    // C goes, and nothing else may lie in it: here the last row of dy, the first of dx.
    Block copy(DType::F32, {30, 12});
    std::memcpy(copy.memory.data(), r.c.memory.data(), r.c.memory.size());
    GroupedMlpBackwardArgs over = backward_of(m, r, copy.view.rows(0, 10), 0);
    const std::vector<char> kept = r.dx.memory;
    grouped_mlp_backward(over, exec());
    EXPECT_EQ(r.dx.memory, kept);
    over.dy = View(copy.view.as<float>() + 9 * 12 + 11, DType::F32, {10, 8});
    EXPECT_NE(message_of([&] { grouped_mlp_backward(over, exec()); }).find("c may be overwritten, but dy"),
              std::string::npos);
    over.dy = m.dy.view;
    over.c = copy.view.rows(10, 10);
    over.dx = View(copy.view.as<float>() + 10 * 12 - 10 * 8 + 1, DType::F32, {10, 8});
    EXPECT_NE(message_of([&] { grouped_mlp_backward(over, exec()); }).find("c may be overwritten, but dx"),
              std::string::npos);
    over.dx = View(copy.view.as<float>() + 10 * 12 - 10 * 8, DType::F32, {10, 8});  // right before C
    grouped_mlp_backward(over, exec());
    m.down.view = m.down.view.columns(0, 5);
    EXPECT_NE(message_of(fused).find("shapes don't fit: x (10, 8)"), std::string::npos);
    EXPECT_NE(message_of([&] {
                  grouped_gemm(
                      {.a = m.x.view, .b = m.gate_up.view, .out = r.y.view, .split_sizes = m.split_sizes()},
                      exec());
              }).find("grouped_gemm: shapes don't fit"),
              std::string::npos);
}

}  // namespace
}  // namespace moebius::ops
