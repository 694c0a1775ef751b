// Codes and scales of MX operands to bf16 in scratch that holds a part of them at a time: rings whose places
// are taken again when all tiles that read them have been multiplied.
//
//   kind              A, in a ring of bands (segments)          B
//   Forward, Dgrad    band.width · 128 rows of an expert        the weight of an expert: a ring of few
//   Wgrad             as many columns, all rows of the expert   whole, each expert's rows at their own place
//
// The product's tiles go in bands of rows (RowBandWalk). The idle warps of all blocks walk over the same
// segments: of each they widen A's band, then a share of what B the next expert needs. Two counts a segment
// order that: `arrived`, of warps that have widened their part of it, for who loads its tiles; `finished`, of
// its tiles whose operands have been read, for who widens what comes in the same place. A warp waits for
// tiles of earlier segments alone, a tile for warps that widen no later one than its own, and each block
// takes both in order: so there is always a block that need not wait. All blocks run at the same time, one an
// SM at most.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_store.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm90_mx_widen.cuh"

namespace moebius::ops::sm90::mx {

struct RingArgs {
    ProductArgs product;  // maps of the rings; plan.band: row units of a segment at most
    Widened a, b;
    uint32_t *arrived, *finished;  // (segments) each, zero at the start
    int slots;                     // of A's ring
    int b_slots;                   // of B's, at least 2 where there are more experts; unused by Wgrad
    int at_once;                   // segments of the first expert that all warps widen at the start
};

template <bool kBMnMajor, bool kReduceRows>
struct RingTraits : ProductTraits<kReduceRows, kBMnMajor, kReduceRows, false> {
    using Walk = RowBandWalk;
};

// What `finished` counts up to: halves of tiles, and what is missing to this, which one warp adds that knows
// how many there are.
inline constexpr uint32_t kAllRead = 1u << 30;

// An expert, as who walks over all of them in order finds it.
struct ExpertPlace {
    int expert, row_begin, row_end;
    int blocks;  // of 32 rows, of the experts before
    int turn;    // among those that have tiles

    __device__ __forceinline__ int rows() const { return row_end - row_begin; }
    __device__ __forceinline__ static int blocks_of(int rows) {
        return (rows + kScaleBlock - 1) / kScaleBlock;
    }
    template <class T>
    __device__ __forceinline__ static ExpertPlace first(const RingArgs& args, const int* row_ends) {
        ExpertPlace place{0, 0, args.product.plan.experts > 0 ? row_ends[0] : 0, 0, 0};
        if (!T::kReduceRows && place.rows() == 0) place.template advance<T>(args, row_ends, 0);
        return place;
    }
    // To the next that has tiles: every one where a tile is of weights.
    template <class T>
    __device__ __forceinline__ void advance(const RingArgs& args, const int* row_ends, int turns = 1) {
        const int experts = args.product.plan.experts;
        blocks += blocks_of(rows());
        row_begin = row_end;
        turn += turns;
        do {
            expert += args.product.plan.expert_step;
            if (expert < experts) row_end = row_ends[expert];
        } while (!T::kReduceRows && expert < experts && row_end == row_begin);
    }
    __device__ __forceinline__ int row_units(const RingArgs& args) const {
        return args.product.plan.row_units_of(row_begin, row_end);
    }
};

// Pieces of an operand: `rows` by columns first_column … column_end.
struct Part {
    int64_t first_row;  // of the codes
    int rows, first_block, first_column, column_end;
    __nv_bfloat16* to;  // of the first row and column
    int to_columns;     // between rows

