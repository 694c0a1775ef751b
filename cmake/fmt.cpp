// fmt's functions, for every other file (moebius_add_fmt in MoebiusDependencies.cmake says why).
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

namespace moebius {

// The templates that fmt's headers declare as compiled elsewhere: what is used here is compiled here.
std::string every_fmt_template(const std::string& text) {
    return fmt::format("{:L} {:L} {:L} {:L} {:L} {:L}", 1, 1u, 1ll, 1.0f, 1.0, 1.0L) +
           fmt::format("{} {:e} {:.3f} {:a} {}", 1.0f, 1.0, 1.0L, 1.0, static_cast<const void*>(&text)) +
           fmt::format("{:>{}} {} {} {:#x}", text, 5, true, 'c', 1ull);
}

}  // namespace moebius
