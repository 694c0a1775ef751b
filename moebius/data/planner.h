// Which tokens go where in which batch: numbers only, so that it costs nothing to do it in order, on one
// thread, and to let any number of threads fill the batches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "moebius/base/checked.h"
#include "moebius/data/position.h"
#include "moebius/data/shuffle.h"
#include "moebius/data/windows.h"

namespace moebius::data {

// The items of one data rank.
class ItemStream {
  public:
    struct Item {
        int64_t window = 0, offset = 0, epoch = 0;
    };

    // Begins behind the items that the position says are used up. `one_epoch`: ends with the first epoch.
    ItemStream(const Position& position, bool one_epoch);

    bool next(Item& item);

  private:
    Shuffle shuffle_;
    std::vector<Item> pending_;
    int64_t epoch_, draw_, stride_, index_;
    bool one_epoch_;
};

// The shape of a micro-batch, the same in every step.
struct BatchShape {
    bool packing = false;
    bool split_samples = true;
    int64_t rows = 0;        // without packing: sequences
    int64_t capacity = 0;    // tokens in all
    int64_t multiple = 1;    // sequences are padded to multiples of it
    int64_t max_seqlen = 0;  // no sequence is longer
    int64_t max_pieces = 0;  // a micro-batch has no more sequences with a real token

    int64_t row_tokens() const { return capacity / rows; }  // without packing
    // Of a micro-batch, at most: cu_seqlens_capacity has one entry more. Where pieces do not fill it, the
    // rest is sequences of max_seqlen and a shorter one.
    int64_t max_sequences() const {
        return packing ? std::min(capacity, max_pieces + ceil_div(capacity, max_seqlen)) : rows;
    }
};

// Tokens [begin, begin + tokens) of BOS, window, EOS; a sequence of its own.
struct Piece {
    int64_t window = 0, begin = 0, tokens = 0;
};

struct StepPlan {
    std::vector<Piece> pieces;         // in the order of rows, or of packing
    std::vector<int64_t> first_piece;  // of each micro-batch, and the end
    int64_t items = 0, offset = 0;     // the position behind this step
    int64_t epoch = 0;                 // of the last piece
};

class Planner {
  public:
    Planner(const WindowSet& windows, const BatchShape& shape, const Position& position, bool one_epoch);

    // Overwrites `plan`. False if one_epoch's epoch is over and there is nothing left, not even a piece.
    bool plan(int64_t micro_batches, StepPlan& plan);

  private:
    bool have_item();
    void use(int64_t tokens, StepPlan& plan);
    void plan_rows(StepPlan& plan);
    void plan_packed(StepPlan& plan);

    const WindowSet& windows_;
    BatchShape shape_;
    ItemStream stream_;
    ItemStream::Item item_;
    int64_t item_tokens_ = 0;  // of BOS, window, EOS; 0: no item is held
    int64_t used_;             // of them
    int64_t items_;
};

}  // namespace moebius::data
