#include "moebius/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "moebius/base/check.h"
#include "moebius/base/checked.h"
#include "moebius/base/checksum.h"
#include "moebius/base/error.h"

namespace moebius::data {
namespace {

void check_positive(std::string_view key, int64_t value) {
    if (value < 1) throw Error(fmt::format("{} = {} must be at least 1", key, value));
}

void check_capacity(int64_t rows, int64_t row, const char* keys) {
    int64_t capacity = 0;
    if (__builtin_mul_overflow(rows, row, &capacity) || capacity > INT32_MAX)
        throw Error(
            fmt::format("{} = {} × {} tokens: a micro-batch holds at most {}", keys, rows, row, INT32_MAX));
}

// The first window of the greatest length, for a message.
std::string longest_window(const WindowSet& windows) {
    for (int64_t i = 0; i < windows.size(); ++i)
        if (const Window w = windows.at(i); w.length + 2 == windows.max_length())
            return windows.data().describe(w.record, w.begin, w.begin + w.length);
    return {};
}

BatchShape packed_shape(const WindowSet& windows, const LoaderOptions& options) {
    const int64_t length = windows.options().max_seq_length;
    BatchShape shape{.packing = true,
                     .split_samples = options.split_samples,
                     .multiple = options.pad_multiple.value_or(1)};
    if (!options.token_micro_batch_size)
        check_capacity(options.micro_batch_size, length, "dataset.micro_batch_size × dataset.max_seq_length");
    shape.capacity = options.token_micro_batch_size.value_or(options.micro_batch_size * length);
    check_positive("dataset.token_micro_batch_size", shape.capacity);
    check_capacity(1, shape.capacity, "dataset.token_micro_batch_size");
    if (shape.capacity % shape.multiple != 0)
        throw Error(
            fmt::format("dataset.token_micro_batch_size = {} tokens must be divisible by "
                        "dataset.pad_sequences_to_be_divisible_by = {}",
                        shape.capacity, shape.multiple));
    const int64_t longest = round_up(windows.max_length(), shape.multiple);
    if (!options.split_samples && longest > shape.capacity)
        throw Error(
            fmt::format("{}: a sample of {} tokens is longer than a micro-batch of {} "
                        "(dataset.token_micro_batch_size); make that larger or set "
                        "dataset.split_samples_in_token_packing = true",
                        longest_window(windows), longest, shape.capacity));
    shape.max_seqlen = std::min(longest, shape.capacity);
    // A begun one, whole ones, one that is cut off.
    shape.max_pieces = shape.capacity / round_up(windows.min_length(), shape.multiple) + 2;
    return shape;
}

Position position_now(const WindowSet& windows, const LoaderOptions& options) {
    Position now;
    now.seed = options.seed;
    now.windows = windows.size();
    now.buffer_size = options.buffer_size;
    now.max_seq_length = windows.options().max_seq_length;
    now.stride = windows.options().stride;
    Checksum sum;
    sum.update(windows.data().fingerprint().data(), windows.data().fingerprint().size());
    for (const Range& range : windows.ranges()) sum.update(&range, sizeof range);
    now.content = sum.hex();
    now.rank = options.data_rank;
    now.world = options.data_world;
    return now;
}

}  // namespace

void check_position(const WindowSet& windows, const LoaderOptions& options) {
    check_matches(Position::parse(options.position), position_now(windows, options));
}

BatchShape batch_shape(const WindowSet& windows, const LoaderOptions& options) {
    check_positive("grad_acc_steps", options.grad_acc_steps);
    check_positive("dataset.micro_batch_size", options.micro_batch_size);
    check_positive("dataset.pad_sequences_to_be_divisible_by", options.pad_multiple.value_or(1));
    check_positive("dataset.buffer_size", options.buffer_size);
    check_positive("dataset.prefetch_factor", options.prefetch_factor);
    if (options.num_workers < 0 || options.num_workers > 1024)
        throw Error(fmt::format("dataset.num_workers = {} must be between 0 and 1024", options.num_workers));
    MOEBIUS_CHECK(options.data_world > 0 && options.data_rank >= 0 && options.data_rank < options.data_world,
                  "data rank ", options.data_rank, " of ", options.data_world);
    if (options.use_sequence_packing) return packed_shape(windows, options);
    if (options.token_micro_batch_size)
        throw Error(fmt::format(
            "dataset.token_micro_batch_size = {} has no meaning without use_sequence_packing = true",
            *options.token_micro_batch_size));
    const int64_t row = round_up(windows.options().max_seq_length, options.pad_multiple.value_or(1));
    check_capacity(options.micro_batch_size, row, "dataset.micro_batch_size × dataset.max_seq_length");
    return {.rows = options.micro_batch_size,
            .capacity = options.micro_batch_size * row,
            .multiple = options.pad_multiple.value_or(1),
            .max_seqlen = row,
            .max_pieces = options.micro_batch_size};
}

struct Loader::State {
    struct Slot {
        std::unique_ptr<BatchBuffer> buffer;
        StepPlan plan;
        bool ready = false;
        bool last = false;           // there is no such batch: the epoch is over
        std::exception_ptr failure;  // in place of the batch
    };

