// How a grouped product of MX operands is laid out on Blackwell: tiles, tensor memory, shared memory, which
// codes and scales a stage has. The same code runs in the kernel and in tests on the CPU.
//
// Tiles of 128 × 256, 128 deep: a product 128 × 256 × 32 reads 12 KiB of shared memory in the 128 cycles that
// it takes, one of 128 × 128 would need all that shared memory can deliver. Two such sums are all 512 columns
// of tensor memory, and scales need some too. So two tiles' sums overlap by 64 columns: the epilogue reads
// those first, and the next tile is multiplied while it is at the other three quarters.
#pragma once

#include <cstdint>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm/sm90_tiles.h"
#include "moebius/ops/grouped_gemm_quantized/sm100_descriptors.h"

namespace moebius::ops::sm100 {

inline constexpr int kTileRows = 128, kTileColumns = 256, kTileDepth = 128, kStages = 4;
inline constexpr int kScaleBlock = 32, kStageBlocks = kTileDepth / kScaleBlock;

// Warps: four that finish tiles (a warp reads the lanes of tensor memory that its index modulo 4 says), one
// that loads codes, one that multiplies, one a stage that gathers its scales.
inline constexpr int kFinishers = 4, kLoader = kFinishers, kMultiplier = kLoader + 1,
                     kScaler = kMultiplier + 1;
inline constexpr int kThreads = (kScaler + kStages) * 32;

// Codes: three boxes of 128 × 128 a stage, A's and B's two. In tensor memory order 512 bytes of scales belong
// to each.
inline constexpr uint32_t kBoxBytes = 128 * 128, kScaleBytes = 128 * kStageBlocks;
inline constexpr int kBoxes = (kTileRows + kTileColumns) / 128;
inline constexpr uint32_t kStageBytes = kBoxes * kBoxBytes, kStageScaleBytes = kBoxes * kScaleBytes;

// Columns of tensor memory.
inline constexpr int kOverlap = 64, kScaleColumns = 4;  // of 128 rows' scales, 128 deep
inline constexpr int kSumColumns = 2 * kTileColumns - kOverlap;
static_assert(kSumColumns + kStages * kBoxes * kScaleColumns <= kTensorMemoryColumns);

// Of the block's tiles, counted without empty ones: where the sums of tile `number` begin, and where in them
// the overlap with the next tile's.
MOEBIUS_TILES_INLINE constexpr int sum_column(int number) {
    return number % 2 * (kTileColumns - kOverlap);
}
MOEBIUS_TILES_INLINE constexpr int overlap_column(int number) {
    return number % 2 == 0 ? kTileColumns - kOverlap : 0;
}
// Of a stage's box of codes: 0 A's, 1 and 2 B's. Each stage has columns of its own, since copies of scales
// are not ordered behind the products that read the last ones.
MOEBIUS_TILES_INLINE constexpr int scale_column(int stage, int box) {
    return kSumColumns + (stage * kBoxes + box) * kScaleColumns;
}

// Shared memory: codes; scales; staging of the finishing warps, 128 bytes of each of 32 rows; barriers; the
// address of tensor memory; row_ends, then first_blocks.
inline constexpr uint32_t kStagingRow = 128, kStagingBytes = 32 * kStagingRow;
inline constexpr uint32_t kScalesAt = kStages * kStageBytes;
inline constexpr uint32_t kStagingAt = kScalesAt + kStages * kStageScaleBytes;
inline constexpr uint32_t kBarriersAt = kStagingAt + kFinishers * kStagingBytes;
inline constexpr uint32_t kAddressAt = kBarriersAt + (3 * kStages + 2) * 8;
inline constexpr uint32_t kRowEndsAt = kAddressAt + 8;
constexpr uint32_t shared_bytes(int64_t experts) {
    return kRowEndsAt + 2 * static_cast<uint32_t>(experts) * 4;
}
static_assert(shared_bytes(sm90::kMostExperts) <= 227 * 1024, "more than a block may have");

// Row i of 128, block j of four, of a box's scales: one 32-bit word a row, rows 32 apart side by side. Tensor
// memory gets it as lane i % 32, column i / 32, byte j.
MOEBIUS_TILES_INLINE constexpr uint32_t scale_place(int i, int j) {
    return static_cast<uint32_t>(i % 32 * 16 + i / 32 * 4 + j);
}

// Compact scales of an operand as they lie: of line i (a row of A or B) and block p of the depth, one byte.
struct Scales {
    const uint8_t* data = nullptr;
    int64_t stride = 0;  // from line to line; of scales down the columns, from block to block
    int64_t expert = 0;  // from weight to weight
    int lines = 0;       // lines that exist
    bool words = false;  // four blocks of a line lie in one aligned word
};

// What stands for the scale of a block that does not exist, whose codes are zeros: 1.
inline constexpr uint32_t kNoScale = 127;

// The scales of four blocks of line `line`, the first one lowest; `from` is the first block's, of line 0, and
// `blocks` more exist from there on. Lines past the last count as that one: what is made of them is dropped.
template <bool kMnMajor>
MOEBIUS_TILES_INLINE uint32_t scale_word(const Scales& scales, const uint8_t* from, int line, int blocks) {
    const int64_t i = line < scales.lines ? line : scales.lines - 1;
    if (!kMnMajor && scales.words) return *reinterpret_cast<const uint32_t*>(from + i * scales.stride);
    uint32_t word = 0;
    for (int j = 0; j < kStageBlocks; ++j) {
        const int64_t at = kMnMajor ? j * scales.stride + i : i * scales.stride + j;
        word |= (j < blocks ? uint32_t{from[at]} : kNoScale) << 8 * j;
    }
    return word;
}

template <bool kAMnMajorValue, bool kBMnMajorValue, bool kReduceRowsValue, bool kPairedValue = false>
struct ProductTraits {
    static constexpr bool kAMnMajor = kAMnMajorValue, kBMnMajor = kBMnMajorValue;
    static constexpr bool kReduceRows = kReduceRowsValue;  // depth = the expert's rows
    // B's tile is 128 lines of the weight and 128 more `second` lines below: gates and ups of the same
    // columns.
    static constexpr bool kPaired = kPairedValue;
    static constexpr int kColumns = kPaired ? kTileColumns / 2 : kTileColumns;  // of the output in a tile