    __device__ __forceinline__ int strips() const {
        return (column_end - first_column + kPieceColumns - 1) / kPieceColumns;
    }
    __device__ __forceinline__ int tasks() const { return strips() * ((rows + kPieceRows - 1) / kPieceRows); }
};

template <bool kAcross>
__device__ __forceinline__ void load_piece(const Widened& of, const Part& part, int task, int lane,
                                           Piece& piece) {
    const int strips = part.strips(), group = task / strips, strip = task - group * strips;
    const int row = group * kPieceRows, within = strip * kPieceColumns + lane * 8;
    const int column = part.first_column + within;
    const int64_t at = (part.first_row + row) * of.columns + column;
    piece.to = part.to + int64_t{row} * part.to_columns + within;
    piece.columns = part.to_columns;
    piece.rows = column < part.column_end ? min(kPieceRows, part.rows - row) : 0;
#pragma unroll
    for (int i = 0; i < kPieceRows; ++i) {
        piece.codes[i] = {0, 0};
        if (i < piece.rows)
            piece.codes[i] = __ldcs(reinterpret_cast<const uint2*>(of.codes + at + int64_t{i} * of.columns));
    }
    piece.scales = {0, 0};
    if constexpr (kAcross) {
        const uint8_t* from = of.scales + int64_t{part.first_block + row / kScaleBlock} * of.columns + column;
        if (piece.rows > 0) piece.scales = __ldg(reinterpret_cast<const uint2*>(from));
    } else {
        // first_column is 0.
        const int across = ExpertPlace::blocks_of(of.columns), own = row + lane / 4;
        const int block = strip * (kPieceColumns / kScaleBlock) + 2 * (lane % 4);
        const uint8_t* from = of.scales + (part.first_row + own) * across + block;
        if (own < part.rows && block < across) piece.scales.x = __ldg(from);
        if (own < part.rows && block + 1 < across) piece.scales.x |= uint32_t{__ldg(from + 1)} << 8;
    }
}

// One warp's walk over the segments.
template <class T>
class RingWidener {
  public:
    __device__ __forceinline__ RingWidener(const RingArgs& args, const int* row_ends)
        : args_(args),
          row_ends_(row_ends),
          lane_(static_cast<int>(threadIdx.x % 32)),
          at_(ExpertPlace::first<T>(args, row_ends)),
          next_(at_) {
        enter();
    }
    __device__ __forceinline__ bool done() const { return at_.expert >= args_.product.plan.experts; }
    // Segments that all warps widen before anything is multiplied.
    __device__ __forceinline__ static int at_once(const RingArgs& args, const int* row_ends) {
        const ExpertPlace first = ExpertPlace::first<T>(args, row_ends);
        if (first.expert >= args.product.plan.experts) return 0;
        return min(args.at_once, RowBands(first.row_units(args), args.product.plan.band).count);
    }

    // This warp's share of the segment, as `worker` of `workers`. kFirst: before anything is multiplied, and
    // there is nothing to wait for.
    template <bool kFirst>
    __device__ __forceinline__ void widen(int worker, int workers) {
        if (worker == 0 && lane_ == 0) {
            const auto halves =
                static_cast<uint32_t>(2 * bands_.width_of(band_, units_) * args_.product.plan.column_units);
            ptx::flag_add(args_.finished + segment_, kAllRead - halves);
        }
        if constexpr (kFirst) {
            if (segment_ == 0) widen_part<T::kBMnMajor>(args_.b, b_of(at_), 0, 1, worker, workers);
        } else {
            await_read(segment_ - args_.slots);
        }
        widen_part<T::kAMnMajor>(args_.a, a_band(), 0, 1, worker, workers);
        // B's share comes with the arrival at a later segment, at that expert's first at the latest; but most
        // of the first warps arrive no more.
        if constexpr (!kFirst) arrive();
        const int from = early_ ? 0 : bands_.count / 2;
        if (next_.expert < args_.product.plan.experts && band_ >= from) {
            // It takes the place of an expert before this one; where there are many places, A's ring has
            // waited for as much.
            if (!kFirst && !early_) await_read(segment_ - band_ - 1);
            widen_part<T::kBMnMajor>(args_.b, b_of(next_), band_ - from, bands_.count - from, worker,
                                     workers);
        }
        if constexpr (kFirst) arrive();
        skip();
    }
    __device__ __forceinline__ void skip() {
        ++segment_;
        if (++band_ < bands_.count) return;
        at_ = next_;
        enter();
    }

