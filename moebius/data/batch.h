// What a training step gets.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "moebius/data/planner.h"
#include "moebius/data/windows.h"

namespace moebius::data {

constexpr int32_t kIgnore = -100;  // a target that counts for no loss

// Where a sequence of a micro-batch comes from; Dataset::describe(record, base, …) has the words.
struct SequenceOrigin {
    int64_t record = 0;
    int64_t base = 0;  // first base in the record, from 0
    int64_t bases = 0;
    int32_t first = 0;   // token of the micro-batch
    int32_t tokens = 0;  // real ones
};

// T = capacity tokens, in B sequences that lie one after the other: without packing B rows of equal length,
// each padded at its end; with packing any number, of which the last ones may be nothing but padding.
// Sequences cover all T tokens.
struct MicroBatch {
    std::span<int32_t> tokens;      // (T)
    std::span<int32_t> targets;     // (T): label of the next token of the same sequence, or kIgnore
    std::span<int32_t> positions;   // (T): from 0 in each sequence
    std::span<uint8_t> valid;       // (T): 1 a real token, 0 padding
    std::span<int32_t> cu_seqlens;  // (B + 1): 0 … T
    std::span<int32_t>
        cu_seqlens_capacity;  // the same, followed by T up to a length that is the same in every step
    int32_t max_seqlen = 0;   // no sequence is longer; the same in every step
    int64_t labels = 0;       // targets that count
    int64_t real_tokens = 0;
    std::vector<SequenceOrigin> origins;  // of the sequences that have a real token, in order
};

struct StepBatch {
    int64_t number = 0;                               // of the batch, from 0 where the loader was opened
    int64_t epoch = 0;                                // of its last sequence
    int64_t labels = 0, real_tokens = 0, tokens = 0;  // of all micro-batches
    std::vector<MicroBatch> micro;
};

struct LabelRules {
    bool mask_degenerate_bases = true;  // only A C G T, in either case, count: no BOS, EOS, N
    bool uppercase = false;             // labels only; tokens keep their case
    bool each_base_once = false;        // what overlaps the window before is context only
};

// The label of each token id.
std::vector<int32_t> label_table(const Tokenizer& tokenizer, const LabelRules& rules);

// A StepBatch and the memory that it points to: one piece, from `memory`.
class BatchBuffer {
  public:
    BatchBuffer(const BatchShape& shape, int64_t micro_batches, std::pmr::memory_resource* memory);
    ~BatchBuffer();
    BatchBuffer(const BatchBuffer&) = delete;
    BatchBuffer& operator=(const BatchBuffer&) = delete;

    StepBatch& batch() { return batch_; }
    void fill(const WindowSet& windows, const StepPlan& plan, std::span<const int32_t> labels,
              const LabelRules& rules);

    static int64_t bytes(const BatchShape& shape, int64_t micro_batches);

  private:
    void fill_micro(const WindowSet& windows, std::span<const Piece> pieces, std::span<const int32_t> labels,
                    const LabelRules& rules, MicroBatch& micro);

    BatchShape shape_;
    int64_t bytes_;
    std::pmr::memory_resource* memory_;
    std::byte* data_;
    StepBatch batch_;
};

}  // namespace moebius::data