    State(std::shared_ptr<const WindowSet> set, LoaderOptions given);
    int64_t count_steps() const;
    bool plan_next(Slot& slot, int64_t number);
    void fill(Slot& slot, int64_t number);
    void work();
    void end();
    Slot& slot_of(int64_t number) { return slots[static_cast<size_t>(number) % slots.size()]; }

    const std::shared_ptr<const WindowSet> windows;
    const LoaderOptions options;
    const BatchShape shape;
    const std::vector<int32_t> labels;
    Position position;        // behind the last batch returned
    int64_t steps = -1;       // of one_epoch
    Planner planner;          // guarded by `mutex`
    std::vector<Slot> slots;  // batch n lies in slot n modulo their number

    std::mutex mutex;
    std::condition_variable made, taken;  // `made` is waited for in next_step, `taken` in work
    int64_t planned = 0;                  // batches that a worker has taken on
    int64_t returned = 0;                 // batches that next_step gave; the last of them is in use
    bool stop = false;
    std::exception_ptr failure;  // what next_step has thrown once
    double waited = 0;
    std::vector<std::jthread> threads;
};

Loader::State::State(std::shared_ptr<const WindowSet> set, LoaderOptions given)
    : windows(std::move(set)),
      options(std::move(given)),
      shape(batch_shape(*windows, options)),
      labels(label_table(windows->data().tokenizer(), options.labels)),
      position(position_now(*windows, options)),
      planner([this] {
          if (!options.position.empty()) {
              MOEBIUS_CHECK(!options.one_epoch, "a single epoch has no position to go on from");
              const Position saved = Position::parse(options.position);
              check_matches(saved, position);
              position = saved;
          }
          return Planner(*windows, shape, position, options.one_epoch);
      }()) {
    if (options.one_epoch) steps = count_steps();
    auto* memory = options.memory != nullptr ? options.memory : std::pmr::new_delete_resource();
    // One more than are made ahead: the one in use.
    slots.resize(
        options.num_workers == 0
            ? 1
            : static_cast<size_t>(options.num_workers) * static_cast<size_t>(options.prefetch_factor) + 1);
    for (Slot& slot : slots) {
        slot.plan.pieces.reserve(static_cast<size_t>(options.grad_acc_steps * shape.max_pieces));
        slot.plan.first_piece.reserve(static_cast<size_t>(options.grad_acc_steps) + 1);
        slot.buffer = std::make_unique<BatchBuffer>(shape, options.grad_acc_steps, memory);
    }
}

// With several ranks the longest epoch of all of them.
int64_t Loader::State::count_steps() const {
    int64_t most = 0;
    for (int32_t rank = 0; rank < options.data_world; ++rank) {
        Position start = position;
        start.rank = rank;
        Planner planner_of_rank(*windows, shape, start, true);
        StepPlan plan;
        int64_t count = 0;
        while (planner_of_rank.plan(options.grad_acc_steps, plan)) ++count;
        most = std::max(most, count);
    }
    return most;
}

// With the mutex held. False at the end of a single epoch.
bool Loader::State::plan_next(Slot& slot, int64_t number) {
    slot.ready = false;
    slot.failure = nullptr;
    slot.last = options.one_epoch && number >= steps;
    if (!slot.last) planner.plan(options.grad_acc_steps, slot.plan);
    return !slot.last;
}

void Loader::State::fill(Slot& slot, int64_t number) {
    if (options.before_fill) options.before_fill(number);
    slot.buffer->fill(*windows, slot.plan, labels, options.labels);
    slot.buffer->batch().number = number;
}

void Loader::State::work() {
    std::unique_lock lock(mutex);
    while (true) {
        // The slot of batch n is free once batch n - slots + 1 has been returned, so that its predecessor is
        // not in use.
        taken.wait(lock, [&] {
            return stop || planned < std::max<int64_t>(returned - 1, 0) + static_cast<int64_t>(slots.size());
        });
        if (stop) return;
        const int64_t number = planned++;
        Slot& slot = slot_of(number);
        std::exception_ptr thrown;
        try {
            const bool more = plan_next(slot, number);
            lock.unlock();
            if (more) fill(slot, number);
            lock.lock();
        } catch (...) {
            thrown = std::current_exception();
            if (!lock.owns_lock()) lock.lock();
        }
        slot.failure = thrown;
        slot.ready = true;
        made.notify_one();
        if (slot.last || thrown) stop = true;
        if (stop) taken.notify_all();
    }
}

void Loader::State::end() {
    {
        const std::lock_guard lock(mutex);
        stop = true;
    }
    taken.notify_all();
    threads.clear();  // joins, while what they use is still there
}

Loader::Loader(std::shared_ptr<const WindowSet> windows, LoaderOptions options)
    : state_(std::make_unique<State>(std::move(windows), std::move(options))) {
    const int workers = state_->options.num_workers;
    try {
        for (int i = 0; i < workers; ++i)
            state_->threads.emplace_back([state = state_.get()] { state->work(); });
    } catch (const std::system_error& error) {
        const size_t started = state_->threads.size();
        state_->end();
        throw Error(fmt::format("only {} of dataset.num_workers = {} threads could be started: {}", started,
                                workers, error.what()));
    }
}

Loader::~Loader() {
    state_->end();
}

StepBatch* Loader::next_step() {
    State& s = *state_;
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(s.mutex);
    if (s.failure) std::rethrow_exception(s.failure);
    const int64_t number = s.returned;
    State::Slot& slot = s.slot_of(number);
    if (s.threads.empty()) {
        try {
            if (s.plan_next(slot, number)) s.fill(slot, number);
        } catch (...) {
            slot.failure = std::current_exception();
        }
    } else {
        s.made.wait(lock, [&] { return s.planned > number && slot.ready; });
    }
    s.failure = slot.failure;
    s.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (s.failure) std::rethrow_exception(s.failure);
    if (slot.last) return nullptr;
    ++s.returned;
    s.position.items = slot.plan.items;
    s.position.offset = slot.plan.offset;
    s.taken.notify_one();
    return &slot.buffer->batch();
}

std::string Loader::position() const {
    return state_->position.to_json();
}
const BatchShape& Loader::shape() const {
    return state_->shape;
}
const WindowSet& Loader::windows() const {
    return *state_->windows;
}
double Loader::seconds_waited() const {
    return state_->waited;
}

int64_t Loader::memory_bytes() const {
    return static_cast<int64_t>(state_->slots.size()) *
           BatchBuffer::bytes(state_->shape, state_->options.grad_acc_steps);
}

std::string describe_origins(const Dataset& data, const MicroBatch& micro, size_t limit) {
    std::string text;
    for (size_t i = 0; i < std::min(limit, micro.origins.size()); ++i) {
        const SequenceOrigin& origin = micro.origins[i];
        text += fmt::format("{}{}", i > 0 ? "; " : "",
                            data.describe(origin.record, origin.base, origin.base + origin.bases));
    }
    if (micro.origins.size() > limit) text += fmt::format("; and {} more", micro.origins.size() - limit);
    return text;
}

}  // namespace moebius::data
