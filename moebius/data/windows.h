// Records cut into overlapping windows, each addressable by its number; and the held-out part.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moebius/data/dataset.h"

namespace moebius::data {

// Tokens [begin, end) of a record.
struct Range {
    int64_t record = 0, begin = 0, end = 0;
};

struct Split {
    std::vector<Range> training, held_out;
    int64_t training_tokens = 0, held_out_tokens = 0;
};

// The held-out part is the last `fraction` (rounded down, at least one token) of the tokens of all records
// laid end to end: contiguous, and no token in both. 0 holds nothing out. Key: validation.fraction.
Split split_held_out(const Dataset& data, double fraction);

// "bases 1 to 4691873 of genome.fna.gz, record 0 (NC_008253.1)", or a count and the first and last of
// several.
std::string describe_ranges(const Dataset& data, const std::vector<Range>& ranges);

struct WindowOptions {
    int64_t max_seq_length = 8192;  // L, with BOS and EOS; the payload is P = L - 2
    std::optional<int64_t> stride =
        200;  // overlap of neighbours, < P; none: no windows, a longer record is an error
};

struct Window {
    int64_t record = 0, begin = 0, length = 0;  // tokens of the record; BOS and EOS are put around them
    int64_t overlap = 0;                        // the first ones that are the previous window's last
};

// Thread-safe, immutable.
class WindowSet {
  public:
    // A range of n tokens gives 1 + ceil(max(0, n - P) / (P - stride)) windows, all but the last full; an
    // empty one none. Throws Error for options out of range, and when there is no window at all.
    WindowSet(std::shared_ptr<const Dataset> data, std::vector<Range> ranges, const WindowOptions& options);

    int64_t size() const { return windows_; }
    Window at(int64_t window) const;
    int64_t max_length() const { return max_length_; }  // of the longest window, BOS and EOS included
    int64_t min_length() const { return min_length_; }  // of the shortest

    // Tokens of [begin, begin + out.size()) of BOS, payload, EOS.
    void read(const Window& window, int64_t begin, std::span<int32_t> out) const;

    const Dataset& data() const { return *data_; }
    const std::vector<Range>& ranges() const { return ranges_; }
    const WindowOptions& options() const { return options_; }
    int64_t tokens() const { return tokens_; }             // of the ranges: every one counted once
    int64_t tokens_with_overlap() const { return read_; }  // of all windows, BOS and EOS included

  private:
    std::shared_ptr<const Dataset> data_;
    std::vector<Range> ranges_;          // none empty
    std::vector<int64_t> first_window_;  // of each range
    WindowOptions options_;
    int64_t payload_ = 0, step_ = 0, windows_ = 0, max_length_ = 0, min_length_ = INT64_MAX, tokens_ = 0,
            read_ = 0;
};

}  // namespace moebius::data
