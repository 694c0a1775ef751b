// What the parts of an MX product on Hopper share: shared memory, its rings, what the kernel is told.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_store.cuh"
#include "moebius/ptx/widen.h"

namespace moebius::ops::sm90::mx {

inline constexpr int kConverters = 4;  // warps
inline constexpr int kMultipliers = kGroups * 4;
// A thread's registers. A block has what it starts with: of 384 threads 168 each.
inline constexpr int kConverterRegisters = 88, kMultiplierRegisters = 208;
static_assert(kConverterRegisters + kGroups * kMultiplierRegisters <= 3 * 168, "taking the rest would hang");
inline constexpr int kBlockThreads =
    (2 + kGroups) * 128;  // loaders, converters, the warpgroups that multiply

// Stages of B as bf16, of codes, of row-wise scales; these are loaded for kScaleStages stages at a time.
inline constexpr int kWideStages = 3, kCodeStagesA = 3, kCodeStagesB = 2, kScaleSlots = 2, kScaleStages = 4;
inline constexpr int kScaleBlock = 32, kStageBlocks = kTileDepth / kScaleBlock;
inline constexpr uint32_t kScaleRowBytes = kScaleStages * kStageBlocks;

// Row-wise scales, (rows, blocks), of all experts.
struct RowScales {
    const uint8_t* data;
    int rows, blocks;  // of an expert's weight; of all experts' rows
    int aligned;       // each row begins at a multiple of kScaleRowBytes
};

struct MxProductArgs {
    ProductArgs product;  // maps of codes, see load_codes
    CUtensorMap scale_a,
        scale_b;  // (columns, blocks, experts or 1), boxes of a stage: of an MN-major operand
    RowScales row_scales_a, row_scales_b;  // of a K-major one
};

// B's codes are E4M3.
template <bool kAMnMajor, bool kBMnMajor, bool kReduceRows, ptx::Codes kCodesA>
struct MxTraits : ProductTraits<kAMnMajor, kBMnMajor, kReduceRows, false> {
    static constexpr ptx::Codes kA = kCodesA, kB = ptx::Codes::E4M3;
};

// A place in a ring of slots, of one of its users. Of each slot a barrier `full` and one `free`.
template <int kFirst, int kCount, int kFillers, int kReaders>
struct Ring {
    static constexpr int kSlots = kCount, kNext = kFirst + 2 * kCount;  // the first barrier behind these
    uint32_t barriers;                                                  // of all rings
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ explicit Ring(uint32_t all) : barriers(all) {}
    __device__ __forceinline__ uint32_t full() const { return barriers + (kFirst + slot) * 8; }
    __device__ __forceinline__ uint32_t free() const { return barriers + (kFirst + kCount + slot) * 8; }
    __device__ __forceinline__ void wait_full() const { ptx::barrier_wait(full(), parity); }  // its fillers
    __device__ __forceinline__ void wait_free() const {
        ptx::barrier_wait(free(), parity ^ 1);
    }  // its readers
    __device__ __forceinline__ void advance() {
        if (++slot == kCount) {
            slot = 0;
            parity ^= 1;
        }
    }
    __device__ static void init(uint32_t all) {
        for (Ring ring(all); ring.parity == 0; ring.advance()) {
            ptx::barrier_init(ring.full(), kFillers);
            ptx::barrier_init(ring.free(), kReaders);
        }
    }
};
using CodesA = Ring<0, kCodeStagesA, 1, kMultipliers>;
using CodesB = Ring<CodesA::kNext, kCodeStagesB, 1, kConverters>;
using WideB = Ring<CodesB::kNext, kWideStages, kConverters, kMultipliers>;
using ScalesA = Ring<WideB::kNext, kScaleSlots, 32, kMultipliers>;
using ScalesB = Ring<ScalesA::kNext, kScaleSlots, 32, kConverters>;

// Shared memory: B as bf16; staging of the warpgroups; codes; scales, of rows or beside the codes; barriers;
// row_ends and the number of units.
inline constexpr uint32_t kCodeBytesA = kTileRows * kTileDepth, kCodeBytesB = kTileColumns * kTileDepth;
inline constexpr uint32_t kScaleBytesA = kTileRows * kStageBlocks, kScaleBytesB = kTileColumns * kStageBlocks;
inline constexpr uint32_t kMxStagingAt = kWideStages * kBBytes;
inline constexpr uint32_t kCodesBAt = kMxStagingAt + kGroups * kStagingBytes;
inline constexpr uint32_t kCodesAAt = kCodesBAt + kCodeStagesB * kCodeBytesB;
inline constexpr uint32_t kScalesBAt = kCodesAAt + kCodeStagesA * kCodeBytesA;
inline constexpr uint32_t kScalesAAt = kScalesBAt + kScaleSlots * kTileColumns * kScaleRowBytes;
inline constexpr uint32_t kMxBarriersAt = kScalesAAt + kScaleSlots * kTileRows * kScaleRowBytes;
inline constexpr uint32_t kMxRowEndsAt = kMxBarriersAt + (ScalesB::kNext + kGroups) * 8;
constexpr uint32_t mx_shared_bytes(int64_t experts) {
    return kMxRowEndsAt + static_cast<uint32_t>(experts + 1) * 4;
}
static_assert(mx_shared_bytes(kMostExperts) <= 227 * 1024, "more than a block may have");
static_assert(kCodeStagesA * kScaleBytesA <= kScaleSlots * kTileRows * kScaleRowBytes &&
              kCodeStagesB * kScaleBytesB <= kScaleSlots * kTileColumns * kScaleRowBytes);

struct MxShared {
    uint32_t base;
    const int* row_ends;
    __device__ __forceinline__ uint32_t barriers() const { return base + kMxBarriersAt; }
    __device__ __forceinline__ uint32_t fetched(int group) const {
        return barriers() + static_cast<uint32_t>(ScalesB::kNext + group) * 8;
    }
    __device__ __forceinline__ uint32_t staging(int group) const {
        return base + kMxStagingAt + static_cast<uint32_t>(group) * kStagingBytes;
    }
    __device__ __forceinline__ uint32_t at(const WideB& ring) const { return base + ring.slot * kBBytes; }
    __device__ __forceinline__ uint32_t at(const CodesA& ring) const {
        return base + kCodesAAt + ring.slot * kCodeBytesA;
    }
    __device__ __forceinline__ uint32_t at(const CodesB& ring) const {
        return base + kCodesBAt + ring.slot * kCodeBytesB;
    }
    // Row-wise scales: kScaleRowBytes a row.
    __device__ __forceinline__ uint32_t at(const ScalesA& ring) const {
        return base + kScalesAAt + ring.slot * (kTileRows * kScaleRowBytes);
    }
    __device__ __forceinline__ uint32_t at(const ScalesB& ring) const {
        return base + kScalesBAt + ring.slot * (kTileColumns * kScaleRowBytes);
    }
    // Column-wise scales of a stage: kStageBlocks rows.
    __device__ __forceinline__ uint32_t scales(const CodesA& ring) const {
        return base + kScalesAAt + ring.slot * kScaleBytesA;
    }
    __device__ __forceinline__ uint32_t scales(const CodesB& ring) const {
        return base + kScalesBAt + ring.slot * kScaleBytesB;
    }
    // The block's tiles.
    __device__ __forceinline__ TileWalk walk(const TilePlan& plan) const {
        return TileWalk(row_ends, plan, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                        row_ends[plan.experts]);
    }
};

}  // namespace moebius::ops::sm90::mx
