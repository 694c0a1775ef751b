// Memory for tensors and scratch. Allocation is ordered on a stream: what one call releases, a later call on
// the same stream may get. Not thread-safe: the thread that drives the device allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moebius/runtime/device.h"

namespace moebius {

inline constexpr size_t kAlignment = 64;       // of host memory
inline constexpr size_t kCudaAlignment = 256;  // of a card's

class Pool {
  public:
    virtual ~Pool() = default;
    // Never null; aligned to kAlignment (on a card to kCudaAlignment); 0 bytes are rounded up. `name` is for
    // the report. Throws DeviceError.
    virtual void* allocate(const char* name, size_t bytes, Stream stream) = 0;
    virtual void release(void* data, Stream stream) = 0;
};

struct PoolReport {
    struct Row {
        std::string name;
        int64_t peak_bytes = 0;     // the most that allocations of this name held at one time
        int64_t at_peak_bytes = 0;  // what they held when all names together held the most
        int64_t allocations = 0;    // calls of allocate
    };
    std::vector<Row> rows;                         // largest first
    std::vector<Row> at_peak(size_t count) const;  // those that held the most at the peak
    int64_t current_bytes = 0;                     // held by callers now
    int64_t peak_bytes = 0;                        // held by callers at most
    int64_t system_bytes = 0;                      // taken from the system
    int64_t system_allocations = 0;                // how often the system was asked
    std::string str() const;
};

// Keeps a pool's book.
class PoolLedger {
  public:
    void add(void* data, const char* name, size_t bytes);
    void remove(void* data);
    PoolReport report() const;
    int64_t current() const { return current_; }

  private:
    struct Live {
        const std::string* name;
        int64_t bytes;
    };
    struct PerName {
        int64_t current = 0, peak = 0, at_peak = 0, allocations = 0;
    };
    std::unordered_map<void*, Live> live_;
    std::map<std::string, PerName> names_;
    int64_t current_ = 0, peak_ = 0;
    bool at_peak_ = false;  // current_ is peak_: what each name holds now is what it holds at the peak
};

// Where an arena's memory comes from: ranges of addresses, the last of which may grow at its end. The
// destructor waits for work that uses it.
class SystemMemory {
  public:
    struct Range {
        char* begin = nullptr;  // null: there is no more
        size_t bytes = 0;
    };
    virtual ~SystemMemory() = default;
    virtual std::string name() const = 0;  // for messages: "host", "GPU 0"
    virtual size_t alignment() const = 0;
    // At least `more` bytes right behind the last range, or else a range of at least `whole`. Stays until
    // this object goes.
    virtual Range take(size_t more, size_t whole) = 0;
    // Work queued on `then` from now on comes after what is queued on `first`.
    virtual void order(Stream first, Stream then) = 0;
    // A sanitizer may want to know.
    virtual size_t gap() const { return 0; }  // unused bytes behind each block
    virtual void in_use(char*, size_t) {}
    virtual void out_of_use(char*, size_t) {}
};

// Blocks of memory that is never given back to the system before the end. A block is the free one that fits
// best, with its rest split off; free neighbours merge. What lies behind the last block in use counts as one
// unlimited rest, taken when nothing else fits: where blocks go depends on what is asked for alone, so that a
// step that is repeated from the same state gets the same addresses and takes nothing more from the system.
//
// Release and allocation are ordered on their stream. A block released on another stream makes the one that
// gets it wait; both streams must still exist.
class Arena : public Pool {
  public:
    // `limit_bytes`: what blocks and the gaps between them may take at most; 0 = no limit.
    explicit Arena(std::unique_ptr<SystemMemory> memory, int64_t limit_bytes = 0);
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Throws DeviceError with the report if there is no more.
    void* allocate(const char* name, size_t bytes, Stream stream) override;
    void release(void* data, Stream stream) override;
    PoolReport report() const;

  private:
    struct Block {
        size_t bytes = 0;  // with rounding and gap
        bool free = false;
        std::vector<void*> streams;  // free: where it was released
    };
    using Blocks = std::map<char*, Block>;
    char* take_free(size_t bytes, Stream stream);
    char* take_rest(const char* name, size_t asked, size_t bytes, Stream stream);
    void add_free(char* begin, Block block);
    void wait_for(const std::vector<void*>& streams, Stream stream);

    std::unique_ptr<SystemMemory> memory_;
    int64_t limit_bytes_;
    int64_t system_bytes_ = 0, system_allocations_ = 0;
    Blocks blocks_;
    std::set<std::pair<size_t, char*>> free_;  // (bytes, address)
    char *rest_ = nullptr, *end_ = nullptr;    // the last range from the last block in use on
    std::vector<void*> rest_streams_;
    int64_t before_rest_ = 0;  // bytes of the ranges before the last one
    char* last_range_ = nullptr;
    PoolLedger ledger_;
};

// Host memory: one range of addresses that grows.
class HostArena : public Arena {
  public:
    explicit HostArena(int64_t limit_bytes = 0);
};

// Memory of a card: one range of addresses that grows, a few MiB at a time at least.
class CudaArena : public Arena {
  public:
    explicit CudaArena(const Device& device, int64_t limit_bytes = 0);
};

// Hands out addresses that nobody may touch: a dry step's memory plan. `system_bytes` of its report is what
// an arena over memory of that alignment would take.
class CountingPool : public Arena {
  public:
    explicit CountingPool(size_t alignment = kAlignment);
};

// The arena for a device's tensors.
std::unique_ptr<Arena> make_arena(const Device& device, int64_t limit_bytes = 0);

}  // namespace moebius