  private:
    __device__ __forceinline__ void enter() {
        band_ = 0;
        if (done()) return;
        units_ = at_.row_units(args_);
        bands_ = RowBands(units_, args_.product.plan.band);
        next_.template advance<T>(args_, row_ends_);
        early_ = T::kReduceRows || args_.b_slots > args_.slots;
    }
    __device__ __forceinline__ Part a_band() const {
        const int slot = segment_ % args_.slots, first = band_ * bands_.width * kTileRows;
        const int width = bands_.width_of(band_, units_) * kTileRows,
                  place = slot * args_.product.plan.band * kTileRows;
        Part part;
        part.first_block = at_.blocks;
        if constexpr (T::kReduceRows) {
            const int columns = args_.slots * args_.product.plan.band * kTileRows;
            part.first_row = at_.row_begin;
            part.rows = at_.rows();
            part.first_column = first;
            part.column_end = min(args_.a.columns, first + width);
            part.to = args_.a.wide + int64_t{at_.row_begin} * columns + place;
            part.to_columns = columns;
        } else {
            part.first_row = at_.row_begin + first;
            part.rows = min(width, at_.rows() - first);
            part.first_column = 0;
            part.column_end = part.to_columns = args_.a.columns;
            part.to = args_.a.wide + int64_t{place} * args_.a.columns;
        }
        return part;
    }
    __device__ __forceinline__ Part b_of(const ExpertPlace& place) const {
        const Widened& b = args_.b;
        Part part;
        part.first_column = 0;
        part.column_end = part.to_columns = b.columns;
        if constexpr (T::kReduceRows) {
            part.first_row = place.row_begin;
            part.rows = place.rows();
            part.first_block = place.blocks;
            part.to = b.wide + part.first_row * b.columns;
        } else {
            part.first_row = int64_t{place.expert} * b.rows;
            part.rows = b.rows;
            part.first_block = place.expert * ExpertPlace::blocks_of(b.rows);
            part.to = b.wide + int64_t{place.turn % args_.b_slots} * b.rows * b.columns;
        }
        return part;
    }

    template <bool kAcross>
    __device__ __forceinline__ void widen_part(const Widened& of, const Part& part, int share, int shares,
                                               int worker, int workers) {
        const int64_t tasks = part.tasks();
        const int end = static_cast<int>(tasks * (share + 1) / shares);
        int task = static_cast<int>(tasks * share / shares) + worker;
        if (task >= end) return;
        Piece piece, next;
        load_piece<kAcross>(of, part, task, lane_, piece);
        while (true) {
            task += workers;
            const bool more = task < end;
            if (more)
                load_piece<kAcross>(of, part, task, lane_, next);  // on its way while this one is converted
            if (of.e5m2 != 0) {
                store_piece<ptx::Codes::E5M2, kAcross>(piece, lane_);
            } else {
                store_piece<ptx::Codes::E4M3, kAcross>(piece, lane_);
            }
            if (!more) return;
            piece = next;
        }
    }

    // Until all tiles of the segments up to this one have read their operands.
    __device__ __forceinline__ void await_read(int segment) {
        for (; read_ <= segment; ++read_) {
            if (lane_ == 0) ptx::flag_await(args_.finished + read_, kAllRead);  // partner: SegmentRead
        }
        __syncwarp();
    }
    __device__ __forceinline__ void arrive() {
        ptx::fence_async_global();
        __syncwarp();
        if (lane_ == 0) ptx::flag_add(args_.arrived + segment_);  // partner: load_ring_tiles
    }

