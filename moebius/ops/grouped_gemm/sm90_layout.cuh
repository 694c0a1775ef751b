// What the parts of a grouped product on Hopper share: extents of a tile, shared memory, what a kernel and an
// epilogue are told.
#pragma once

#include <cstdint>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm/sm90_tiles.h"
#include "moebius/ptx/matrix.h"
#include "moebius/ptx/sync.h"
#include "moebius/ptx/tma.h"
#include "moebius/ptx/wgmma.h"

namespace moebius::ops::sm90 {

inline constexpr int kTileRows = 128, kTileColumns = 256, kTileDepth = 64, kStages = 3;
inline constexpr int kStepDepth = 16;                 // of one product on the tensor cores
inline constexpr int kGroups = 2;                     // warpgroups that multiply
inline constexpr int kGroupRows = 64;                 // of a warpgroup
inline constexpr int kThreads = (1 + kGroups) * 128;  // with three warps beside the loader
inline constexpr int kLead = 2;                       // stages
static_assert(kLead >= 2 && kLead < kStages && kTileRows == kGroups * kGroupRows);

inline constexpr uint32_t kRowBytes = kTileDepth * 2;  // of 64 bf16: the width of every box
inline constexpr uint32_t kABytes = kTileRows * kRowBytes, kBBytes = kTileColumns * kRowBytes;
inline constexpr uint32_t kStageBytes = kABytes + kBBytes;
inline constexpr uint32_t kBoxBytes = 64 * kRowBytes;  // 64 × 64 bf16, or 64 × 32 fp32
inline constexpr int kBoxes = kTileColumns / 64;       // of a warpgroup's tile in bf16, and of its staging
inline constexpr uint32_t kStagingBytes = kBoxes * kBoxBytes;

// Shared memory: stages, each A and B; staging of the warpgroups; barriers; row_ends and the number of units.
inline constexpr uint32_t kStagingAt = kStages * kStageBytes;
inline constexpr uint32_t kBarriersAt = kStagingAt + kGroups * kStagingBytes;
inline constexpr uint32_t kRowEndsAt = kBarriersAt + 3 * (kStages + kGroups) * 8;
constexpr uint32_t shared_bytes(int64_t experts) {
    return kRowEndsAt + static_cast<uint32_t>(experts + 1) * 4;
}
static_assert(shared_bytes(kMostExperts) <= 227 * 1024, "more than a block may have");

// A block whose epilogue has kFinishers warps that finish tiles, beside the loader, and of that as many
// warpgroups as it takes.
template <int kFinishers>
struct BlockShape {
    static constexpr int kLoaders = (1 + kFinishers + 3) / 4;  // warpgroups, before those that multiply
    static constexpr int kThreads = (kLoaders + kGroups) * 128;
    static_assert(kFinishers == 0 || (kFinishers >= 3 && kFinishers <= 7));
    // Registers of a thread.
    static constexpr int kLoading = kFinishers == 0 ? 40 : kLoaders == 1 ? 88 : 96;
    static constexpr int kMultiplying = kFinishers == 0 ? 232 : kLoaders == 1 ? 208 : 160;
    // Columns of a product on the tensor core. Of 512 threads ptxas counts the 128 registers at entry,
    // whatever they take later, and refuses 128 sums in one product (C7602).
    static constexpr int kProductColumns = kLoaders == 1 ? kTileColumns : kTileColumns / 2;
};

struct ProductArgs {
    CUtensorMap a,
        b;  // of three axes: (columns, rows, experts or 1); boxes of 64 columns, see box_rows_a and _b
    TilePlan plan;
    const void* split_sizes;  // (experts) int32 or int64
    int split_is_i64;
    int capacity;  // rows of all experts at most
    int depth;     // of Forward and Dgrad
    int second;    // kPairedB: the row of W[e] at which the tile's second half begins, for the first tile
};

template <bool kAMnMajorValue, bool kBMnMajorValue, bool kReduceRowsValue, bool kPairedBValue>
struct ProductTraits {
    static constexpr bool kAMnMajor = kAMnMajorValue, kBMnMajor = kBMnMajorValue;
    static constexpr bool kReduceRows = kReduceRowsValue;  // depth = the expert's rows
    // B's tile is 128 rows of the weight and 128 more `second` rows below: gates and ups of the same columns.
    static constexpr bool kPairedB = kPairedBValue;
    static constexpr int kColumns = kPairedB ? kTileColumns / 2 : kTileColumns;  // of the output in a tile
    static_assert(!(kPairedB && kBMnMajor));
    using Walk = TileWalk;
};

// Rows of a box of the tensor maps.
template <class T>
constexpr int box_rows_a() {
    return T::kAMnMajor ? kTileDepth : kTileRows;
}
template <class T>
constexpr int box_rows_b() {
    return T::kBMnMajor ? kTileDepth : T::kPairedB ? kTileColumns / 2 : kTileColumns;
}

// What an epilogue may be beside run():
//   kFetches    fetch() starts copies into the staging while the tile is multiplied; run() awaits them
//   kFinishers  if not 0, no run(): the rounded sums go to the staging, and finish() does the rest on so many
//               other warps while the next tile is multiplied
struct PlainEpilogue {
    static constexpr bool kFetches = false;
    static constexpr int kFinishers = 0;
};

// What an epilogue of a warpgroup is told: where its 64 × 256 sums belong.
struct Place {
    int group, warp, lane, thread;  // warp in the group, lane in the warp, thread in the group
    int barrier;                    // a named one, the group's own (128 threads)
    uint32_t staging;               // kStagingBytes, at a multiple of 1,024
    uint32_t fetched, fetches = 0;  // the barrier of fetch(), and how often it was used
    int expert, row, row_end;       // row: the first of the 64. row_end: past the last that exists
    int column;                     // the first
    bool empty;                     // the sum has no terms

