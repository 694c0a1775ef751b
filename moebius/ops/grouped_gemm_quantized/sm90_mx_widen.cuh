// Codes and scales of MX operands to bf16 in scratch, by warps of the product that multiplies them: which
// piece is whose, and how a product's loader knows that an expert's are there.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_layout.cuh"
#include "moebius/ptx/bulk.h"
#include "moebius/ptx/widen.h"

namespace moebius::ops::sm90::mx {

// An operand, and where it becomes bf16. Row-wise: scales (rows, ⌈columns/32⌉). Column-wise: scales (blocks
// of 32 of an expert's rows, columns), each eight on 8 bytes.
struct Widened {
    const uint8_t *codes, *scales;
    __nv_bfloat16* wide;  // (rows, columns), as the codes
    int columns;          // multiple of 8
    int rows;             // of an expert's weight; unused where the rows are the experts'
    int e5m2;
};

struct MxProductArgs {
    ProductArgs product;  // maps of the bf16 operands
    Widened a, b;
    uint32_t* arrived;  // (segments): warps that have widened theirs; zero at the start
    int each;           // experts of a segment
    int at_once;        // segments widened before anything is multiplied
};

// A piece is eight rows of an expert by 256 columns, eight a lane.
inline constexpr int kPieceRows = 8, kPieceColumns = 256, kScaleBlock = 32;
static_assert(kScaleBlock % kPieceRows == 0, "a piece has one block down a column");

struct Piece {
    uint2 codes[kPieceRows];
    // Column-wise: those of the lane's columns. Row-wise: in x those of row lane / 4, blocks 2·(lane % 4) and
    // the next.
    uint2 scales;
    __nv_bfloat16* to;  // the lane's
    int columns, rows;  // between rows; the lane's that exist
    bool across, e5m2;
};

template <ptx::Codes kCodes, bool kAcross>
__device__ __forceinline__ void store_piece(const Piece& piece, int lane) {
    uint32_t factors[4];
    if constexpr (kAcross) {
        ptx::e8m0_pairs(piece.scales.x, factors[0], factors[1]);
        ptx::e8m0_pairs(piece.scales.y, factors[2], factors[3]);
    }
#pragma unroll
    for (int i = 0; i < kPieceRows; ++i) {
        if constexpr (!kAcross) {
            const uint32_t both = __shfl_sync(~0u, piece.scales.x, 4 * i + lane / 8);
            const uint32_t factor = ptx::e8m0_pair(both >> lane / 4 % 2 * 8 & 0xFFu);
            for (uint32_t& each : factors) each = factor;
        }
        uint4 wide;
        ptx::widen<kCodes>(piece.codes[i].x, factors[0], factors[1], wide.x, wide.y);
        ptx::widen<kCodes>(piece.codes[i].y, factors[2], factors[3], wide.z, wide.w);
        if (i < piece.rows) *reinterpret_cast<uint4*>(piece.to + int64_t{i} * piece.columns) = wide;
    }
}

// The pieces of consecutive experts' operands, B's before A's, that one of many warps takes.
template <class T>
class PieceWalk {
  public:
    // Before the first expert that has rows.
    __device__ __forceinline__ PieceWalk(const MxProductArgs& args, const int* row_ends)
        : args_(args), row_ends_(row_ends), lane_(static_cast<int>(threadIdx.x % 32)) {
        const int step = args.product.plan.expert_step;
        while (expert_ < args.product.plan.experts && row_ends[expert_] == 0) expert_ += step;
        first_ = expert_;
    }

    __device__ __forceinline__ bool done() const { return expert_ >= args_.product.plan.experts; }
    // The end of the segment at whose first expert the walk stands.
    __device__ __forceinline__ int end_of_segment() const {
        return min(expert_ + args_.each, args_.product.plan.experts);
    }
    __device__ __forceinline__ int segment() const { return (expert_ - first_) / args_.each; }

    __device__ __forceinline__ void skip(int end) {
        while (expert_ < end) leave();
    }
    __device__ __forceinline__ void begin(int end, int worker, int workers) {
        end_ = end;
        task_ = worker;
        workers_ = workers;
        is_a_ = false;
        enter();
    }
    // The next piece's loads. False: there are no more before `end`.
    __device__ __forceinline__ bool load(Piece& piece) {
        while (expert_ < end_ && task_ >= tasks_) {
            task_ -= tasks_;
            if (is_a_) leave();
            is_a_ = !is_a_;
            enter();
        }
        if (expert_ >= end_) return false;
        if (is_a_) {
            load_of<T::kAMnMajor>(args_.a, piece);
        } else {
            load_of<T::kBMnMajor>(args_.b, piece);
        }
        task_ += workers_;
        return true;
    }

  private:
    static __device__ __forceinline__ int blocks(int rows) { return (rows + kScaleBlock - 1) / kScaleBlock; }

