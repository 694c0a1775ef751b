// A plain model of what the PTX ISA says of TMA, of copies of scales and of Blackwell's tensor cores, and
// whole grouped products computed on it from the descriptors, boxes, words of scales and places in memory
// that the kernel of grouped_gemm_quantized's sm100 uses.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "moebius/base/float8.h"
#include "moebius/base/philox.h"
#include "moebius/ops/grouped_gemm_quantized/sm100_layout.h"

namespace moebius::ops::sm100 {

// ---- A model of the machine ------------------------------------------------------------------------------

inline double number_of(uint8_t code, bool e5m2) {
    const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    const int exponent = (code & 127) >> mantissa, digits = code & ((1 << mantissa) - 1);
    const double value = exponent == 0 ? std::ldexp(digits, 1 - bias - mantissa)
                                       : std::ldexp(digits + (1 << mantissa), exponent - bias - mantissa);
    return code & 128 ? -value : value;
}

// Swizzling by 128 bytes: address bits 4–6 are exchanged with what bits 7–9 say.
inline uint32_t swizzle(uint32_t address) {
    return address ^ (address >> 7 & 7) << 4;
}

struct Descriptor {
    uint32_t address, leading, stride;
    bool swizzled;

    explicit Descriptor(uint64_t bits)
        : address(static_cast<uint32_t>(bits & 0x3FFF) << 4),
          leading(static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4),
          stride(static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4),
          swizzled(bits >> 61 == 2) {
        EXPECT_EQ(bits >> 46 & 7, 1u);
        EXPECT_EQ(bits >> 49 & 0xFFF, 0u);
    }
};

// A tensor of bytes as TMA sees it.
struct Map {
    const uint8_t* data;
    int64_t columns, rows, experts;
};

struct Machine {
    std::vector<uint8_t> memory = std::vector<uint8_t>(227 * 1024, 0x7F);  // NaN
    uint8_t* shared = memory.data();
    std::vector<uint32_t> tensor =
        std::vector<uint32_t>(kTensorMemoryLanes * kTensorMemoryColumns, 0x7FC00000u);

    uint32_t& cell(int lane, int column) {
        return tensor[static_cast<size_t>(lane * kTensorMemoryColumns + column)];
    }

    // A box of 128 × 128; what is outside the tensor reads as zero.
    void load_box(uint32_t to, const Map& map, const Corner& corner) {
        for (int row = 0; row < 128; ++row) {
            for (int column = 0; column < 128; ++column) {
                const int64_t x = corner.x + column, y = corner.y + row;
                const bool inside = x < map.columns && y < map.rows && corner.z < map.experts;
                shared[swizzle(to + static_cast<uint32_t>(row * 128 + column))] =
                    inside ? map.data[(corner.z * map.rows + y) * map.columns + x] : uint8_t{0};
            }
        }
    }

    // tcgen05.cp.32x128b.warpx4
    void copy_scales(int to, uint64_t from) {
        const Descriptor d(from);
        ASSERT_FALSE(d.swizzled);
        for (int row = 0; row < 32; ++row) {
            const uint32_t at =
                d.address + static_cast<uint32_t>(row / 8) * d.stride + static_cast<uint32_t>(row % 8) * 16;
            for (int column = 0; column < 4; ++column) {
                uint32_t word;
                std::memcpy(&word, &shared[at + static_cast<uint32_t>(column) * 4], 4);
                for (int quarter = 0; quarter < 4; ++quarter) cell(32 * quarter + row, to + column) = word;
            }
        }
    }

    // The code in a row (of M or N) and place along K, by the canonical layouts of 128-byte swizzling.
    uint8_t code(const Descriptor& d, bool mn_major, int line, int k) const {
        const auto u = [](int value) { return static_cast<uint32_t>(value); };
        const uint32_t offset =
            mn_major ? u(line % 128) + u(line / 128) * d.leading + u(k % 8) * 128 + u(k / 8) * d.stride
                     : u(line % 8) * 128 + u(line / 8) * d.stride + u(k);
        return shared[swizzle(d.address + offset)];
    }

