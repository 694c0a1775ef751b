// What the kernel of sm90_product.cuh is given, how shared memory is laid out, and the warp that fills it.
#pragma once

#include <cstdint>

#include "moebius/ops/grouped_gemm/sm90_layout.cuh"
#include "moebius/ptx/sync.h"
#include "moebius/ptx/tma.h"
#include "moebius/ptx/wgmma_fp8.h"

namespace moebius::ops::sm90::quantized {

inline constexpr int kTileRows = 128, kTileColumns = 256, kTileDepth = 128, kStages = 3;
inline constexpr int kGroupRows = 64, kHalfColumns = 128;  // of a warpgroup
inline constexpr int kGroups = 2;
inline constexpr int kFinishers = 3;  // warps beside the loader that finish tiles, where an epilogue wants it
inline constexpr int kThreads = (1 + kGroups) * 128;
inline constexpr int kLead = 1;  // stages, where groups take no turns
static_assert(kLead >= 1 && kLead < kStages);

inline constexpr uint32_t kRowBytes = kTileDepth;  // the width of every box of operands
inline constexpr uint32_t kABytes = kTileRows * kRowBytes, kBBytes = kTileColumns * kRowBytes;
inline constexpr uint32_t kStageBytes = kABytes + kBBytes;
// Boxes of scales begin at a multiple of four (TMA: of 16 bytes), so up to three before the tile's first row.
inline constexpr int kScaleRows = kTileRows + 4;
inline constexpr uint32_t kScaleABytes = kScaleRows * 4, kScaleBBytes = kTileColumns * 4;
inline constexpr uint32_t kScaleBAt = 640, kScaleBytes = kScaleBAt + kScaleBBytes;  // of a stage
static_assert(kScaleBAt >= kScaleABytes && kScaleBAt % 128 == 0 && kScaleBytes % 128 == 0);
// A warpgroup's staging, for what it stores, is the bf16 product's: kBoxes of kBoxBytes, 64 rows each.
static_assert(kGroupRows == sm90::kGroupRows && kTileColumns == sm90::kTileColumns);

// Shared memory: stages, each A and B; staging of the warpgroups; the stages' scales; barriers; what
// finishing warps tell each other; row_ends.
inline constexpr uint32_t kStagingAt = kStages * kStageBytes;
inline constexpr uint32_t kScalesAt = kStagingAt + kGroups * kStagingBytes;
inline constexpr uint32_t kBarriersAt = kScalesAt + kStages * kScaleBytes;
inline constexpr uint32_t kFinishingAt = kBarriersAt + (2 * kStages + 4 * kGroups) * 8;
inline constexpr uint32_t kFinishingBytes = 2 * kFinishers * 256;
static_assert(kFinishingAt % 16 == 0);
inline constexpr uint32_t kRowEndsAt = kFinishingAt + kFinishingBytes;
constexpr uint32_t shared_bytes(int64_t experts) {
    return kRowEndsAt + static_cast<uint32_t>(experts) * 4;
}
static_assert(shared_bytes(kMostExperts) <= 227 * 1024, "more than a block may have");

enum class Scaling {
    RowBlocks,     // A: 1 × 128, B: 128 × 128
    ColumnBlocks,  // A and B: blocks of 128 along the depth of one row
    Tensor         // one for A, one for B, an expert
};

struct ProductArgs {
    CUtensorMap a, b;  // (experts or 1, rows, depth): boxes of 128 codes, 128 rows of A, 256 of B
    CUtensorMap scale_a,
        scale_b;  // (1, blocks of depth, rows): as many rows; Tensor: not used, RowBlocks: a's
    const float *scales_a,
        *scales_b;  // Tensor: (experts). RowBlocks, b: (experts, blocks of columns, of depth)
    TilePlan plan;
    const void* split_sizes;  // (experts) int32 or int64
    int split_is_i64;
    int capacity;  // rows of all experts at most; Wgrad: padded rows
    int depth;     // of Forward and Dgrad
    int columns;
    int second;  // kPairedB: the row of W[e] at which the tile's second half begins, for the first tile
};

template <Scaling kScalingValue, bool kReduceRowsValue, bool kPromoteValue, ptx::Codes kAValue,
          ptx::Codes kBValue, bool kPairedBValue = false>
struct ProductTraits {
    static constexpr Scaling kScaling = kScalingValue;
    static constexpr bool kReduceRows = kReduceRowsValue;  // depth = the expert's rows
    static constexpr bool kPromote = kPromoteValue;        // false: sums stay in the tensor core
    static constexpr ptx::Codes kA = kAValue, kB = kBValue;
    static constexpr bool kScalesA = kScaling != Scaling::Tensor,
                          kScalesB = kScaling == Scaling::ColumnBlocks;
    static constexpr uint32_t kLoadBytes =
        kStageBytes + (kScalesA ? kScaleABytes : 0) + (kScalesB ? kScaleBBytes : 0);
    static constexpr bool kTurns = kScaling == Scaling::RowBlocks;  // see Turns
    // B's tile is 128 rows of the weight and 128 more `second` rows below: gates and ups of the same columns.
    static constexpr bool kPairedB = kPairedBValue;
    static constexpr int kColumns = kPairedB ? kHalfColumns : kTileColumns;  // of the output in a tile
    static_assert(!(kPairedB && kReduceRows));
    static_assert(kPromote || kScaling == Scaling::Tensor);
    static_assert((kScaling == Scaling::ColumnBlocks) <= kReduceRows);
    static_assert((kScaling == Scaling::RowBlocks) <= !kReduceRows);
};

namespace detail {

// Ring positions: the index of a stage, and the parity of how often the ring has been passed.
struct RingPosition {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Shared {
    uint32_t base;
    const int* row_ends;
    __device__ __forceinline__ uint32_t a(uint32_t stage) const { return base + stage * kStageBytes; }
    __device__ __forceinline__ uint32_t b(uint32_t stage) const { return a(stage) + kABytes; }
    __device__ __forceinline__ uint32_t staging(int group) const {
        return base + kStagingAt + static_cast<uint32_t>(group) * kStagingBytes;
    }
    __device__ __forceinline__ uint32_t scale_a(uint32_t stage) const {
        return base + kScalesAt + stage * kScaleBytes;
    }
    __device__ __forceinline__ uint32_t scale_b(uint32_t stage) const { return scale_a(stage) + kScaleBAt; }
    // full: operands are there (arrivals: 1 and the bytes). free: both warpgroups are done.
    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + kBarriersAt + stage * 8; }
    __device__ __forceinline__ uint32_t free(uint32_t stage) const { return full(stage) + kStages * 8; }
    // turn: see Turns.
    __device__ __forceinline__ uint32_t turn(int group) const {
        return full(2 * kStages) + static_cast<uint32_t>(group) * 8;
    }
    // Of a warpgroup's staging, where other warps finish tiles. staged: the sums are there. taken: they have
    // been read.
    __device__ __forceinline__ uint32_t staged(int group) const { return turn(group) + kGroups * 8; }
    __device__ __forceinline__ uint32_t taken(int group) const { return turn(group) + 2 * kGroups * 8; }
    // fetched: what the epilogue asked for is in the warpgroup's staging.
    __device__ __forceinline__ uint32_t fetched(int group) const { return turn(group) + 3 * kGroups * 8; }
};

template <class T>
__device__ __forceinline__ int stages_of(const ProductArgs& args, const TileUnit& unit) {
    const int depth = T::kReduceRows ? unit.row_end - unit.row_begin : args.depth;
    return (depth + kTileDepth - 1) / kTileDepth;
}

// Row ends of the experts, padded to blocks where they are reduced, by one warp: a lane sums a run of
// experts, the warp scans the sums.
template <class T>
__device__ __forceinline__ void scan_splits(const ProductArgs& args, int* row_ends) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int run = (args.plan.experts + 31) / 32, begin = lane * run;
    const auto size = [&](int e) -> int64_t {
        if (e >= args.plan.experts) return 0;
        int64_t value = args.split_is_i64 ? static_cast<const int64_t*>(args.split_sizes)[e]
                                          : int64_t{static_cast<const int32_t*>(args.split_sizes)[e]};
        value = value < 0 ? 0 : value < args.capacity ? value : args.capacity;
        return T::kReduceRows ? (value + kTileDepth - 1) / kTileDepth * kTileDepth : value;
    };
    int64_t sum = 0;
    for (int i = 0; i < run; ++i) sum += size(begin + i);
    int64_t before = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
    }
    before -= sum;
    for (int i = 0; i < run && begin + i < args.plan.experts; ++i) {
        before += size(begin + i);
        row_ends[begin + i] = static_cast<int>(before < args.capacity ? before : args.capacity);
    }
}