    __device__ __forceinline__ void leave() {
        const int end = row_ends_[expert_];
        blocks_ += blocks(end - row_begin_);
        row_begin_ = end;
        expert_ += args_.product.plan.expert_step;
    }
    // A or B of the expert.
    __device__ __forceinline__ void enter() {
        if (expert_ >= end_) return;
        rows_ = row_ends_[expert_] - row_begin_;
        first_row_ = row_begin_;
        first_block_ = blocks_;
        if (!T::kReduceRows && !is_a_) {
            if (rows_ > 0) rows_ = args_.b.rows;
            first_row_ = int64_t{expert_} * args_.b.rows;
            first_block_ = expert_ * blocks(args_.b.rows);
        }
        const int columns = is_a_ ? args_.a.columns : args_.b.columns;
        strips_ = (columns + kPieceColumns - 1) / kPieceColumns;
        tasks_ = strips_ * ((rows_ + kPieceRows - 1) / kPieceRows);
    }
    template <bool kAcross>
    __device__ __forceinline__ void load_of(const Widened& of, Piece& piece) const {
        const int group = task_ / strips_, strip = task_ - group * strips_, row = group * kPieceRows;
        const int column = strip * kPieceColumns + lane_ * 8;
        const int64_t at = (first_row_ + row) * of.columns + column;
        piece.to = of.wide + at;
        piece.columns = of.columns;
        piece.rows = column < of.columns ? min(kPieceRows, rows_ - row) : 0;
        piece.across = kAcross;
        piece.e5m2 = of.e5m2 != 0;
#pragma unroll
        for (int i = 0; i < kPieceRows; ++i) {
            piece.codes[i] = {0, 0};
            if (i < piece.rows)
                piece.codes[i] =
                    __ldcs(reinterpret_cast<const uint2*>(of.codes + at + int64_t{i} * of.columns));
        }
        piece.scales = {0, 0};
        if constexpr (kAcross) {
            const uint8_t* from = of.scales + int64_t{first_block_ + row / kScaleBlock} * of.columns + column;
            if (piece.rows > 0) piece.scales = __ldg(reinterpret_cast<const uint2*>(from));
        } else {
            const int across = blocks(of.columns), own = row + lane_ / 4;
            const int block = strip * (kPieceColumns / kScaleBlock) + 2 * (lane_ % 4);
            const uint8_t* from = of.scales + (first_row_ + own) * across + block;
            if (own < rows_ && block < across) piece.scales.x = __ldg(from);
            if (own < rows_ && block + 1 < across) piece.scales.x |= uint32_t{__ldg(from + 1)} << 8;
        }
    }

    const MxProductArgs& args_;
    const int* row_ends_;
    int lane_;
    int expert_ = 0, first_ = 0, end_ = 0;
    int row_begin_ = 0, blocks_ = 0;  // rows and blocks of 32 rows of the experts before
    bool is_a_ = false;
    int task_ = 0, tasks_ = 0, workers_ = 1;  // of the part; what the warp takes of them
    int strips_ = 1, rows_ = 0, first_block_ = 0;
    int64_t first_row_ = 0;
};

// A segment of experts, by warp `worker` of `workers`.
template <class T>
__device__ __forceinline__ void widen_segment(const MxProductArgs& args, PieceWalk<T>& walk, int worker,
                                              int workers) {
    const int segment = walk.segment(), lane = static_cast<int>(threadIdx.x % 32);
    const auto store = [lane](const Piece& piece) {
        const auto as = [&]<ptx::Codes kCodes>() {
            if constexpr (T::kAMnMajor == T::kBMnMajor) {
                store_piece<kCodes, T::kAMnMajor>(piece, lane);
            } else if (piece.across) {
                store_piece<kCodes, true>(piece, lane);
            } else {
                store_piece<kCodes, false>(piece, lane);
            }
        };
        if (piece.e5m2) {
            as.template operator()<ptx::Codes::E5M2>();
        } else {
            as.template operator()<ptx::Codes::E4M3>();
        }
    };
    walk.begin(walk.end_of_segment(), worker, workers);
    Piece piece, next;
    bool more = walk.load(piece);
    while (more) {
        more = walk.load(next);  // on its way while this one is converted
        store(piece);
        piece = next;
    }
    ptx::fence_async_global();
    __syncwarp();
    if (lane == 0) ptx::flag_add(args.arrived + segment);  // partner: SegmentsReady
}

// Who widens what: the first `at_once` segments all warps of all blocks, before anything else; the others
// those that would idle, while the experts before are multiplied.
template <class T>
struct Widening {
    static constexpr int kWarps = kThreads / 32;
    static constexpr int kFirstIdle = T::kReduceRows ? 2 : 1;  // behind the loader, and the warp for tails
    static constexpr int kIdle = 4 - kFirstIdle;

    __device__ __forceinline__ static void first(const MxProductArgs& args, const int* row_ends, int warp) {
        PieceWalk<T> walk(args, row_ends);
#pragma unroll 1
        for (int i = 0; i < args.at_once && !walk.done(); ++i)
            widen_segment(args, walk, static_cast<int>(blockIdx.x) * kWarps + warp,
                          static_cast<int>(gridDim.x) * kWarps);
    }
    __device__ __forceinline__ static void rest(const MxProductArgs& args, const int* row_ends, int warp) {
        PieceWalk<T> walk(args, row_ends);
        for (int i = 0; i < args.at_once; ++i) walk.skip(walk.end_of_segment());
#pragma unroll 1
        while (!walk.done())
            widen_segment(args, walk, static_cast<int>(blockIdx.x) * kIdle + warp - kFirstIdle,
                          static_cast<int>(gridDim.x) * kIdle);
    }
};

// For the loading thread: waits until an expert's operands are in scratch. All blocks run at the same time,
// one an SM at most, and who widens waits for nobody.
template <class T>
class SegmentsReady {
  public:
    __device__ __forceinline__ SegmentsReady(const MxProductArgs& args, const int* row_ends) : args_(args) {
        const int experts = args.product.plan.experts;
        while (first_ < experts && row_ends[first_] == 0) ++first_;
    }
    __device__ __forceinline__ void operator()(int expert) {
        // Experts without rows before the first have a gradient, of nothing.
        const int segment = (expert - first_) / args_.each;
        if (expert < first_ || segment <= known_) return;
        const int warps = segment < args_.at_once ? Widening<T>::kWarps : Widening<T>::kIdle;
        ptx::flag_await(args_.arrived + segment, gridDim.x * static_cast<uint32_t>(warps));
        known_ = segment;
    }

  private:
    const MxProductArgs& args_;
    int first_ = 0, known_ = -1;
};

}  // namespace moebius::ops::sm90::mx