    // tcgen05.mma.kind::mxf8f6f4.block_scale.scale_vec::1X, told by the descriptors' bits alone.
    void multiply(int sums, uint64_t a, uint64_t b, uint32_t bits, int scale_a, int scale_b, bool add) {
        const auto field = [&](int first, int count) {
            return static_cast<int>(bits >> first & ((1u << count) - 1));
        };
        const int m = field(27, 2) * 128, n = field(17, 6) * 8;
        ASSERT_EQ(field(23, 1), 1);
        const auto operand = [&](uint64_t descriptor, int lines, int scale, int place, bool e5m2,
                                 bool mn_major) {
            const Descriptor d(descriptor);
            EXPECT_TRUE(d.swizzled);
            std::vector<float> values;
            for (int line = 0; line < lines; ++line) {
                const uint32_t word = cell(line % 32, scale + line / 32);
                const int exponent = static_cast<int>(word >> 8 * place & 0xFF) - 127;
                for (int k = 0; k < 32; ++k) {
                    values.push_back(static_cast<float>(
                        std::ldexp(number_of(code(d, mn_major, line, k), e5m2), exponent)));
                }
            }
            return values;
        };
        const std::vector<float> left = operand(a, m, scale_a, field(29, 2), field(7, 3) == 1, field(15, 1));
        const std::vector<float> right = operand(b, n, scale_b, field(4, 2), field(10, 3) == 1, field(16, 1));
        for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
                float sum = add ? std::bit_cast<float>(cell(i, sums + j)) : 0.0f;
                for (size_t k = 0; k < 32; ++k)
                    sum += left[static_cast<size_t>(i) * 32 + k] * right[static_cast<size_t>(j) * 32 + k];
                cell(i, sums + j) = std::bit_cast<uint32_t>(sum);
            }
        }
    }
};

// ---- Products --------------------------------------------------------------------------------------------

// Rows 0 … of experts one after the other, codes and compact scales of what lies as (rows, columns).
struct Matrix {
    int64_t experts, rows, columns;  // experts: of a weight, else 1
    bool e5m2;
    std::vector<uint8_t> codes, scales;
    std::vector<int64_t> scale_rows;  // of scales down the columns: the row of scales of a row

    Map map() const { return {codes.data(), columns, rows, experts}; }
};

struct Problem {
    std::vector<int> sizes = {300, 0, 17, 128, 1};
    int capacity = 450, n = 144, k = 272;
    int total() const { return std::accumulate(sizes.begin(), sizes.end(), 0); }
    int experts() const { return static_cast<int>(sizes.size()); }
};

template <class T>
class Simulation {
  public:
    explicit Simulation(const Problem& p) : p_(p) {
        int end = 0, blocks = 0;
        for (const int size : p.sizes) {
            row_ends_.push_back(end += size);
            first_blocks_.push_back(blocks);
            blocks += (size + 31) / 32;
        }
        blocks_ = blocks;
        constexpr bool kForward = !T::kBMnMajor;
        a_ = matrix(1, p.capacity, kForward ? p.k : p.n, T::kAMnMajor, true, 11);
        b_ = T::kReduceRows ? matrix(1, p.capacity, p.k, true, false, 12)
                            : matrix(p.experts(), p.n, p.k, T::kBMnMajor, false, 12);
        shape_.scale_a = scales(a_, T::kAMnMajor);
        shape_.scale_b = scales(b_, T::kBMnMajor);
        shape_.capacity = p.capacity;
        shape_.depth = kForward ? p.k : p.n;
        shape_.rows = p.n;
        shape_.instruction =
            mx_instruction({.a_is_e5m2 = true, .a_is_mn_major = T::kAMnMajor, .b_is_mn_major = T::kBMnMajor});
        columns_ = kForward ? p.n : p.k;
        if (T::kPaired) shape_.second = columns_ / 2;
        sm90::TilePlan& plan = shape_.plan;
        plan.experts = p.experts();
        plan.unit_rows = T::kReduceRows ? 0 : kTileRows;
        plan.row_units = (p.n + kTileRows - 1) / kTileRows;
        const int across = T::kPaired ? columns_ / 2 : columns_;
        plan.column_units = (across + T::kColumns - 1) / T::kColumns;
        plan.band = plan.column_units;
        out_.assign(static_cast<size_t>((T::kReduceRows ? p.experts() * p.n : p.capacity) * columns_),
                    kNever);
    }

    // As two blocks would: each tile's overlap is read before the next tile is multiplied, the rest after.
    void run() {
        for (int block = 0; block < 2; ++block) {
            Machine machine;
            sm90::TileWalk walk(row_ends_.data(), shape_.plan, block, 2);
            int number = 0;
            uint32_t stage = 0;
            sm90::TileUnit before;
            for (sm90::TileUnit unit; walk.next(unit);) {
                const int depth = depth_of<T>(shape_, unit);
                if (depth == 0) {
                    for (int i = 0; i < kTileRows; ++i) {
                        for (int j = 0; j < kTileColumns; ++j) store(unit, i, j, 0.0f);
                    }
                    continue;
                }
                for (int i = 0; i < stages_of(depth); ++i) {
                    fill_stage(machine, unit, i, stage);
                    multiply_stage(machine, unit, i, stage, number);
                    stage = (stage + 1) % kStages;
                }
                if (number > 0) {
                    const int overlap = overlap_column(number - 1);
                    drain(machine, before, number - 1, 0, overlap);
                    drain(machine, before, number - 1, overlap + kOverlap, kTileColumns);
                }
                drain(machine, unit, number, overlap_column(number), overlap_column(number) + kOverlap);
                before = unit;
                ++number;
            }
            if (number > 0) {
                const int overlap = overlap_column(number - 1);
                drain(machine, before, number - 1, 0, overlap);
                drain(machine, before, number - 1, overlap + kOverlap, kTileColumns);
            }
        }
    }

