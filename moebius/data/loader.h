// Batches of windows: shuffled, packed or padded, made ahead on threads of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>

#include "moebius/data/batch.h"
#include "moebius/data/planner.h"
#include "moebius/data/position.h"
#include "moebius/data/windows.h"

namespace moebius::data {

struct LoaderOptions {
    int64_t grad_acc_steps = 1;    // micro-batches of a step
    int64_t micro_batch_size = 8;  // dataset.micro_batch_size
    std::optional<int64_t>
        token_micro_batch_size;  // with packing: tokens, in place of micro_batch_size × max_seq_length
    bool use_sequence_packing = false;
    bool split_samples = true;            // dataset.split_samples_in_token_packing
    std::optional<int64_t> pad_multiple;  // dataset.pad_sequences_to_be_divisible_by
    int64_t buffer_size = 50000;          // dataset.buffer_size; 1: the files' own order
    uint64_t seed = 42;
    LabelRules labels;
    int num_workers = 4;      // 0: batches are made in next_step
    int prefetch_factor = 4;  // steps a worker that are made ahead, at most
    bool one_epoch = false;   // for validation: ends, with a last batch filled up with padding
    int32_t data_rank = 0, data_world = 1;
    std::string position;  // of a Loader with the same data, options and rank; empty: the start
    std::pmr::memory_resource* memory = nullptr;  // for the batches; null: new and delete
    std::function<void(int64_t number)>
        before_fill;  // called where a batch is made; what it throws comes out of next_step
};

// What the options come to, without a Loader. Throws Error for values out of range and for contradictions;
// `windows` is asked for the longest one.
BatchShape batch_shape(const WindowSet& windows, const LoaderOptions& options);

// Throws Error as a Loader with options.position would where that is of other data or options.
void check_position(const WindowSet& windows, const LoaderOptions& options);

// Not thread-safe: one thread calls it. The batches depend on data, options and rank only, not on the
// workers.
class Loader {
  public:
    Loader(std::shared_ptr<const WindowSet> windows, LoaderOptions options);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    // The next batch, valid until the next call; null when one_epoch's epoch is over, after equally many on
    // every rank (a rank that has run out gets batches of nothing but padding). Rethrows what happened on a
    // worker; every later call does so too.
    StepBatch* next_step();

    // State behind the last batch returned, as JSON text; next_step of a Loader opened there gives the
    // following one.
    std::string position() const;

    const BatchShape& shape() const;
    const WindowSet& windows() const;
    int64_t memory_bytes() const;   // of all batches made ahead
    double seconds_waited() const;  // in next_step, in all

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// "genome.fna.gz, record 0 (NC_008253.1), bases 101 to 200; …", at most `limit` sequences.
std::string describe_origins(const Dataset& data, const MicroBatch& micro, size_t limit = 4);

}  // namespace moebius::data
