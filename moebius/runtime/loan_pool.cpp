#include "moebius/runtime/loan_pool.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr size_t kStep = kCudaAlignment;  // enough for the host too

size_t round_up_bytes(size_t bytes) {
    return (std::max<size_t>(bytes, 1) + kStep - 1) / kStep * kStep;
}

}  // namespace

void LoanPool::lend(int64_t lender, void* begin, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uintptr_t first = (address + kStep - 1) / kStep * kStep, past = (address + bytes) / kStep * kStep;
    if (first >= past) return;
    // A dry pool's addresses count from zero.
    constexpr uintptr_t kNoMemory = uintptr_t{1} << 62;
    char* const place =
        dry_ ? reinterpret_cast<char*>(first | kNoMemory) : static_cast<char*>(begin) + (first - address);
    Range range{.lender = lender, .free = {}, .used = {}};
    range.free[place] = past - first;
    ranges_.push_back(std::move(range));
}

void LoanPool::take_back(int64_t lender) {
    const auto first = std::stable_partition(ranges_.begin(), ranges_.end(),
                                             [&](const Range& range) { return range.lender != lender; });
    for (auto range = first; range != ranges_.end(); ++range)
        MOEBIUS_CHECK(range->used.empty(), "what lender ", lender, " takes back is in use");
    ranges_.erase(first, ranges_.end());
}

void* LoanPool::allocate(const char* name, size_t bytes, Stream stream) {
    const size_t whole = round_up_bytes(bytes);
    Range* best = nullptr;
    std::map<char*, size_t>::iterator block;
    if (stream.handle == stream_.handle) {
        for (Range& range : ranges_) {
            for (auto at = range.free.begin(); at != range.free.end(); ++at) {
                if (at->second < whole || (best != nullptr && at->second >= block->second)) continue;
                best = &range;
                block = at;
            }
        }
    }
    if (best == nullptr) return upstream_.allocate(name, bytes, stream);
    char* const data = block->first;
    const size_t rest = block->second - whole;
    best->free.erase(block);
    if (rest > 0) best->free[data + whole] = rest;
    best->used[data] = whole;
    current_ += static_cast<int64_t>(whole);
    peak_ = std::max(peak_, current_);
    return data;
}

void LoanPool::release(void* data, Stream stream) {
    char* begin = static_cast<char*>(data);
    for (Range& range : ranges_) {
        const auto found = range.used.find(begin);
        if (found == range.used.end()) continue;
        size_t bytes = found->second;
        current_ -= static_cast<int64_t>(bytes);
        range.used.erase(found);
        auto next = range.free.lower_bound(begin);
        if (next != range.free.end() && next->first == begin + bytes) {
            bytes += next->second;
            next = range.free.erase(next);
        }
        if (next != range.free.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == begin) {
                before->second += bytes;
                return;
            }
        }
        range.free[begin] = bytes;
        return;
    }
    upstream_.release(data, stream);
}

}  // namespace moebius
