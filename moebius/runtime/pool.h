// Memory for tensors and scratch. Allocation is ordered on a stream: what one call releases, a later call on
// the same stream may get. Not thread-safe: the thread that drives the device allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "moebius/runtime/device.h"

namespace moebius {

inline constexpr size_t kAlignment = 64;

class Pool {
  public:
    virtual ~Pool() = default;
    // Never null; aligned to kAlignment; 0 bytes are rounded up. `name` is for the report. Throws
    // DeviceError.
    virtual void* allocate(const char* name, size_t bytes, Stream stream) = 0;
    virtual void release(void* data, Stream stream) = 0;
};

struct PoolReport {
    struct Row {
        std::string name;
        int64_t peak_bytes = 0;   // the most that allocations of this name held at one time
        int64_t allocations = 0;  // calls of allocate
    };
    std::vector<Row> rows;           // largest first
    int64_t current_bytes = 0;       // held by callers now
    int64_t peak_bytes = 0;          // held by callers at most
    int64_t system_bytes = 0;        // taken from the system
    int64_t system_allocations = 0;  // how often the system was asked
    std::string str() const;
};

// Keeps the book for both pools below.
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
        int64_t current = 0, peak = 0, allocations = 0;
    };
    std::unordered_map<void*, Live> live_;
    std::map<std::string, PerName> names_;
    int64_t current_ = 0, peak_ = 0;
};

// Host memory. Blocks return to size classes and never to the system, so that a step repeated allocates
// nothing anew.
class HostArena : public Pool {
  public:
    // `limit_bytes`: what may be taken from the system; 0 = no limit.
    explicit HostArena(int64_t limit_bytes = 0) : limit_bytes_(limit_bytes) {}
    ~HostArena() override;
    HostArena(const HostArena&) = delete;
    HostArena& operator=(const HostArena&) = delete;

    void* allocate(const char* name, size_t bytes, Stream stream) override;
    void release(void* data, Stream stream) override;
    PoolReport report() const;

  private:
    int64_t limit_bytes_;
    int64_t system_bytes_ = 0, system_allocations_ = 0;
    std::map<size_t, std::vector<void*>> free_;  // by class size
    std::unordered_map<void*, size_t> class_of_;
    PoolLedger ledger_;
};

// Hands out addresses that nobody may touch: a dry step's memory plan.
class CountingPool : public Pool {
  public:
    void* allocate(const char* name, size_t bytes, Stream stream) override;
    void release(void* data, Stream stream) override;
    PoolReport report() const { return ledger_.report(); }

  private:
    uintptr_t next_ = kAlignment;
    PoolLedger ledger_;
};

}  // namespace moebius
