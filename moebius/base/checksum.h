// XXH3 128-bit checksums (xxhash.com), written as 32 hex digits; `xxhsum -H2` prints the same.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace moebius {

class Checksum {
  public:
    Checksum();
    ~Checksum();
    Checksum(Checksum&&) noexcept;
    Checksum& operator=(Checksum&&) noexcept;

    void update(const void* data, size_t bytes);
    std::string hex() const;  // of everything so far

  private:
    struct State;
    std::unique_ptr<State> state_;
};

std::string checksum_of(const void* data, size_t bytes);

// Reads the whole file. Throws Error naming the path if it can't be read.
std::string checksum_of_file(const std::filesystem::path& path);

std::string checksum_library();  // "xxHash 0.8.1": name and version that this program was built with

}  // namespace moebius
