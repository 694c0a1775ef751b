// Shapes and places of quantized operands, against the layouts spelled out by hand.
#include <gtest/gtest.h>

#include <set>

#include "moebius/base/error.h"
#include "moebius/tensor/operand_part.h"
#include "moebius/tensor/quantized.h"

namespace moebius {
namespace {

constexpr MatrixShape kActivation{300, 160, 3, false};
constexpr MatrixShape kWeight{200, 160, 3, true};

OperandShapes shapes(ScaleKind kind, Direction direction, const MatrixShape& m,
                     ScaleLayout layout = ScaleLayout::Compact) {
    return operand_shapes(make_format(DType::F8E4M3, kind, direction, m.weight, true), direction, m, layout);
}

std::string text(const OperandShapes& s) {
    return s.data.str() + " " + s.scale.str() + (s.transposed ? " transposed" : "");
}

TEST(OperandShapes, Activations) {
    using enum ScaleKind;
    EXPECT_EQ(text(shapes(Block128, Direction::Row, kActivation)), "(300, 160) (2, 300)");
    EXPECT_EQ(text(shapes(Block128, Direction::Row, {301, 129, 1, false})), "(301, 129) (2, 304)");
    // 300 / 128 + 3 blocks of rows.
    EXPECT_EQ(text(shapes(Block128, Direction::Column, kActivation)), "(160, 640) (5, 160) transposed");
    EXPECT_EQ(text(shapes(Tensor, Direction::Row, kActivation)), "(300, 160) (3)");
    EXPECT_EQ(text(shapes(Tensor, Direction::Column, kActivation)), "(160, 640) (3) transposed");
    EXPECT_EQ(text(shapes(MX32, Direction::Row, kActivation)), "(300, 160) (300, 5)");
    EXPECT_EQ(text(shapes(MX32, Direction::Column, kActivation)), "(300, 160) (12, 160)");
    EXPECT_EQ(text(shapes(MX32, Direction::Row, kActivation, ScaleLayout::Padded)), "(300, 160) (640, 8)");
    EXPECT_EQ(text(shapes(MX32, Direction::Column, kActivation, ScaleLayout::Padded)),
              "(300, 160) (20, 256)");
    for (const Direction direction : {Direction::Row, Direction::Column})
        EXPECT_EQ(text(shapes(MX32, direction, kActivation, ScaleLayout::Swizzled)), "(300, 160) (5120)");
    EXPECT_EQ(shapes(MX32, Direction::Row, kActivation).scale_dtype, DType::F8E8M0);
    EXPECT_EQ(shapes(Block128, Direction::Row, kActivation).scale_dtype, DType::F32);
}

TEST(OperandShapes, Weights) {
    using enum ScaleKind;
    EXPECT_EQ(text(shapes(Block128, Direction::Row, kWeight)), "(3, 200, 160) (3, 2, 2)");
    EXPECT_EQ(text(shapes(Block128, Direction::Column, {300, 160, 3, true})),
              "(3, 160, 300) (3, 2, 3) transposed");
    EXPECT_EQ(text(shapes(Tensor, Direction::Column, kWeight)), "(3, 160, 200) (3) transposed");
    EXPECT_EQ(text(shapes(MX32, Direction::Row, kWeight)), "(3, 200, 160) (3, 200, 5)");
    EXPECT_EQ(text(shapes(MX32, Direction::Column, kWeight)), "(3, 200, 160) (3, 7, 160)");
    EXPECT_EQ(text(shapes(MX32, Direction::Row, kWeight, ScaleLayout::Padded)), "(3, 200, 160) (3, 256, 8)");
    EXPECT_EQ(text(shapes(MX32, Direction::Column, kWeight, ScaleLayout::Padded)),
              "(3, 200, 160) (3, 8, 256)");
    EXPECT_EQ(text(shapes(MX32, Direction::Column, kWeight, ScaleLayout::Swizzled)), "(3, 200, 160) (6144)");
}

TEST(OperandShapes, PaddedRowsAreABoundForEverySplit) {
    for (int64_t a = 0; a <= 300; ++a) {
        for (const int64_t b : {int64_t{0}, int64_t{1}, (300 - a) / 2, 300 - a}) {
            if (a + b > 300) continue;
            const int64_t c = 300 - a - b;
            const int64_t needed = round_up(a, 128) + round_up(b, 128) + round_up(c, 128);
            ASSERT_LE(needed, padded_rows(300, 3));
        }
    }
}

// The places of an operand's parts as the contract words them, expert e's rows being `sizes[e]`.
struct Places {
    std::vector<int64_t> sizes{100, 0, 130, 1};
    MatrixShape matrix{240, 160, 4, false};