    __device__ __forceinline__ uint32_t box(int index) const {
        return staging + static_cast<uint32_t>(index) * kBoxBytes;
    }
    // Until at most kPending groups of the group's stores still read the staging. By the whole group.
    template <int kPending>
    __device__ __forceinline__ void wait_staging() const {
        if (thread == 0) ptx::tma_wait_read<kPending>();
        ptx::named_barrier_wait(barrier, 128);  // partner: this group
    }
    // What the group has written is there for TMA, and for itself.
    __device__ __forceinline__ void show_staging() const {
        ptx::fence_async_shared();
        ptx::named_barrier_wait(barrier, 128);  // partner: this group
    }
    // One thread: boxes of `map`, of `width` columns each, into the staging.
    __device__ __forceinline__ void fetch_boxes(const CUtensorMap& map, int width, int columns) const {
        const int left = (columns - column + width - 1) / width, count = left < kBoxes ? left : kBoxes;
        ptx::tma_wait_read<0>();
        ptx::barrier_arrive_expect(fetched, static_cast<uint32_t>(count) * kBoxBytes);
        for (int i = 0; i < count; ++i) ptx::tma_load(box(i), &map, fetched, column + width * i, row, expert);
    }
    __device__ __forceinline__ void wait_fetched() {
        ptx::barrier_wait(fetched, fetches++ & 1);  // partner: TMA
    }
};

// A 64 × 64 block of bf16 in the staging, as TMA reads it with the 128-byte swizzle: 16-byte chunk c of row r
// lies at 128·r + 16·(c ^ r % 8).

// A thread's part of a 64 × 64 block, in pairs of columns: [2 · (column / 8) + row / 8 % 2], as wgmma gives
// it.
using StagedBlock = uint32_t[16];

// Columns 64·block … of a warpgroup's sums, rounded; `block` is a constant after unrolling.
__device__ __forceinline__ void round_block(StagedBlock& pairs, const float (&sums)[128], int block) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
        pairs[i] = ptx::pack_bf16(sums[32 * block + 2 * i], sums[32 * block + 2 * i + 1]);
}

// Where a thread's address for the i-th four 8×8 matrices of a warp's rows is: two chunks, 16 columns.
__device__ __forceinline__ uint32_t matrices_at(uint32_t box, const Place& place, int i) {
    const int row = 16 * place.warp + place.lane % 16;
    const int chunk = (2 * i + place.lane / 16) ^ (place.lane % 8);
    return box + static_cast<uint32_t>(row) * kRowBytes + static_cast<uint32_t>(chunk) * 16;
}
__device__ __forceinline__ void stage_block(uint32_t box, const StagedBlock& pairs, const Place& place) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        ptx::store_matrices(matrices_at(box, place, i), pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2],
                            pairs[4 * i + 3]);
    }
}
__device__ __forceinline__ void load_block(uint32_t box, StagedBlock& pairs, const Place& place) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        ptx::load_matrices(matrices_at(box, place, i), pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2],
                           pairs[4 * i + 3]);
    }
}

// What a finishing warp is told of a warpgroup's 64 × 256 rounded sums: in the staging, as boxes of 64 × 64.
struct StagedTile {
    int warp, lane;  // warp of the epilogue's kFinishers
    uint32_t staging;
    uint32_t staged, parity;  // the barrier
    int row, rows, column;    // the first row; how many exist, at most 64; the first column

    // Before that nothing is there, but what the epilogue reads elsewhere can be asked for.
    __device__ __forceinline__ void wait() const {
        ptx::barrier_wait(staged, parity);  // partner: the warpgroup that multiplies
    }
    // Columns 8·chunk … of a row: 16 bytes. Unsigned, an index costs fewer instructions.
    template <class Index>
    __device__ __forceinline__ uint32_t at(Index row_of_tile, Index chunk) const {
        return staging + static_cast<uint32_t>(chunk / 8) * kBoxBytes +
               static_cast<uint32_t>(row_of_tile) * kRowBytes +
               static_cast<uint32_t>(chunk % 8 ^ row_of_tile % 8) * 16;
    }
};

namespace detail {

// Ring positions: the index of a stage, and how often the ring has been passed.
struct RingPosition {
    uint32_t stage = 0, round = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            ++round;
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
    // full: operands are there (arrivals: 1 and the bytes). free: all warpgroups that read them are done.
    // raw: operands are there, rows past the end not yet zeroed.
    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + kBarriersAt + stage * 8; }
    __device__ __forceinline__ uint32_t free(uint32_t stage) const { return full(stage) + kStages * 8; }
    __device__ __forceinline__ uint32_t raw(uint32_t stage) const { return full(stage) + 2 * kStages * 8; }
    // Of a warpgroup's staging. staged: the sums are there. taken: the finishing warps have read them.
    // fetched: what the epilogue asked for is there.
    __device__ __forceinline__ uint32_t staged(int group) const {
        return base + kBarriersAt + (3 * kStages + static_cast<uint32_t>(group)) * 8;
    }
    __device__ __forceinline__ uint32_t taken(int group) const { return staged(group) + kGroups * 8; }
    __device__ __forceinline__ uint32_t fetched(int group) const { return staged(group) + 2 * kGroups * 8; }
};

}  // namespace detail
}  // namespace moebius::ops::sm90
