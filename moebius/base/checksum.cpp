#include "moebius/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius {

struct Checksum::State {
    XXH3_state_t* xxh = XXH3_createState();
    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { XXH3_freeState(xxh); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
    MOEBIUS_CHECK(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh) == XXH_OK);
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::update(const void* data, size_t bytes) {
    MOEBIUS_CHECK(XXH3_128bits_update(state_->xxh, data, bytes) == XXH_OK);
}

std::string Checksum::hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
    char text[33];
    std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, static_cast<uint64_t>(hash.high64),
                  static_cast<uint64_t>(hash.low64));
    return text;
}

std::string checksum_of(const void* data, size_t bytes) {
    Checksum sum;
    sum.update(data, bytes);
    return sum.hex();
}

std::string checksum_of_file(const std::filesystem::path& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
    if (!file) throw Error("cannot read " + path.string() + ": " + std::strerror(errno));
    Checksum sum;
    std::vector<char> buffer(1 << 20);
    while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get()))
        sum.update(buffer.data(), got);
    if (std::ferror(file.get())) throw Error("cannot read " + path.string() + ": " + std::strerror(errno));
    return sum.hex();
}

std::string checksum_library() {
    return "xxHash " + std::to_string(XXH_VERSION_MAJOR) + "." + std::to_string(XXH_VERSION_MINOR) + "." +
           std::to_string(XXH_VERSION_RELEASE);
}

}  // namespace moebius
