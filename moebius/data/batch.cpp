#include "moebius/data/batch.h"

#include <algorithm>
#include <numeric>

#include "moebius/base/check.h"
#include "moebius/base/checked.h"

namespace moebius::data {
namespace {

constexpr int64_t kAlign = 64;

int64_t seqlen_capacity(const BatchShape& shape) {
    return shape.max_sequences() + 1;
}

int64_t micro_bytes(const BatchShape& shape) {
    return 3 * round_up(shape.capacity * 4, kAlign) + round_up(shape.capacity, kAlign) +
           round_up(seqlen_capacity(shape) * 4, kAlign);
}

template <class T>
std::span<T> carve(std::byte*& at, int64_t count) {
    const std::span<T> part(reinterpret_cast<T*>(at), static_cast<size_t>(count));
    at += round_up(count * static_cast<int64_t>(sizeof(T)), kAlign);
    return part;
}

template <class T>
std::span<T> part(std::span<T> whole, int64_t begin, int64_t count) {
    return whole.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

// Targets of a sequence from its tokens; the last one has no next token. Returns how many count.
int64_t shift_labels(std::span<const int32_t> tokens, std::span<const int32_t> labels,
                     std::span<int32_t> targets) {
    int64_t counted = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        targets[i] = labels[static_cast<size_t>(tokens[i + 1])];
        counted += targets[i] != kIgnore;
    }
    targets.back() = kIgnore;
    return counted;
}

// Ends the sequence that lies in [begin, end).
class SequenceWriter {
  public:
    SequenceWriter(MicroBatch& micro, int32_t pad) : micro_(micro), pad_(pad) {
        micro_.cu_seqlens_capacity[0] = 0;
    }

    int64_t at() const { return at_; }

    // `real` tokens are there already, with their targets; the rest up to `tokens` becomes padding.
    void finish(int64_t real, int64_t tokens) {
        std::fill_n(micro_.valid.begin() + at_, real, uint8_t{1});
        std::fill_n(micro_.valid.begin() + at_ + real, tokens - real, uint8_t{0});
        std::fill_n(micro_.tokens.begin() + at_ + real, tokens - real, pad_);
        std::fill_n(micro_.targets.begin() + at_ + real, tokens - real, kIgnore);
        std::iota(micro_.positions.begin() + at_, micro_.positions.begin() + at_ + tokens, 0);
        at_ += tokens;
        micro_.cu_seqlens_capacity[static_cast<size_t>(++sequences_)] = static_cast<int32_t>(at_);
    }

    void close() {
        MOEBIUS_CHECK(at_ == static_cast<int64_t>(micro_.tokens.size()), at_, " tokens of ",
                      micro_.tokens.size());
        micro_.cu_seqlens = micro_.cu_seqlens_capacity.first(static_cast<size_t>(sequences_) + 1);
        std::fill(micro_.cu_seqlens_capacity.begin() + sequences_ + 1, micro_.cu_seqlens_capacity.end(),
                  static_cast<int32_t>(at_));
    }

  private:
    MicroBatch& micro_;
    int32_t pad_;
    int64_t at_ = 0, sequences_ = 0;
};

}  // namespace

std::vector<int32_t> label_table(const Tokenizer& tokenizer, const LabelRules& rules) {
    std::vector<int32_t> table(static_cast<size_t>(tokenizer.vocab_size()));
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        const bool counts =
            id != tokenizer.pad() && (!rules.mask_degenerate_bases || tokenizer.is_certain(id));
        table[static_cast<size_t>(id)] = !counts ? kIgnore : rules.uppercase ? tokenizer.upper(id) : id;
    }
    return table;
}

int64_t BatchBuffer::bytes(const BatchShape& shape, int64_t micro_batches) {
    return micro_batches * micro_bytes(shape);
}

BatchBuffer::BatchBuffer(const BatchShape& shape, int64_t micro_batches, std::pmr::memory_resource* memory)
    : shape_(shape),
      bytes_(bytes(shape, micro_batches)),
      memory_(memory),
      data_(static_cast<std::byte*>(memory->allocate(static_cast<size_t>(bytes_), kAlign))) {
    std::byte* at = data_;
    batch_.micro.resize(static_cast<size_t>(micro_batches));
    for (MicroBatch& micro : batch_.micro) {
        micro.tokens = carve<int32_t>(at, shape.capacity);
        micro.targets = carve<int32_t>(at, shape.capacity);
        micro.positions = carve<int32_t>(at, shape.capacity);
        micro.valid = carve<uint8_t>(at, shape.capacity);
        micro.cu_seqlens_capacity = carve<int32_t>(at, seqlen_capacity(shape));
        micro.max_seqlen = static_cast<int32_t>(shape.max_seqlen);
        micro.origins.reserve(static_cast<size_t>(shape.max_pieces));
    }
    batch_.tokens = micro_batches * shape.capacity;
}

BatchBuffer::~BatchBuffer() {
    memory_->deallocate(data_, static_cast<size_t>(bytes_), kAlign);
}

void BatchBuffer::fill(const WindowSet& windows, const StepPlan& plan, std::span<const int32_t> labels,
                       const LabelRules& rules) {
    batch_.epoch = plan.epoch;
    batch_.labels = batch_.real_tokens = 0;
    for (size_t m = 0; m < batch_.micro.size(); ++m) {
        const std::span<const Piece> all(plan.pieces);
        fill_micro(windows, part(all, plan.first_piece[m], plan.first_piece[m + 1] - plan.first_piece[m]),
                   labels, rules, batch_.micro[m]);
        batch_.labels += batch_.micro[m].labels;
        batch_.real_tokens += batch_.micro[m].real_tokens;
    }
}

void BatchBuffer::fill_micro(const WindowSet& windows, std::span<const Piece> pieces,
                             std::span<const int32_t> labels, const LabelRules& rules, MicroBatch& micro) {
    micro.labels = micro.real_tokens = 0;
    micro.origins.clear();
    SequenceWriter writer(micro, windows.data().tokenizer().pad());
    for (const Piece& piece : pieces) {
        const Window window = windows.at(piece.window);
        const std::span<int32_t> tokens = part(micro.tokens, writer.at(), piece.tokens);
        const std::span<int32_t> targets = part(micro.targets, writer.at(), piece.tokens);
        windows.read(window, piece.begin, tokens);
        micro.labels += shift_labels(tokens, labels, targets);
        if (rules.each_base_once) {
            // Targets of the window's tokens 1 … overlap.
            const int64_t masked = std::clamp<int64_t>(window.overlap - piece.begin, 0, piece.tokens);
            for (int32_t& target : targets.first(static_cast<size_t>(masked))) {
                micro.labels -= target != kIgnore;
                target = kIgnore;
            }
        }
        const int64_t first_base = std::max<int64_t>(piece.begin - 1, 0);
        const int64_t end_base = std::min(piece.begin + piece.tokens - 1, window.length);
        micro.origins.push_back({.record = window.record,
                                 .base = window.begin + first_base,
                                 .bases = std::max<int64_t>(end_base - first_base, 0),
                                 .first = static_cast<int32_t>(writer.at()),
                                 .tokens = static_cast<int32_t>(piece.tokens)});
        micro.real_tokens += piece.tokens;
        writer.finish(piece.tokens,
                      shape_.packing ? round_up(piece.tokens, shape_.multiple) : shape_.row_tokens());
    }
    while (writer.at() < shape_.capacity)
        writer.finish(0, shape_.packing ? std::min(shape_.capacity - writer.at(), shape_.max_seqlen)
                                        : shape_.row_tokens());
    writer.close();
}

}  // namespace moebius::data
