#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "moebius/runtime/pool.h"

namespace moebius {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallStep = size_t{64} << 10;  // an arena of a few bytes takes little
constexpr size_t kMostAddresses = size_t{4} << 40, kLeastAddresses = size_t{64} << 30;

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kGap = kAlignment;  // where reading past a block is seen
#else
constexpr size_t kGap = 0;
#endif

size_t rounded_up(size_t bytes, size_t step) {
    return (bytes + step - 1) / step * step;
}

char* map(size_t bytes, int protection) {
    void* data = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

bool addresses_are_limited() {
    rlimit limit{};
    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// Addresses are reserved in plenty, and pages made usable as they are asked for. Where addresses are limited
// (`ulimit -v`), one mapping a range instead.
class HostMemory : public SystemMemory {
  public:
    HostMemory() = default;
    ~HostMemory() override {
        for (const Range& range : mappings_) {
            // Only what was usable: a sanitizer marks every byte that it is told of.
            ASAN_UNPOISON_MEMORY_REGION(range.begin, reserved_ ? used_ : range.bytes);
            munmap(range.begin, range.bytes);
        }
    }
    std::string name() const override { return "host"; }
    size_t alignment() const override { return kAlignment; }

    Range take(size_t more, size_t whole) override {
        if (mappings_.empty() && !addresses_are_limited()) reserve();
        if (!reserved_) return map_range(whole);
        const size_t step = used_ + more < kHugePage ? kSmallStep : kHugePage;
        const size_t bytes = rounded_up(used_ + more, step) - used_;
        if (bytes > mappings_[0].bytes - used_) return {};
        char* const begin = mappings_[0].begin + used_;
        if (mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) return {};
        if (used_ + bytes >= kHugePage) madvise(mappings_[0].begin, used_ + bytes, MADV_HUGEPAGE);
        used_ += bytes;
        ASAN_POISON_MEMORY_REGION(begin, bytes);
        return {begin, bytes};
    }

    void order(Stream, Stream) override {}  // work is done when a call returns
    size_t gap() const override { return kGap; }
    void in_use([[maybe_unused]] char* data, [[maybe_unused]] size_t bytes) override {
        ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    }
    void out_of_use([[maybe_unused]] char* data, [[maybe_unused]] size_t bytes) override {
        ASAN_POISON_MEMORY_REGION(data, bytes);
    }

  private:
    void reserve() {
        for (size_t bytes = kMostAddresses; bytes >= kLeastAddresses && !reserved_; bytes /= 2) {
            char* data = map(bytes, PROT_NONE);
            if (data == nullptr) continue;
            // Huge pages begin where their size divides the address.
            const auto address = reinterpret_cast<uintptr_t>(data);
            const size_t skip = rounded_up(address, kHugePage) - address;
            if (skip > 0) munmap(data, skip);
            mappings_ = {{data + skip, bytes - skip}};
            reserved_ = true;
        }
    }

    Range map_range(size_t bytes) {
        const Range range{map(rounded_up(bytes, kSmallStep), PROT_READ | PROT_WRITE),
                          rounded_up(bytes, kSmallStep)};
        if (range.begin == nullptr) return {};
        if (range.bytes >= kHugePage) madvise(range.begin, range.bytes, MADV_HUGEPAGE);
        mappings_.push_back(range);
        ASAN_POISON_MEMORY_REGION(range.begin, range.bytes);
        return range;
    }

    std::vector<Range> mappings_;
    bool reserved_ = false;  // one mapping, of which used_ bytes are usable
    size_t used_ = 0;
};

}  // namespace

HostArena::HostArena(int64_t limit_bytes) : Arena(std::make_unique<HostMemory>(), limit_bytes) {}

}  // namespace moebius