    // `before`: what was there and is added to.
    void compare(double before = 0) const {
        double norm = 0;
        for (int e = 0; e < p_.experts(); ++e) {
            const int begin = e == 0 ? 0 : row_ends_[static_cast<size_t>(e) - 1];
            const int size = p_.sizes[static_cast<size_t>(e)];
            const int rows = T::kReduceRows ? p_.n : size;
            for (int i = 0; i < rows; ++i) {
                for (int j = 0; j < columns_; ++j) {
                    const double sum = this->sum(e, i, j);
                    const size_t at =
                        static_cast<size_t>((T::kReduceRows ? e * p_.n + i : begin + i) * columns_ + j);
                    ASSERT_EQ(static_cast<double>(out_[at]), before + sum)
                        << "expert " << e << ", row " << i << ", column " << j;
                    norm += sum * sum;
                }
            }
        }
        EXPECT_GT(norm, 0);
        if (T::kReduceRows) return;
        for (size_t at = static_cast<size_t>(p_.total() * columns_); at < out_.size(); ++at)
            ASSERT_EQ(out_[at], kNever) << "past the last row";
    }

    // Row i, column j of an expert's output.
    double sum(int e, int i, int j) const {
        const int begin = e == 0 ? 0 : row_ends_[static_cast<size_t>(e) - 1];
        const int depth = T::kReduceRows ? p_.sizes[static_cast<size_t>(e)] : shape_.depth;
        double sum = 0;
        for (int q = 0; q < depth; ++q) {
            sum += T::kReduceRows ? value(a_, true, 0, begin + q, i) * value(b_, true, 0, begin + q, j)
                   : T::kBMnMajor ? value(a_, false, 0, begin + i, q) * value(b_, true, e, q, j)
                                  : value(a_, false, 0, begin + i, q) * value(b_, false, e, j, q);
        }
        return sum;
    }

    // For a kernel in run()'s place.
    const ProductShape& shape() const { return shape_; }
    Map map_a() const { return a_.map(); }
    Map map_b() const { return b_.map(); }
    float* out() { return out_.data(); }
    int columns() const { return columns_; }
    // Of the sums, where out has never been written.
    static constexpr float kNever = 1e30f;

  private:
    // Codes of small integers, so that all sums are exact; what no expert has, codes and scales, is NaN.
    Matrix matrix(int64_t experts, int64_t rows, int64_t columns, bool down, bool e5m2, uint64_t seed) const {
        Matrix m{.experts = experts,
                 .rows = rows,
                 .columns = columns,
                 .e5m2 = e5m2,
                 .codes = {},
                 .scales = {},
                 .scale_rows = {}};
        const Philox random(seed, "sm100");
        uint64_t drawn = 0;
        const bool weight = experts > 1;
        for (int64_t i = 0; i < experts * rows * columns; ++i) {
            const auto number = static_cast<float>(static_cast<int>(random.below(drawn++, 7)) - 3);
            const bool exists = weight || i / columns < p_.total();
            m.codes.push_back(!exists ? uint8_t{0x7F}
                              : e5m2  ? to_f8e5m2(number).bits
                                      : to_f8e4m3(number).bits);
        }
        if (!down) {
            m.scales.resize(static_cast<size_t>(experts * rows * ((columns + 31) / 32)));
        } else {
            m.scales.resize(static_cast<size_t>((weight ? experts * ((rows + 31) / 32) : blocks_) * columns));
            if (!weight) {
                for (size_t e = 0; e < p_.sizes.size(); ++e) {
                    for (int i = 0; i < p_.sizes[e]; ++i) m.scale_rows.push_back(first_blocks_[e] + i / 32);
                }
            }
        }
        for (size_t i = 0; i < m.scales.size(); ++i)
            m.scales[i] = static_cast<uint8_t>(125 + random.below(drawn++, 5));
        return m;
    }
    static Scales scales(const Matrix& m, bool down) {
        const int64_t stride = down ? m.columns : (m.columns + 31) / 32;
        return {.data = m.scales.data(),
                .stride = stride,
                .expert = m.experts > 1 ? (down ? (m.rows + 31) / 32 : m.rows) * stride : 0,
                .lines = static_cast<int>(down ? m.columns : m.rows),
                .words = stride % 4 == 0};
    }
    static double value(const Matrix& m, bool down, int64_t expert, int64_t row, int64_t column) {
        const int64_t blocks = (m.columns + 31) / 32;
        const int64_t at = !down ? (expert * m.rows + row) * blocks + column / 32
                           : m.scale_rows.empty()
                               ? (expert * ((m.rows + 31) / 32) + row / 32) * m.columns + column
                               : m.scale_rows[static_cast<size_t>(row)] * m.columns + column;
        const uint8_t code = m.codes[static_cast<size_t>((expert * m.rows + row) * m.columns + column)];
        return std::ldexp(number_of(code, m.e5m2), m.scales[static_cast<size_t>(at)] - 127);
    }

