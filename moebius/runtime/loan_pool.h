// Memory that somebody holds and does not use for a while, given to others until he needs it back.
#pragma once

#include "moebius/runtime/exec.h"

namespace moebius {

// Allocations lie in ranges that were lent, where they fit into one, and else come from exec.pool, which must
// outlive them. The block is the free one that fits best, the lowest of equals: the same calls give the same
// addresses. What lies in a range stands in that pool's report as its owner's alone.
class LoanPool : public Pool {
  public:
    // All work on ranges is ordered on exec.stream; what is asked for on another comes from exec.pool. A dry
    // exec's ranges stand at addresses of their own, where no memory is.
    explicit LoanPool(const Exec& exec) : upstream_(*exec.pool), stream_(exec.stream), dry_(exec.dry) {}
    LoanPool(const LoanPool&) = delete;
    LoanPool& operator=(const LoanPool&) = delete;

    // Nobody else reads or writes [begin, begin + bytes) until it is taken back. Ranges do not overlap.
    void lend(int64_t lender, void* begin, size_t bytes);
    // Ends the lender's loans. Aborts if something still lies there.
    void take_back(int64_t lender);

    void* allocate(const char* name, size_t bytes, Stream stream) override;
    void release(void* data, Stream stream) override;
    int64_t peak_bytes() const { return peak_; }  // that lay in ranges at one time, at most

  private:
    struct Range {
        int64_t lender = 0;
        std::map<char*, size_t> free, used;
    };
    Pool& upstream_;
    Stream stream_;
    bool dry_;
    std::vector<Range> ranges_;
    int64_t current_ = 0, peak_ = 0;
};

}  // namespace moebius
