# Sources that are generated while building: build information for base, the licence text for the program.
set(MOEBIUS_GENERATED ${CMAKE_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${MOEBIUS_GENERATED})

# Asked at every build (some milliseconds); only a changed answer compiles anything.
function(moebius_add_build_info target)
    add_custom_target(moebius_build_info
        COMMAND ${CMAKE_COMMAND}
            -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D OUTPUT=${MOEBIUS_GENERATED}/build_info.cpp
            -D VERSION=${PROJECT_VERSION} -D BUILD_TYPE=${CMAKE_BUILD_TYPE}
            -D "COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
            -D "SANITIZERS=${MOEBIUS_SANITIZE}" -D CUDA=$<IF:$<BOOL:${MOEBIUS_CUDA}>,true,false>
            -P ${PROJECT_SOURCE_DIR}/cmake/WriteBuildInfo.cmake
        BYPRODUCTS ${MOEBIUS_GENERATED}/build_info.cpp
        COMMENT "" VERBATIM)
    target_sources(${target} PRIVATE ${MOEBIUS_GENERATED}/build_info.cpp)
    add_dependencies(${target} moebius_build_info)
endfunction()

function(moebius_add_licenses target)
    add_custom_command(OUTPUT ${MOEBIUS_GENERATED}/licenses.cpp
        COMMAND ${CMAKE_COMMAND}
            -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D OUTPUT=${MOEBIUS_GENERATED}/licenses.cpp
            -P ${PROJECT_SOURCE_DIR}/cmake/WriteLicenses.cmake
        DEPENDS ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/THIRD_PARTY.md
            ${PROJECT_SOURCE_DIR}/cmake/WriteLicenses.cmake
        COMMENT "Licence text" VERBATIM)
    target_sources(${target} PRIVATE ${MOEBIUS_GENERATED}/licenses.cpp)
endfunction()