    int64_t before(size_t e, int64_t block) const {
        int64_t blocks = 0;
        for (size_t i = 0; i < e; ++i) blocks += ceil_div(sizes[i], block);
        return blocks;
    }
    // f(part, expert, place) for every part.
    template <class F>
    void each(ScaleKind kind, Direction direction, ScaleLayout layout, F&& f) const {
        const View splits(const_cast<int64_t*>(sizes.data()), DType::I64, {4});
        const Format format = make_format(DType::F8E4M3, kind, direction, false, true);
        const OperandShapes s = operand_shapes(format, direction, matrix, layout);
        const Operand operand{.data = View(nullptr, DType::F8E4M3, s.data),
                              .scale = View(nullptr, s.scale_dtype, s.scale),
                              .format = format,
                              .transposed = s.transposed,
                              .layout = layout};
        EXPECT_EQ(direction_of(operand),
                  kind == ScaleKind::Tensor && !s.transposed ? Direction::Row : direction);
        std::set<int64_t> seen;
        for (const ExpertPart& part : expert_parts(matrix, splits)) {
            const OperandPart places(operand, matrix, part);
            f(part, static_cast<size_t>(part.expert), places);
            for (int64_t i = 0; i < part.rows; ++i) {
                for (int64_t c = 0; c < matrix.columns; ++c) {
                    ASSERT_LT(places.data(i, c), s.data.numel());
                    ASSERT_TRUE(seen.insert(places.data(i, c)).second) << "two elements in one place";
                    ASSERT_LT(places.scale(i, c), s.scale.numel());
                }
            }
        }
    }
};

TEST(OperandPlaces, Block128) {
    const Places p;
    p.each(ScaleKind::Block128, Direction::Row, ScaleLayout::Compact,
           [&](const ExpertPart& part, size_t, const OperandPart& places) {
               for (const int64_t i : {0, 57, 129})
                   for (const int64_t c : {0, 127, 128, 159}) {
                       EXPECT_EQ(places.data(i, c), (part.first + i) * 160 + c);
                       EXPECT_EQ(places.scale(i, c), c / 128 * 240 + part.first + i);
                   }
           });
    p.each(ScaleKind::Block128, Direction::Column, ScaleLayout::Compact,
           [&](const ExpertPart&, size_t e, const OperandPart& places) {
               for (const int64_t i : {0, 57, 129})
                   for (const int64_t c : {0, 127, 128, 159}) {
                       EXPECT_EQ(places.data(i, c), c * (240 / 128 + 4) * 128 + p.before(e, 128) * 128 + i);
                       EXPECT_EQ(places.scale(i, c), (p.before(e, 128) + i / 128) * 160 + c);
                   }
           });
}

TEST(OperandPlaces, MX32) {
    const Places p;
    p.each(ScaleKind::MX32, Direction::Row, ScaleLayout::Compact,
           [&](const ExpertPart& part, size_t, const OperandPart& places) {
               EXPECT_EQ(places.scale(3, 159), (part.first + 3) * 5 + 4);
           });
    p.each(ScaleKind::MX32, Direction::Column, ScaleLayout::Compact,
           [&](const ExpertPart& part, size_t e, const OperandPart& places) {
               EXPECT_EQ(places.data(3, 9), (part.first + 3) * 160 + 9) << "not transposed";
               EXPECT_EQ(places.scale(99, 9), (p.before(e, 32) + 3) * 160 + 9);
           });
    p.each(ScaleKind::MX32, Direction::Row, ScaleLayout::Padded,
           [&](const ExpertPart&, size_t e, const OperandPart& places) {
               EXPECT_EQ(places.scale(99, 159), (p.before(e, 128) * 128 + 99) * 8 + 4);
           });
    p.each(ScaleKind::MX32, Direction::Column, ScaleLayout::Padded,
           [&](const ExpertPart&, size_t e, const OperandPart& places) {
               EXPECT_EQ(places.scale(99, 159), (p.before(e, 128) * 4 + 3) * 256 + 159);
           });
    p.each(ScaleKind::MX32, Direction::Row, ScaleLayout::Swizzled,
           [&](const ExpertPart&, size_t e, const OperandPart& places) {
               // Row 99, block 4: tile (0, 1), row 3 of 32, the fourth 32, block 0 of 4.
               EXPECT_EQ(places.scale(99, 159), p.before(e, 128) * 2 * 512 + 512 + 3 * 16 + 3 * 4);
               EXPECT_EQ(places.scale(129, 0), p.before(e, 128) * 2 * 512 + 2 * 512 + 16);
           });
    p.each(ScaleKind::MX32, Direction::Column, ScaleLayout::Swizzled,
           [&](const ExpertPart& part, size_t e, const OperandPart& places) {
               // Column 159 is row 31 of the second tile of columns; block 3 down the rows.
               const int64_t across = ceil_div(part.rows, 128);
               EXPECT_EQ(places.scale(99, 159), p.before(e, 128) * 2 * 512 + across * 512 + 31 * 16 + 3);
           });
}

TEST(ExpertParts, RefuseWhatDoesNotFit) {
    int64_t sizes[] = {100, -1};
    EXPECT_THROW(expert_parts({100, 8, 2, false}, View(sizes, DType::I64, {2})), Error);
    sizes[1] = 1;
    EXPECT_THROW(expert_parts({100, 8, 2, false}, View(sizes, DType::I64, {2})), Error);
    EXPECT_EQ(expert_parts({101, 8, 2, false}, View(sizes, DType::I64, {2})).back().row_blocks, 1);
    EXPECT_EQ(expert_parts(kWeight, {}).back().first, 400) << "of a weight all experts have as many rows";
}

TEST(Quantized, OwnsWhatItKeeps) {
    const Device device = Device::cpu();
    HostArena pool;
    ThreadPool threads{1};
    const Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    {
        Quantized q = Quantized::empty("q", {.column = true, .matrix = kActivation}, exec);
        EXPECT_EQ(q.bytes(), 300 * 160 + 2 * 300 * 4 + 160 * 640 + 5 * 160 * 4);
        check_operand("row", q.row(), Direction::Row, kActivation);
        check_operand("column", q.column(), Direction::Column, kActivation);
        q.drop(Direction::Row);
        EXPECT_FALSE(q.row());
        EXPECT_EQ(q.bytes(), 160 * 640 + 5 * 160 * 4);
        EXPECT_GE(pool.report().current_bytes, q.bytes());
    }
    EXPECT_EQ(pool.report().current_bytes, 0);
}

TEST(QuantizedDeathTest, WrongOperandsAbort) {
    Operand operand;
    operand.format = make_format(DType::F8E4M3, ScaleKind::Block128, Direction::Column, false, true);
    EXPECT_DEATH(check_operand("x", operand, Direction::Row, kActivation), "blocks of 128 x 1");
}

}  // namespace
}  // namespace moebius
