#include <fmt/format.h>

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"
#include "moebius/runtime/pool.h"

namespace moebius {
namespace {

void add_streams(std::vector<void*>& streams, const std::vector<void*>& others) {
    for (void* stream : others) {
        if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
    }
}

// Addresses without memory.
class NoMemory : public SystemMemory {
  public:
    explicit NoMemory(size_t alignment) : alignment_(alignment) {}
    std::string name() const override { return "planned"; }
    size_t alignment() const override { return alignment_; }
    Range take(size_t more, size_t) override {
        const Range range{reinterpret_cast<char*>(next_), more};
        next_ += more;
        return range;
    }
    void order(Stream, Stream) override {}

  private:
    size_t alignment_;
    uintptr_t next_ = 4096;
};

}  // namespace

Arena::Arena(std::unique_ptr<SystemMemory> memory, int64_t limit_bytes)
    : memory_(std::move(memory)), limit_bytes_(limit_bytes) {}

void Arena::wait_for(const std::vector<void*>& streams, Stream stream) {
    for (void* other : streams) {
        if (other != stream.handle) memory_->order({other}, stream);
    }
}

// The block that fits best, the lowest of equals; null if none is large enough.
char* Arena::take_free(size_t bytes, Stream stream) {
    const auto best = free_.lower_bound({bytes, nullptr});
    if (best == free_.end()) return nullptr;
    char* const data = best->second;
    free_.erase(best);
    Block& block = blocks_.at(data);
    wait_for(block.streams, stream);
    if (block.bytes > bytes) {
        blocks_[data + bytes] = {.bytes = block.bytes - bytes, .free = true, .streams = block.streams};
        free_.insert({block.bytes - bytes, data + bytes});
    }
    block = {.bytes = bytes};
    return data;
}

char* Arena::take_rest(const char* name, size_t asked, size_t bytes, Stream stream) {
    if (bytes > static_cast<size_t>(end_ - rest_)) {
        const size_t more = bytes - static_cast<size_t>(end_ - rest_);
        const int64_t taken = before_rest_ + (rest_ - last_range_) + static_cast<int64_t>(bytes);
        SystemMemory::Range range;
        if (limit_bytes_ == 0 || taken <= limit_bytes_) range = memory_->take(more, bytes);
        if (range.begin == nullptr) {
            throw DeviceError(fmt::format("out of {} memory: '{}' needs {} bytes, {} are in use{}\n{}",
                                          memory_->name(), name, asked, ledger_.current(),
                                          limit_bytes_ ? fmt::format(" of at most {}", limit_bytes_) : "",
                                          report().str()));
        }
        system_bytes_ += static_cast<int64_t>(range.bytes);
        ++system_allocations_;
        if (range.begin != end_) {
            // A range elsewhere: what was left of the one before becomes an ordinary free block.
            before_rest_ += end_ - last_range_;
            if (rest_ != end_) add_free(rest_, {static_cast<size_t>(end_ - rest_), true, rest_streams_});
            last_range_ = rest_ = end_ = range.begin;
            rest_streams_.clear();
        }
        end_ += range.bytes;
    }
    wait_for(rest_streams_, stream);
    char* const data = rest_;
    rest_ += bytes;
    blocks_[data] = {.bytes = bytes};
    return data;
}

void* Arena::allocate(const char* name, size_t bytes, Stream stream) {
    const size_t alignment = memory_->alignment();
    const size_t padded = std::max<size_t>(bytes, 1) + memory_->gap();
    const size_t whole = (padded + alignment - 1) / alignment * alignment;
    char* data = take_free(whole, stream);
    if (data == nullptr) data = take_rest(name, bytes, whole, stream);
    ledger_.add(data, name, bytes);
    memory_->in_use(data, bytes);
    return data;
}

// Merges with free neighbours; one that reaches the rest joins it.
void Arena::add_free(char* begin, Block block) {
    const auto next = blocks_.find(begin + block.bytes);
    if (next != blocks_.end() && next->second.free) {
        free_.erase({next->second.bytes, next->first});
        block.bytes += next->second.bytes;
        add_streams(block.streams, next->second.streams);
        blocks_.erase(next);
    }
    auto before = blocks_.lower_bound(begin);
    if (before != blocks_.begin()) {
        --before;
        if (before->second.free && before->first + before->second.bytes == begin) {
            free_.erase({before->second.bytes, before->first});
            begin = before->first;
            block.bytes += before->second.bytes;
            add_streams(block.streams, before->second.streams);
        }
    }
    if (begin + block.bytes == rest_ && begin >= last_range_) {
        blocks_.erase(begin);
        rest_ = begin;
        add_streams(rest_streams_, block.streams);
        return;
    }
    block.free = true;
    free_.insert({block.bytes, begin});
    blocks_[begin] = std::move(block);
}

void Arena::release(void* data, Stream stream) {
    ledger_.remove(data);
    auto* const begin = static_cast<char*>(data);
    const auto found = blocks_.find(begin);
    const size_t bytes = found->second.bytes;
    memory_->out_of_use(begin, bytes);
    blocks_.erase(found);
    add_free(begin, {.bytes = bytes, .free = true, .streams = {stream.handle}});
}

PoolReport Arena::report() const {
    PoolReport report = ledger_.report();
    report.system_bytes = system_bytes_;
    report.system_allocations = system_allocations_;
    return report;
}

CountingPool::CountingPool(size_t alignment) : Arena(std::make_unique<NoMemory>(alignment)) {}

CudaArena::CudaArena(const Device& device, int64_t limit_bytes)
    : Arena(cuda_backend::device_memory(device.index()), limit_bytes) {}

std::unique_ptr<Arena> make_arena(const Device& device, int64_t limit_bytes) {
    if (device.kind() == DeviceKind::Cpu) return std::make_unique<HostArena>(limit_bytes);
    return std::make_unique<CudaArena>(device, limit_bytes);
}

}  // namespace moebius
