#include "moebius/data/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moebius/base/check.h"
#include "moebius/base/checked.h"
#include "moebius/base/error.h"

namespace moebius::data {

Split split_held_out(const Dataset& data, double fraction) {
    if (!(fraction >= 0 && fraction < 1))
        throw Error(fmt::format("validation.fraction = {} must be at least 0 and below 1", fraction));
    Split split;
    if (fraction > 0) {
        const double part = std::floor(fraction * static_cast<double>(data.tokens()));
        split.held_out_tokens = std::max<int64_t>(1, static_cast<int64_t>(part));
    }
    split.training_tokens = data.tokens() - split.held_out_tokens;
    if (split.training_tokens < 1)
        throw Error(fmt::format("validation.fraction = {} leaves none of the {} tokens for training",
                                fraction, data.tokens()));
    for (int64_t record = 0; record < data.records(); ++record) {
        const int64_t length = data.length(record);
        const int64_t cut = std::clamp<int64_t>(split.training_tokens - data.first_token(record), 0, length);
        if (cut > 0) split.training.push_back({record, 0, cut});
        if (cut < length) split.held_out.push_back({record, cut, length});
    }
    return split;
}

std::string describe_ranges(const Dataset& data, const std::vector<Range>& ranges) {
    if (ranges.empty()) return "nothing";
    const auto one = [&](const Range& range) {
        return fmt::format("bases {} to {} of {}", range.begin + 1, range.end, data.describe(range.record));
    };
    if (ranges.size() == 1) return one(ranges[0]);
    return fmt::format("{} records, from {} through {}", ranges.size(), one(ranges.front()),
                       one(ranges.back()));
}

WindowSet::WindowSet(std::shared_ptr<const Dataset> data, std::vector<Range> ranges,
                     const WindowOptions& options)
    : data_(std::move(data)), options_(options), payload_(options.max_seq_length - 2) {
    if (payload_ < 1)
        throw Error(fmt::format("dataset.max_seq_length = {} must be at least 3: BOS, a base, EOS",
                                options.max_seq_length));
    if (options.max_seq_length > INT32_MAX / 2)
        throw Error(fmt::format("dataset.max_seq_length = {} must be at most {}", options.max_seq_length,
                                INT32_MAX / 2));
    if (options.stride && *options.stride < 0)
        throw Error(fmt::format("dataset.stride = {} must not be negative", *options.stride));
    if (options.stride && *options.stride >= payload_)
        throw Error(fmt::format("dataset.stride = {} must be smaller than dataset.max_seq_length - 2 = {}",
                                *options.stride, payload_));
    step_ = payload_ - options.stride.value_or(0);
    for (const Range& range : ranges) {
        const int64_t length = range.end - range.begin;
        MOEBIUS_CHECK(range.begin >= 0 && length >= 0 && range.end <= data_->length(range.record));
        if (length == 0) continue;
        if (!options.stride && length > payload_)
            throw Error(
                fmt::format("{}: {} tokens with BOS and EOS are longer than dataset.max_seq_length = {}; set "
                            "dataset.stride to cut sequences into windows",
                            data_->describe(range.record), length + 2, options.max_seq_length));
        const int64_t windows = 1 + ceil_div(std::max<int64_t>(0, length - payload_), step_);
        ranges_.push_back(range);
        first_window_.push_back(windows_);
        windows_ += windows;
        max_length_ = std::max(max_length_, 2 + std::min(length, payload_));
        min_length_ = std::min(min_length_, 2 + length - (windows - 1) * step_);
        tokens_ += length;
        read_ += length + (windows - 1) * (payload_ - step_) + 2 * windows;
    }
    if (windows_ == 0) throw Error("dataset.path: there is no sequence to make windows of");
}

Window WindowSet::at(int64_t window) const {
    MOEBIUS_CHECK(window >= 0 && window < windows_, "window ", window, " of ", windows_);
    const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), window);
    const auto index = static_cast<size_t>(after - first_window_.begin() - 1);
    const Range& range = ranges_[index];
    const int64_t number = window - first_window_[index];
    const int64_t begin = range.begin + number * step_;
    return {.record = range.record,
            .begin = begin,
            .length = std::min(payload_, range.end - begin),
            .overlap = number == 0 ? 0 : payload_ - step_};
}

void WindowSet::read(const Window& window, int64_t begin, std::span<int32_t> out) const {
    const int64_t end = begin + static_cast<int64_t>(out.size());
    MOEBIUS_CHECK(begin >= 0 && end <= window.length + 2, "tokens ", begin, " to ", end, " of ",
                  window.length + 2);
    if (begin < end && begin == 0) {
        out.front() = data_->tokenizer().bos();
        out = out.subspan(1);
    }
    if (!out.empty() && end == window.length + 2) {
        out.back() = data_->tokenizer().eos();
        out = out.first(out.size() - 1);
    }
    if (!out.empty()) data_->read(window.record, window.begin + std::max<int64_t>(begin - 1, 0), out);
}

}  // namespace moebius::data
