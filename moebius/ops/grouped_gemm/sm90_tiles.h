// The order in which a Hopper kernel walks a grouped product's tiles, from where each expert's rows end. The
// same code runs in the kernel and in a test on the CPU.
#pragma once

#ifdef __CUDACC__
#define MOEBIUS_TILES_INLINE __host__ __device__ __forceinline__
#else
#define MOEBIUS_TILES_INLINE inline
#endif

namespace moebius::ops::sm90 {

// A unit is what one block computes at a time.
struct TilePlan {
    int experts = 0;
    int unit_rows =
        0;  // the output's rows (of an expert) in a unit; 0: every expert's output has `row_units`
    int row_units = 0;     // only where unit_rows is 0: the weights' gradient
    int column_units = 0;  // of every expert's output
    int band = 0;          // column units that an expert's rows run through together, 1 … column_units
    // Always 1, but not known when kernels are compiled: from a constant, ptxas 13.0 may make an offset of
    // the address of the next row end, and then add it to the expert that is already the next.
    int expert_step = 1;

    MOEBIUS_TILES_INLINE int row_units_of(int row_begin, int row_end) const {
        return unit_rows > 0 ? (row_end - row_begin + unit_rows - 1) / unit_rows : row_units;
    }
    // Of one expert.
    MOEBIUS_TILES_INLINE int units(int row_begin, int row_end) const {
        return row_units_of(row_begin, row_end) * column_units;
    }
};

struct TileUnit {
    int expert = 0;
    int row_begin = 0, row_end = 0;     // the expert's rows
    int row_unit = 0, column_unit = 0;  // of the expert's output
    int half = -1;                      // 0, 1: only the upper or lower half of the unit's rows

    MOEBIUS_TILES_INLINE bool has(int which) const { return half < 0 || half == which; }
};

// Experts in order; of each the bands of columns in order; of a band the row units in order, its column units
// running fastest: what is multiplied at a time by the blocks of a card is about as tall as wide, and stays
// in L2.
//
// Where the units left at the end are at most half as many as the blocks, two blocks share each: a block in
// the last round has half the work, and no sum changes.
class TileWalk {
  public:
    using Unit = TileUnit;

    // Takes the units first, first + step, … `row_ends` (experts): the row behind each expert's last,
    // ascending. `units`: of all experts; 0: none is shared.
    MOEBIUS_TILES_INLINE TileWalk(const int* row_ends, const TilePlan& plan, int first, int step,
                                  int units = 0)
        : row_ends_(row_ends), plan_(plan), next_(first), step_(step) {
        const int left = units % step;
        shared_from_ = 0 < left && 2 * left <= step ? units - left : kNone;
        enter(0);
    }

    // False: there are no more.
    MOEBIUS_TILES_INLINE bool next(TileUnit& unit) {
        const bool shared = next_ >= shared_from_;
        const int number = shared ? shared_from_ + (next_ - shared_from_) / 2 : next_;
        while (expert_ < plan_.experts && number >= expert_first_ + row_units_ * plan_.column_units) {
            expert_first_ += row_units_ * plan_.column_units;
            row_begin_ = row_end_;
            enter(expert_ + plan_.expert_step);
        }
        if (expert_ >= plan_.experts) return false;
        const int index = number - expert_first_;
        const int band = index / (row_units_ * plan_.band);
        const int within = index - band * row_units_ * plan_.band;
        const int left = plan_.column_units - band * plan_.band;
        const int width = left < plan_.band ? left : plan_.band;
        unit.expert = expert_;
        unit.row_begin = row_begin_;
        unit.row_end = row_end_;
        unit.row_unit = within / width;
        unit.column_unit = band * plan_.band + within % width;
        unit.half = shared ? (next_ - shared_from_) % 2 : -1;
        next_ += step_;
        return true;
    }

  private:
    static constexpr int kNone = 0x7FFFFFFF;

