# moebius_room(NAME DEPS rooms… LIBS targets…): the library of one folder under moebius/, its sources globbed.
set(MOEBIUS_WARNINGS -Wall -Wextra -Wno-psabi -Wno-missing-field-initializers)
# GCC 13 sees fmt 9's bigint, inlined, write past an array of one (Ubuntu 24.04); GCC 12 and 14 don't.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13
        AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
    list(APPEND MOEBIUS_WARNINGS -Wno-array-bounds)
endif()
# Warnings are errors for the compiler that CI has; another one's opinion of the libraries' headers stops nobody's build.
set(werror OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
    set(werror ON)
endif()
option(MOEBIUS_WERROR "Warnings are errors" ${werror})
if(MOEBIUS_WERROR)
    list(APPEND MOEBIUS_WARNINGS -Werror)
endif()
# g++ 12 sees overlapping copies in `"text" + std::to_string(n)` (GCC bug 105651).
list(APPEND MOEBIUS_WARNINGS -Wno-restrict)
# Contraction to FMA is ours to decide, not the default of a language mode: the same in every file.
set(MOEBIUS_FLAGS -ffp-contract=fast -fno-math-errno -fno-trapping-math)

add_library(moebius_flags INTERFACE)
target_include_directories(moebius_flags INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(moebius_flags INTERFACE cxx_std_20)
set_target_properties(moebius_flags PROPERTIES EXPORT_NAME flags)

add_library(moebius_private INTERFACE)
target_compile_options(moebius_private INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${MOEBIUS_WARNINGS};${MOEBIUS_FLAGS}>)
# No path of the machine that built it in the program; and a build elsewhere finds the same objects in ccache.
target_compile_options(moebius_private INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=
    -ffile-prefix-map=${CMAKE_BINARY_DIR}=build>)
if(MOEBIUS_SANITIZE)
    if(MOEBIUS_CUDA)
        message(FATAL_ERROR "MOEBIUS_SANITIZE is for CPU builds; kernels are checked by compute-sanitizer")
    endif()
    add_compile_options(-fsanitize=${MOEBIUS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${MOEBIUS_SANITIZE})
    add_compile_definitions(MOEBIUS_SANITIZED)
endif()

# moebius_sanitized_quickly(TARGET ROOM): under the address sanitizer a room with JSON, where no time is spent, is compiled
# without optimization: 8 s a file in place of 18. (Under the thread sanitizer it would save 2 of 6, and cost more in tests.)
function(moebius_sanitized_quickly target room)
    if(MOEBIUS_SANITIZE MATCHES "address" AND room MATCHES "^(config|data|checkpoint|models|eval|train)$")
        target_compile_options(${target} PRIVATE -O0)
    endif()
endfunction()

# Nothing of these is looked for: a program that uses an installed Moebius need not have them.
set(MOEBIUS_HEADER_ONLY nlohmann_json::nlohmann_json)
set(MOEBIUS_OWN moebius_fmt)

function(moebius_room name)
    cmake_parse_arguments(ROOM "" "" "DEPS;LIBS" ${ARGN})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/moebius/${name}/*.cpp)
    # Host code on CUDA's libraries is in files named after them, its stand-ins in no_*.cpp: one or the other is compiled.
    if(MOEBIUS_CUDA)
        list(FILTER sources EXCLUDE REGEX "/no_(cuda|cublas)[^/]*\\.cpp$")
    else()
        list(FILTER sources EXCLUDE REGEX "/(cuda|cublas)[^/]*\\.cpp$")
    endif()
    if(MOEBIUS_CUDNN)
        list(FILTER sources EXCLUDE REGEX "/no_cudnn[^/]*\\.cpp$")
    else()
        list(FILTER sources EXCLUDE REGEX "/cudnn[^/]*\\.cpp$")
    endif()
    if(MOEBIUS_KERNELS_ONLY)
        list(FILTER sources EXCLUDE REGEX "/base/checksum\\.cpp$")  # needs xxhash
    endif()
    list(FILTER sources EXCLUDE REGEX "/cases\\.cpp$|/ops/(case|case_buffers|case_timing|all_cases)\\.cpp$")
    # For the installed package: which rooms a component brings, and which libraries it links.
    set_property(GLOBAL APPEND PROPERTY MOEBIUS_ROOMS ${name})
    set_property(GLOBAL PROPERTY MOEBIUS_ROOM_${name}_DEPS ${ROOM_DEPS})
    set_property(GLOBAL PROPERTY MOEBIUS_ROOM_${name}_LIBS ${ROOM_LIBS})
    list(TRANSFORM ROOM_DEPS PREPEND moebius_)
    set(libraries "")
    foreach(library ${ROOM_LIBS})
        if(library IN_LIST MOEBIUS_HEADER_ONLY)
            list(APPEND libraries $<BUILD_INTERFACE:${library}>)
        elseif(library STREQUAL "yaml-cpp")
            list(APPEND libraries ${MOEBIUS_YAML})
        else()
            list(APPEND libraries ${library})
        endif()
    endforeach()
    if(sources)
        add_library(moebius_${name} STATIC ${sources})
        target_link_libraries(moebius_${name} PUBLIC moebius_flags ${ROOM_DEPS}
            PRIVATE $<BUILD_INTERFACE:moebius_private> ${libraries})
        moebius_sanitized_quickly(moebius_${name} ${name})
        if(MOEBIUS_CUDA)
            moebius_kernels(${name})
        endif()
    else()
        add_library(moebius_${name} INTERFACE)
        target_link_libraries(moebius_${name} INTERFACE moebius_flags ${ROOM_DEPS})
    endif()
    set_target_properties(moebius_${name} PROPERTIES EXPORT_NAME ${name})
    add_library(Moebius::${name} ALIAS moebius_${name})
endfunction()

# The program: cli/ is the only place that prints and exits.
function(moebius_program)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/moebius/cli/*.cpp)
    if(sources)
        add_executable(moebius ${sources})
        target_link_libraries(moebius PRIVATE moebius_train moebius_private CLI11::CLI11
            moebius_fmt nlohmann_json::nlohmann_json)
        moebius_add_licenses(moebius)
        if(MOEBIUS_STATIC_LIBRARIES AND NOT MOEBIUS_SANITIZE)
            target_link_options(moebius PRIVATE -static-libstdc++ -static-libgcc)
        endif()
    endif()
endfunction()

# The ops' cases, for tests and benchmark: not part of the library.
function(moebius_case_library)
    if(TARGET moebius_cases)
        return()
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/moebius/ops/*/cases.cpp
        ${PROJECT_SOURCE_DIR}/moebius/ops/case*.cpp ${PROJECT_SOURCE_DIR}/moebius/ops/all_cases.cpp)
    add_library(moebius_cases STATIC ${sources})
    target_link_libraries(moebius_cases PUBLIC moebius_ops PRIVATE moebius_private moebius_fmt)
endfunction()
