# Run while building (cmake -P): writes OUTPUT, the definition of third_party_text(), from NOTICE and THIRD_PARTY.md.
cmake_minimum_required(VERSION 3.25)
file(READ ${SOURCE_DIR}/NOTICE notice)
file(READ ${SOURCE_DIR}/THIRD_PARTY.md table)
# Through configure_file, which keeps semicolons and brackets as they are.
file(WRITE ${OUTPUT}.in "// Written by cmake/WriteLicenses.cmake.
#include \"moebius/cli/licenses.h\"

namespace moebius::cli {

std::string_view third_party_text() {
    return R\"moebius_text(@notice@
@table@)moebius_text\";
}

}  // namespace moebius::cli
")
configure_file(${OUTPUT}.in ${OUTPUT} @ONLY)
