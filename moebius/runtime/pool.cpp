#include "moebius/runtime/pool.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius {
namespace {

// Classes are an eighth of a power of two apart: at most an eighth of a block is wasted.
size_t class_size(size_t bytes) {
    bytes = std::max<size_t>(bytes, kAlignment);
    const size_t granule = std::max<size_t>(kAlignment, std::bit_floor(bytes) / 8);
    return (bytes + granule - 1) / granule * granule;
}

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void PoolLedger::add(void* data, const char* name, size_t bytes) {
    const auto row = names_.try_emplace(name).first;
    row->second.current += static_cast<int64_t>(bytes);
    row->second.peak = std::max(row->second.peak, row->second.current);
    ++row->second.allocations;
    current_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, current_);
    live_.emplace(data, Live{&row->first, static_cast<int64_t>(bytes)});
}

void PoolLedger::remove(void* data) {
    const auto found = live_.find(data);
    MOEBIUS_CHECK(found != live_.end(), "released memory that this pool did not give, or gave back before");
    names_.find(*found->second.name)->second.current -= found->second.bytes;
    current_ -= found->second.bytes;
    live_.erase(found);
}

PoolReport PoolLedger::report() const {
    PoolReport report;
    report.current_bytes = current_;
    report.peak_bytes = peak_;
    for (const auto& [name, row] : names_) report.rows.push_back({name, row.peak, row.allocations});
    std::sort(report.rows.begin(), report.rows.end(),
              [](const auto& a, const auto& b) { return a.peak_bytes > b.peak_bytes; });
    return report;
}

std::string PoolReport::str() const {
    constexpr double kMiB = 1 << 20;
    std::string text = fmt::format("{:<40} {:>12} {:>12}\n", "name", "peak MiB", "allocations");
    for (const Row& row : rows) {
        text += fmt::format("{:<40} {:>12.2f} {:>12}\n", row.name, static_cast<double>(row.peak_bytes) / kMiB,
                            row.allocations);
    }
    return text + fmt::format("in use at most {:.2f} MiB, taken from the system {:.2f} MiB\n",
                              static_cast<double>(peak_bytes) / kMiB,
                              static_cast<double>(system_bytes) / kMiB);
}

HostArena::~HostArena() {
    for (const auto& [data, size] : class_of_) std::free(data);
}

void* HostArena::allocate(const char* name, size_t bytes, Stream) {
    const size_t size = class_size(bytes);
    auto& free_blocks = free_[size];
    void* data = nullptr;
    if (!free_blocks.empty()) {
        data = free_blocks.back();
        free_blocks.pop_back();
    } else {
        const bool fits = limit_bytes_ == 0 || system_bytes_ + static_cast<int64_t>(size) <= limit_bytes_;
        const size_t alignment = size >= kHugePage ? kHugePage : kAlignment;
        if (fits) data = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
        if (data == nullptr) {
            throw DeviceError(fmt::format("out of host memory: '{}' needs {} bytes, {} are in use{}\n{}",
                                          name, bytes, ledger_.current(),
                                          limit_bytes_ ? fmt::format(" of at most {}", limit_bytes_) : "",
                                          report().str()));
        }
        if (size >= kHugePage) madvise(data, size, MADV_HUGEPAGE);
        system_bytes_ += static_cast<int64_t>(size);
        ++system_allocations_;
        class_of_.emplace(data, size);
    }
    ledger_.add(data, name, bytes);
    return data;
}

void HostArena::release(void* data, Stream) {
    ledger_.remove(data);
    free_[class_of_.at(data)].push_back(data);
}

PoolReport HostArena::report() const {
    PoolReport report = ledger_.report();
    report.system_bytes = system_bytes_;
    report.system_allocations = system_allocations_;
    return report;
}

void* CountingPool::allocate(const char* name, size_t bytes, Stream) {
    void* data = reinterpret_cast<void*>(next_);
    next_ += std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    ledger_.add(data, name, bytes);
    return data;
}

void CountingPool::release(void* data, Stream) {
    ledger_.remove(data);
}

}  // namespace moebius
