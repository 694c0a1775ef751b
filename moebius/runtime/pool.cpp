#include "moebius/runtime/pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {

void PoolLedger::add(void* data, const char* name, size_t bytes) {
    const auto row = names_.try_emplace(name).first;
    row->second.current += static_cast<int64_t>(bytes);
    row->second.peak = std::max(row->second.peak, row->second.current);
    ++row->second.allocations;
    current_ += static_cast<int64_t>(bytes);
    // Of equal peaks the first.
    if (current_ > peak_) {
        peak_ = current_;
        at_peak_ = true;
    }
    live_.emplace(data, Live{&row->first, static_cast<int64_t>(bytes)});
}

void PoolLedger::remove(void* data) {
    const auto found = live_.find(data);
    MOEBIUS_CHECK(found != live_.end(), "released memory that this pool did not give, or gave back before");
    if (at_peak_) {
        for (auto& [name, row] : names_) row.at_peak = row.current;
        at_peak_ = false;
    }
    names_.find(*found->second.name)->second.current -= found->second.bytes;
    current_ -= found->second.bytes;
    live_.erase(found);
}

PoolReport PoolLedger::report() const {
    PoolReport report;
    report.current_bytes = current_;
    report.peak_bytes = peak_;
    for (const auto& [name, row] : names_)
        report.rows.push_back({name, row.peak, at_peak_ ? row.current : row.at_peak, row.allocations});
    std::sort(report.rows.begin(), report.rows.end(),
              [](const auto& a, const auto& b) { return a.peak_bytes > b.peak_bytes; });
    return report;
}

std::vector<PoolReport::Row> PoolReport::at_peak(size_t count) const {
    std::vector<Row> largest = rows;
    std::stable_sort(largest.begin(), largest.end(),
                     [](const auto& a, const auto& b) { return a.at_peak_bytes > b.at_peak_bytes; });
    if (largest.size() > count) largest.resize(count);
    return largest;
}

std::string PoolReport::str() const {
    constexpr double kMiB = 1 << 20;
    std::string text =
        fmt::format("{:<40} {:>12} {:>16} {:>12}\n", "name", "peak MiB", "at the peak MiB", "allocations");
    for (const Row& row : rows) {
        text += fmt::format("{:<40} {:>12.2f} {:>16.2f} {:>12}\n", row.name,
                            static_cast<double>(row.peak_bytes) / kMiB,
                            static_cast<double>(row.at_peak_bytes) / kMiB, row.allocations);
    }
    return text + fmt::format("in use at most {:.2f} MiB, taken from the system {:.2f} MiB\n",
                              static_cast<double>(peak_bytes) / kMiB,
                              static_cast<double>(system_bytes) / kMiB);
}

}  // namespace moebius
