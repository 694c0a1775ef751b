#include "moebius/data/token_store.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius::data {
namespace {

// Calls f(block, offset in the block, first of `tokens`, count) for the stretches of [begin, begin + count).
template <class Function>
void for_stretches(int64_t begin, int64_t count, const Function& f) {
    for (int64_t done = 0; done < count;) {
        const int64_t at = begin + done;
        const int64_t offset = at % TokenStore::kBlockTokens;
        const int64_t length = std::min(count - done, TokenStore::kBlockTokens - offset);
        f(static_cast<size_t>(at / TokenStore::kBlockTokens), offset, done, length);
        done += length;
    }
}

template <class Function>
void with_width(int width, const Function& f) {
    if (width == 1) return f(uint8_t{});
    if (width == 2) return f(uint16_t{});
    f(uint32_t{});
}

}  // namespace

TokenStore::TokenStore(int32_t vocab_size) : width_(vocab_size <= 256 ? 1 : vocab_size <= 65536 ? 2 : 4) {}

void TokenStore::append(std::span<const int32_t> tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    while (static_cast<int64_t>(blocks_.size()) * kBlockTokens < size_ + count)
        blocks_.push_back(
            std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kBlockTokens * width_)));
    with_width(width_, [&](auto zero) {
        using Stored = decltype(zero);
        for_stretches(size_, count, [&](size_t block, int64_t offset, int64_t first, int64_t length) {
            auto* out = reinterpret_cast<Stored*>(blocks_[block].get()) + offset;
            const int32_t* in = tokens.data() + first;
            for (int64_t i = 0; i < length; ++i) out[i] = static_cast<Stored>(in[i]);
        });
    });
    size_ += count;
}

void TokenStore::read(int64_t begin, std::span<int32_t> out) const {
    const auto count = static_cast<int64_t>(out.size());
    MOEBIUS_CHECK(begin >= 0 && begin + count <= size_, "tokens ", begin, " + ", count, " of ", size_);
    with_width(width_, [&](auto zero) {
        using Stored = decltype(zero);
        for_stretches(begin, count, [&](size_t block, int64_t offset, int64_t first, int64_t length) {
            const auto* in = reinterpret_cast<const Stored*>(blocks_[block].get()) + offset;
            for (int64_t i = 0; i < length; ++i)
                out[static_cast<size_t>(first + i)] = static_cast<int32_t>(in[i]);
        });
    });
}

}  // namespace moebius::data
