// All tokens of a data set, one after the other, in memory: 1 byte a token up to 256 entries, 2 up to 65,536,
// else 4.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace moebius::data {

class TokenStore {
  public:
    explicit TokenStore(int32_t vocab_size);

    // Grows by blocks, so that nothing is ever copied or doubled.
    void append(std::span<const int32_t> tokens);

    // Tokens [begin, begin + out.size()). Safe from several threads once nothing is appended any more.
    void read(int64_t begin, std::span<int32_t> out) const;

    int64_t size() const { return size_; }
    int64_t bytes() const { return static_cast<int64_t>(blocks_.size()) * kBlockTokens * width_; }
    int width() const { return width_; }

    static constexpr int64_t kBlockTokens = 4 << 20;

  private:
    int width_;
    int64_t size_ = 0;
    std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace moebius::data