// One thread: fills the ring for all the block's tiles.
template <class T>
__device__ __forceinline__ void load_tiles(const ProductArgs& args, const Shared& shared) {
    TileWalk walk(shared.row_ends, args.plan, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    RingPosition ring;
    for (TileUnit unit; walk.next(unit);) {
        const int row = unit.row_unit * kTileRows + (T::kReduceRows ? 0 : unit.row_begin);
        const int column = unit.column_unit * T::kColumns, stages = stages_of<T>(args, unit);
        const int begin = T::kReduceRows ? unit.row_begin : 0;
#pragma unroll 1
        for (int i = 0; i < stages; ++i, ring.advance()) {
            const uint32_t stage = ring.stage, full = shared.full(stage);
            ptx::barrier_wait(shared.free(stage), ring.parity ^ 1);  // partner: the warps that multiply
            ptx::barrier_arrive_expect(full, T::kLoadBytes);
            const int at = begin + i * kTileDepth;
            ptx::tma_load(shared.a(stage), &args.a, full, at, row, 0);
            if constexpr (T::kPairedB) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    ptx::tma_load(shared.b(stage) + half * kBBytes / 2, &args.b, full, at,
                                  column + half * args.second, unit.expert);
            } else {
                ptx::tma_load(shared.b(stage), &args.b, full, at, column, T::kReduceRows ? 0 : unit.expert);
            }
            if constexpr (T::kScalesA)
                ptx::tma_load(shared.scale_a(stage), &args.scale_a, full, row & ~3, at / kTileDepth, 0);
            if constexpr (T::kScalesB)
                ptx::tma_load(shared.scale_b(stage), &args.scale_b, full, column, at / kTileDepth, 0);
        }
    }
}

}  // namespace detail

}  // namespace moebius::ops::sm90::quantized
