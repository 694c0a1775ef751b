// What this build is: for --version, `info`, run.json and checkpoints. The definition is generated while
// building (cmake/MoebiusVersion.cmake), so that the commit is right without configuring again.
#pragma once

#include <string_view>

namespace moebius {

struct BuildInfo {
    std::string_view version;     // "0.1.0"
    std::string_view commit;      // 40 hex digits, or "unknown" in a source tree without git
    bool dirty = false;           // a tracked file differed from the commit
    std::string_view build_type;  // CMake's
    std::string_view compiler;    // name and version
    std::string_view sanitizers;  // as -fsanitize= takes them; empty for none
    bool cuda = false;            // CUDA kernels are in this build

    // "0.1.0 (1a2b3c4d5e6f, dirty)", for one line of output.
    std::string_view text;
};

const BuildInfo& build_info();

}  // namespace moebius
