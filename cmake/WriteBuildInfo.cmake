# Run while building (cmake -P): writes OUTPUT, the definition of moebius::build_info(), if its text changed.
cmake_minimum_required(VERSION 3.25)
set(commit "")
set(dirty false)
find_program(git git)
if(git AND EXISTS ${SOURCE_DIR}/.git)
    # safe.directory: a clone that another user owns (root building a user's tree) still has a commit.
    set(ask ${git} -c safe.directory=* -C ${SOURCE_DIR})
    execute_process(COMMAND ${ask} rev-parse HEAD OUTPUT_VARIABLE commit
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
        set(commit "")
    endif()
    execute_process(COMMAND ${ask} --no-optional-locks status --porcelain --untracked-files=no OUTPUT_VARIABLE changed
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(commit AND changed)
        set(dirty true)
    endif()
endif()
if(NOT commit)
    # `git archive` fills this file in.
    file(READ ${SOURCE_DIR}/cmake/archive_commit.txt commit)
    string(STRIP "${commit}" commit)
    if(NOT commit MATCHES "^[0-9a-f]+$")
        set(commit unknown)
    endif()
endif()
string(SUBSTRING "${commit}" 0 12 short)
set(text "${VERSION} (${short})")
if(dirty)
    set(text "${VERSION} (${short}, dirty)")
endif()

set(body "// Written by cmake/WriteBuildInfo.cmake.
#include \"moebius/base/version.h\"

namespace moebius {

const BuildInfo& build_info() {
    static constexpr BuildInfo info{
        .version = \"${VERSION}\",
        .commit = \"${commit}\",
        .dirty = ${dirty},
        .build_type = \"${BUILD_TYPE}\",
        .compiler = \"${COMPILER}\",
        .sanitizers = \"${SANITIZERS}\",
        .cuda = ${CUDA},
        .text = \"${text}\",
    };
    return info;
}

}  // namespace moebius
")
set(before "")
if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL body)
    file(WRITE ${OUTPUT} "${body}")
endif()
