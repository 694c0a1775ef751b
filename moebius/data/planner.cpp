#include "moebius/data/planner.h"

#include <algorithm>
#include <numeric>

#include "moebius/base/check.h"
#include "moebius/base/checked.h"
#include "moebius/base/error.h"

namespace moebius::data {

ItemStream::ItemStream(const Position& position, bool one_epoch)
    : shuffle_(position.windows, position.buffer_size, position.seed),
      epoch_(position.start.epoch),
      draw_(position.start.draw),
      stride_(position.world),
      index_(position.rank + position.items * position.world),
      one_epoch_(one_epoch) {
    // In the order of the draws, so that each epoch is gone through once.
    const std::vector<DrawRef>& refs = position.start.pending;
    std::vector<size_t> order(refs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return refs[a].epoch != refs[b].epoch ? refs[a].epoch < refs[b].epoch : refs[a].draw < refs[b].draw;
    });
    pending_.resize(refs.size());
    for (const size_t i : order)
        pending_[i] = {.window = shuffle_.window(refs[i].epoch, refs[i].draw),
                       .offset = refs[i].offset,
                       .epoch = refs[i].epoch};
}

bool ItemStream::next(Item& item) {
    const auto pending = static_cast<int64_t>(pending_.size());
    const int64_t index = index_;
    if (index < pending) {
        item = pending_[static_cast<size_t>(index)];
    } else {
        const int64_t draw = draw_ + index - pending;
        const int64_t epoch = epoch_ + draw / shuffle_.windows();
        if (one_epoch_ && epoch > epoch_) return false;
        item = {.window = shuffle_.window(epoch, draw % shuffle_.windows()), .offset = 0, .epoch = epoch};
    }
    index_ += stride_;
    return true;
}

Planner::Planner(const WindowSet& windows, const BatchShape& shape, const Position& position, bool one_epoch)
    : windows_(windows),
      shape_(shape),
      stream_(position, one_epoch),
      used_(position.offset),
      items_(position.items) {}

bool Planner::have_item() {
    if (item_tokens_ > 0) return true;
    if (!stream_.next(item_)) return false;
    item_tokens_ = windows_.at(item_.window).length + 2;
    used_ = std::max(used_, item_.offset);
    if (used_ >= item_tokens_) throw Error("the checkpoint's data position lies behind the end of a window");
    return true;
}

void Planner::use(int64_t tokens, StepPlan& plan) {
    plan.pieces.push_back({.window = item_.window, .begin = used_, .tokens = tokens});
    plan.epoch = item_.epoch;
    used_ += tokens;
    if (used_ < item_tokens_) return;
    item_tokens_ = used_ = 0;
    ++items_;
}

void Planner::plan_rows(StepPlan& plan) {
    for (int64_t row = 0; row < shape_.rows && have_item(); ++row) use(item_tokens_ - used_, plan);
}

void Planner::plan_packed(StepPlan& plan) {
    int64_t room = shape_.capacity;
    while (room > 0 && have_item()) {
        const int64_t rest = item_tokens_ - used_;
        const int64_t padded = round_up(rest, shape_.multiple);
        if (padded > room && !shape_.split_samples) break;  // it stays, for the next micro-batch
        use(std::min(rest, room), plan);
        room -= std::min(padded, room);
    }
}

bool Planner::plan(int64_t micro_batches, StepPlan& plan) {
    plan.pieces.clear();
    plan.first_piece.assign(1, 0);
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
        shape_.packing ? plan_packed(plan) : plan_rows(plan);
        plan.first_piece.push_back(static_cast<int64_t>(plan.pieces.size()));
    }
    plan.items = items_;
    plan.offset = used_;
    return !plan.pieces.empty();
}

}  // namespace moebius::data
