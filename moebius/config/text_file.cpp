#include "moebius/config/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "moebius/base/error.h"

namespace moebius::config {

std::string read_text_file(const std::filesystem::path& file, size_t largest, std::string_view what) {
    errno = 0;
    std::ifstream in(file, std::ios::binary);
    // The size of a file does not tell: a pipe and a device have none.
    std::string text(largest + 1, '\0');
    if (in.is_open()) in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!in.is_open() || in.bad()) {
        const std::string reason = errno != 0 ? fmt::format(": {}", std::strerror(errno)) : "";
        throw Error(fmt::format("{}: cannot be read as {}{}", file.string(), what, reason));
    }
    text.resize(static_cast<size_t>(in.gcount()));
    if (text.size() > largest) {
        throw Error(
            fmt::format("{} has more than {} bytes: too large to be {}", file.string(), largest, what));
    }
    return text;
}

}  // namespace moebius::config
