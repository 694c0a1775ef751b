#include "moebius/base/philox.h"

#include <cmath>
#include <numbers>

namespace moebius {
namespace {

uint64_t fnv1a(std::string_view text) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return hash;
}

uint64_t join(uint32_t high, uint32_t low) {
    return (static_cast<uint64_t>(high) << 32) | low;
}

double unit(uint64_t bits) {
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = 0xD2511F53ull * counter[0];
        const uint64_t product1 = 0xCD9E8D57ull * counter[2];
        counter = {
            static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
            static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

Philox::Philox(uint64_t seed, std::string_view purpose)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(fnv1a(purpose)) {}

std::array<uint32_t, 4> Philox::block(uint64_t index) const {
    return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                       static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                      key_);
}

uint64_t Philox::bits64(uint64_t index) const {
    const auto words = block(index);
    return join(words[0], words[1]);
}

double Philox::uniform(uint64_t index) const {
    return unit(bits64(index));
}

uint64_t Philox::below(uint64_t index, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits64(index)) * bound) >> 64);
}

double Philox::normal(uint64_t index) const {
    const auto words = block(index);
    const double u = 1.0 - unit(join(words[0], words[1]));  // (0, 1]: its logarithm is finite
    const double v = unit(join(words[2], words[3]));
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace moebius