    static uint32_t box_at(uint32_t stage, int box) {
        return stage * kStageBytes + static_cast<uint32_t>(box) * kBoxBytes;
    }
    static uint32_t scales_at(uint32_t stage, int box) {
        return kScalesAt + stage * kStageScaleBytes + static_cast<uint32_t>(box) * kScaleBytes;
    }

    template <int kBox>
    void fill_scales(Machine& machine, const sm90::TileUnit& unit, int i, uint32_t stage) const {
        for (int lane = 0; lane < 32; ++lane) {
            uint32_t words[4];
            gather_scales<T, kBox>(words, shape_, unit, first_blocks_[static_cast<size_t>(unit.expert)], i,
                                   lane);
            std::memcpy(&machine.shared[scales_at(stage, kBox) + static_cast<uint32_t>(lane) * 16], words,
                        16);
        }
    }
    void fill_stage(Machine& machine, const sm90::TileUnit& unit, int i, uint32_t stage) const {
        for (int box = 0; box < kBoxes; ++box) {
            machine.load_box(box_at(stage, box), box == 0 ? a_.map() : b_.map(),
                             corner_of<T>(shape_, unit, i, box));
        }
        fill_scales<0>(machine, unit, i, stage);
        fill_scales<1>(machine, unit, i, stage);
        fill_scales<2>(machine, unit, i, stage);
        if (!T::kReduceRows) return;
        const int valid = depth_of<T>(shape_, unit) - i * kTileDepth;
        for (int row = valid; row < counted_rows(valid); ++row) {
            for (int box = 0; box < kBoxes; ++box)
                std::memset(&machine.shared[box_at(stage, box) + static_cast<uint32_t>(row) * 128], 0, 128);
        }
    }
    void multiply_stage(Machine& machine, const sm90::TileUnit& unit, int i, uint32_t stage,
                        int number) const {
        for (int box = 0; box < kBoxes; ++box)
            machine.copy_scales(scale_column(static_cast<int>(stage), box),
                                scale_rows(scales_at(stage, box)));
        const auto codes = [](bool mn_major, uint32_t address) {
            return mn_major ? mn_major_codes(address, kBoxBytes) : k_major_codes(address);
        };
        const uint64_t a = codes(T::kAMnMajor, box_at(stage, 0)), b = codes(T::kBMnMajor, box_at(stage, 1));
        const int blocks = std::min(kStageBlocks, blocks_from(depth_of<T>(shape_, unit), i));
        for (int k = 0; k < blocks; ++k) {
            machine.multiply(sum_column(number), shared_descriptor_at(a, step(T::kAMnMajor, k)),
                             shared_descriptor_at(b, step(T::kBMnMajor, k)),
                             mx_instruction_at(shape_.instruction, k),
                             scale_column(static_cast<int>(stage), 0),
                             scale_column(static_cast<int>(stage), 1), i > 0 || k > 0);
        }
    }
    static uint32_t step(bool mn_major, int k) { return static_cast<uint32_t>(k) * block_step(mn_major); }

    void drain(Machine& machine, const sm90::TileUnit& unit, int number, int from, int to) {
        for (int lane = 0; lane < kTileRows; ++lane) {
            for (int j = from; j < to; ++j)
                store(unit, lane, j, std::bit_cast<float>(machine.cell(lane, sum_column(number) + j)));
        }
    }
    void store(const sm90::TileUnit& unit, int lane, int j, float sum) {
        const int row = line_of<T>(shape_, unit, 0) + lane;
        // Of gates and ups the tile's halves belong to the halves of a row.
        const int half = T::kPaired ? j / T::kColumns : 0;
        const int inner = unit.column_unit * T::kColumns + j - half * T::kColumns;
        const int column = inner + half * shape_.second;
        if (row >= (T::kReduceRows ? shape_.rows : unit.row_end) || inner >= columns_ / (T::kPaired ? 2 : 1))
            return;
        const int line = T::kReduceRows ? unit.expert * shape_.rows + row : row;
        float& to = out_[static_cast<size_t>(line * columns_ + column)];
        EXPECT_EQ(to, kNever) << "written twice";
        to = sum;
    }

    Problem p_;
    std::vector<int> row_ends_, first_blocks_;
    int blocks_ = 0, columns_ = 0;
    Matrix a_, b_;
    ProductShape shape_;
    std::vector<float> out_;
};

}  // namespace moebius::ops::sm100