    MOEBIUS_TILES_INLINE void enter(int expert) {
        expert_ = expert;
        if (expert >= plan_.experts) return;
        row_end_ = row_ends_[expert];
        row_units_ = plan_.row_units_of(row_begin_, row_end_);
    }

    const int* row_ends_;
    TilePlan plan_;
    int next_, step_, shared_from_ = kNone;
    int expert_ = 0, expert_first_ = 0;  // and the index of the expert's first unit
    int row_begin_ = 0, row_end_ = 0, row_units_ = 0;
};

// A walk in bands of rows: experts in order; of each, bands of at most plan.band row units, about equally
// wide; of a band all column units in order, its row units running fastest. A band of an expert is a segment:
// what a ring holds at a time of the rows' operand. A block never comes to an earlier segment than it was at.
struct RowBands {
    int width = 1, count = 0;

    MOEBIUS_TILES_INLINE RowBands(int row_units, int most) {
        if (row_units == 0) return;
        count = (row_units + most - 1) / most;
        width = (row_units + count - 1) / count;
        count = (row_units + width - 1) / width;
    }
    MOEBIUS_TILES_INLINE int width_of(int band, int row_units) const {
        const int left = row_units - band * width;
        return left < width ? left : width;
    }
};

struct BandUnit : TileUnit {
    int first_row_unit = 0;  // of its band
    int segment = 0;         // the band's number, over all experts
    int turn = 0;            // the expert's, among those that have units
};

class RowBandWalk {
  public:
    using Unit = BandUnit;

    MOEBIUS_TILES_INLINE RowBandWalk(const int* row_ends, const TilePlan& plan, int first, int step,
                                     int units = 0)
        : row_ends_(row_ends), plan_(plan), next_(first), step_(step) {
        const int left = units % step;
        shared_from_ = 0 < left && 2 * left <= step ? units - left : kNone;
        enter(0);
    }

    MOEBIUS_TILES_INLINE bool next(BandUnit& unit) {
        const bool shared = next_ >= shared_from_;
        const int number = shared ? shared_from_ + (next_ - shared_from_) / 2 : next_;
        while (expert_ < plan_.experts && number >= expert_first_ + row_units_ * plan_.column_units) {
            expert_first_ += row_units_ * plan_.column_units;
            row_begin_ = row_end_;
            segment_ += bands_.count;
            if (row_units_ > 0) ++turn_;
            enter(expert_ + plan_.expert_step);
        }
        if (expert_ >= plan_.experts) return false;
        const int index = number - expert_first_;
        const int band = index / (bands_.width * plan_.column_units);
        const int within = index - band * bands_.width * plan_.column_units;
        const int width = bands_.width_of(band, row_units_);
        unit.expert = expert_;
        unit.row_begin = row_begin_;
        unit.row_end = row_end_;
        unit.first_row_unit = band * bands_.width;
        unit.row_unit = unit.first_row_unit + within % width;
        unit.column_unit = within / width;
        unit.segment = segment_ + band;
        unit.turn = turn_;
        unit.half = shared ? (next_ - shared_from_) % 2 : -1;
        next_ += step_;
        return true;
    }

  private:
    static constexpr int kNone = 0x7FFFFFFF;

    MOEBIUS_TILES_INLINE void enter(int expert) {
        expert_ = expert;
        if (expert >= plan_.experts) return;
        row_end_ = row_ends_[expert];
        row_units_ = plan_.row_units_of(row_begin_, row_end_);
        bands_ = RowBands(row_units_, plan_.band);
    }

    const int* row_ends_;
    TilePlan plan_;
    int next_, step_, shared_from_ = kNone;
    int expert_ = 0, expert_first_ = 0, segment_ = 0, turn_ = 0;
    int row_begin_ = 0, row_end_ = 0, row_units_ = 0;
    RowBands bands_{0, 1};
};

}  // namespace moebius::ops::sm90