    const RingArgs& args_;
    const int* row_ends_;
    int lane_;
    ExpertPlace at_, next_;  // next_: whose B is widened
    int segment_ = 0, read_ = 0;
    int band_ = 0, units_ = 0;
    RowBands bands_{0, 1};
    bool early_ = true;
};

// For multiply_tiles.
struct SegmentRead {
    uint32_t* finished;
    __device__ __forceinline__ void operator()(const BandUnit& unit) const {
        ptx::flag_add(finished + unit.segment, unit.half < 0 ? 2 : 1);  // partner: RingWidener
    }
};

template <class T>
struct RingWidening {
    static constexpr int kWarps = kThreads / 32;
    static constexpr int kFirstIdle = T::kReduceRows ? 2 : 1;  // behind the loader, and the warp for tails
    static constexpr int kIdle = 4 - kFirstIdle;
};

// As load_tiles, from the rings.
template <class T>
__device__ __forceinline__ void load_ring_tiles(const RingArgs& args, const sm90::detail::Shared& shared,
                                                const int* row_ends) {
    const ProductArgs& product = args.product;
    const int at_once = RingWidener<T>::at_once(args, row_ends);
    auto walk = sm90::detail::walk_of<T>(product, shared);
    sm90::detail::RingPosition ring;
    int known = -1;
    for (BandUnit unit; walk.next(unit);) {
        if (unit.segment > known) {
            known = unit.segment;
            const int warps = known < at_once ? RingWidening<T>::kWarps : RingWidening<T>::kIdle;
            ptx::flag_await(args.arrived + known, gridDim.x * static_cast<uint32_t>(warps));
        }
        const int row =
            (unit.segment % args.slots * product.plan.band + unit.row_unit - unit.first_row_unit) * kTileRows;
        const int column = unit.column_unit * T::kColumns;
        const int place = T::kReduceRows ? 0 : unit.turn % args.b_slots;
        const int depth = sm90::detail::depth_of<T>(product, unit), stages = sm90::detail::stages_of(depth);
        for (int i = 0; i < stages; ++i, ring.advance()) {
            // Partner: the warps that multiply.
            ptx::barrier_wait(shared.free(ring.stage), (ring.round & 1) ^ 1);
            const bool tail = T::kReduceRows && (i + 1) * kTileDepth > depth;
            const uint32_t barrier = tail ? shared.raw(ring.stage) : shared.full(ring.stage);
            ptx::barrier_arrive_expect(barrier, kStageBytes);
            const int at = i * kTileDepth + (T::kReduceRows ? unit.row_begin : 0);
            sm90::detail::load_a<T>(product, shared.a(ring.stage), barrier, row, at);
            sm90::detail::load_b<T>(product, shared.b(ring.stage), barrier, column, at, place);
        }
    }
}

template <class T, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product_mx_ring_sm90(const __grid_constant__ RingArgs args,
                                 const __grid_constant__ typename Epilogue::Args epilogue) {
    static_assert(Epilogue::kFinishers == 0, "the warps are taken");
    using Widening = RingWidening<T>;
    extern __shared__ __align__(1024) unsigned char moebius_stages[];
    int* row_ends = reinterpret_cast<int*>(moebius_stages + kRowEndsAt);
    const sm90::detail::Shared shared{ptx::shared_address(moebius_stages), row_ends};
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    sm90::detail::begin_product<Epilogue>(args.product, shared, row_ends, warp);
    const int at_once = RingWidener<T>::at_once(args, row_ends);
    {
        RingWidener<T> widener(args, row_ends);
#pragma unroll 1
        for (int i = 0; i < at_once; ++i)
            widener.template widen<true>(static_cast<int>(blockIdx.x) * Widening::kWarps + warp,
                                         static_cast<int>(gridDim.x) * Widening::kWarps);
    }

    const int group = warp / 4 - 1;
    if (group < 0) {
        ptx::give_registers<88>();
        if (warp == 0) {
            if (threadIdx.x % 32 == 0) load_ring_tiles<T>(args, shared, row_ends);
        } else if (T::kReduceRows && warp == 1) {
            sm90::detail::zero_tails<T>(args.product, shared);
        } else {
            RingWidener<T> widener(args, row_ends);
            for (int i = 0; i < at_once; ++i) widener.skip();
#pragma unroll 1
            while (!widener.done())
                widener.template widen<false>(
                    static_cast<int>(blockIdx.x) * Widening::kIdle + warp - Widening::kFirstIdle,
                    static_cast<int>(gridDim.x) * Widening::kIdle);
        }
    } else {
        ptx::take_registers<208>();
        sm90::detail::multiply_tiles<T, Epilogue>(args.product, epilogue, shared, group,
                                                  SegmentRead{args.finished});
    }
}

}  // namespace moebius::ops::sm90::mx
