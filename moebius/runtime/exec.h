// How ops run: a small value, passed down. What it points to belongs to the caller and outlives the call.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moebius/runtime/device.h"
#include "moebius/runtime/pool.h"
#include "moebius/runtime/thread_pool.h"

namespace moebius {

// Work of one call, or of many added up.
struct Cost {
    double flops = 0;
    double bytes = 0;
    Cost& operator+=(const Cost& other) {
        flops += other.flops;
        bytes += other.bytes;
        return *this;
    }
};

// op → variant forced by name (`kernels.<op>`).
using ForcedVariants = std::map<std::string, std::string>;

// Which variant each op took, and why not the rows above it. One entry an (op, choice).
class VariantLog {
  public:
    struct Entry {
        std::string op, chosen;
        std::vector<std::string> passed_over;  // "name: reason"
        int64_t calls = 0;
        Cost cost;
    };
    void record(const std::string& op, const std::string& chosen, const std::vector<std::string>& passed_over,
                const Cost& cost);
    const std::vector<Entry>& entries() const { return entries_; }

  private:
    std::vector<Entry> entries_;
};

struct Exec {
    const Device* device = nullptr;
    Stream stream;
    Pool* pool = nullptr;
    ThreadPool* threads = nullptr;
    const ForcedVariants* forced = nullptr;  // may be null
    VariantLog* log = nullptr;               // may be null
    Cost* cost = nullptr;                    // may be null; dispatch adds to it
    bool dry = false;                        // validate, choose, count; launch nothing

    // function(piece, thread) on the thread pool.
    template <class F>
    void parallel(int64_t pieces, F&& function) const {
        threads->run(pieces, static_cast<F&&>(function));
    }
};

// Scratch for the length of a scope.
class Scratch {
  public:
    Scratch(const char* name, size_t bytes, const Exec& exec)
        : pool_(exec.pool), stream_(exec.stream), data_(pool_->allocate(name, bytes, stream_)) {}
    ~Scratch() { pool_->release(data_, stream_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

  private:
    Pool* pool_;
    Stream stream_;
    void* data_;
};

}  // namespace moebius