    MOEBIUS_TILES_INLINE static constexpr bool mn_major(int box) { return box == 0 ? kAMnMajor : kBMnMajor; }
};
using ForwardTraits = ProductTraits<false, false, false>;
using DgradTraits = ProductTraits<false, true, false>;
using WgradTraits = ProductTraits<true, true, true>;
using GateUpTraits = ProductTraits<false, false, false, true>;  // Forward of gates and ups

struct ProductShape {
    Scales scale_a, scale_b;
    sm90::TilePlan plan;
    int capacity = 0;               // rows of all experts at most
    int depth = 0;                  // of Forward and Dgrad
    int rows = 0;                   // of an expert's output, of Wgrad
    int second = kTileColumns / 2;  // how many lines of B the tile's second half begins behind its first
    uint32_t instruction = 0;       // mx_instruction
};

template <class T>
MOEBIUS_TILES_INLINE int depth_of(const ProductShape& shape, const sm90::TileUnit& unit) {
    return T::kReduceRows ? unit.row_end - unit.row_begin : shape.depth;
}
MOEBIUS_TILES_INLINE int stages_of(int depth) {
    return (depth + kTileDepth - 1) / kTileDepth;
}
// Blocks of 32 that begin before the end of a sum `depth` deep, of those from stage `stage` on.
MOEBIUS_TILES_INLINE int blocks_from(int depth, int stage) {
    return (depth + kScaleBlock - 1) / kScaleBlock - stage * kStageBlocks;
}
// The first line of a box: of A, a row of all rows or of the expert's output; of B, a column of the output.
template <class T>
MOEBIUS_TILES_INLINE int line_of(const ProductShape& shape, const sm90::TileUnit& unit, int box) {
    if (box == 0) return unit.row_unit * kTileRows + (T::kReduceRows ? 0 : unit.row_begin);
    return unit.column_unit * T::kColumns + (box == 1 ? 0 : shape.second);
}

// Where TMA takes a box from, innermost axis first.
struct Corner {
    int x, y, z;
};
template <class T>
MOEBIUS_TILES_INLINE Corner corner_of(const ProductShape& shape, const sm90::TileUnit& unit, int stage,
                                      int box) {
    const int line = line_of<T>(shape, unit, box);
    const int depth = stage * kTileDepth + (T::kReduceRows ? unit.row_begin : 0);
    const int expert = box == 0 || T::kReduceRows ? 0 : unit.expert;  // rows are all experts'
    return T::mn_major(box) ? Corner{line, depth, expert} : Corner{depth, line, expert};
}

// Of a box, the scales of a stage for lines lane, lane + 32, lane + 64 and lane + 96: 16 bytes, which lie at
// 16 · lane. `first_block`: of the expert's rows, where these are summed over.
template <class T, int kBox>
MOEBIUS_TILES_INLINE void gather_scales(uint32_t (&words)[4], const ProductShape& shape,
                                        const sm90::TileUnit& unit, int first_block, int stage, int lane) {
    constexpr bool kMnMajor = T::mn_major(kBox);
    const Scales& scales = kBox == 0 ? shape.scale_a : shape.scale_b;
    const int64_t block = stage * kStageBlocks + (T::kReduceRows ? first_block : 0);
    const int64_t expert = kBox == 0 || T::kReduceRows ? 0 : unit.expert;
    const uint8_t* from = scales.data + expert * scales.expert + block * (kMnMajor ? scales.stride : 1);
    const int blocks = blocks_from(depth_of<T>(shape, unit), stage);
    const int line = line_of<T>(shape, unit, kBox) + lane;
    for (int i = 0; i < 4; ++i) words[i] = scale_word<kMnMajor>(scales, from, line + 32 * i, blocks);
}

// Bytes in a box from one block of the depth to the next.
MOEBIUS_TILES_INLINE constexpr uint32_t block_step(bool mn_major) {
    return mn_major ? kScaleBlock * 128 : kScaleBlock;
}

// Rows that are summed over, of a stage of which `valid` are the expert's: up to here they count, as zeros
// from `valid` on, since 32 are multiplied at a time.
MOEBIUS_TILES_INLINE int counted_rows(int valid) {
    return valid >= kTileDepth ? kTileDepth : (valid + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
}

}  // namespace moebius::ops::sm100
