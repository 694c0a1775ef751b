# Every third-party package, found once. docs/dependencies.md and THIRD_PARTY.md say what each is for.
find_package(Threads REQUIRED)

# moebius_add_fmt(FOLDER): the target moebius_fmt, fmt's headers of that folder and its functions compiled once. Distributions
# have fmt as a shared library or as headers alone; the program carries its libraries with it, and the headers' functions in
# every file that formats a text cost 6 s of the compiler's time each, 15 under the address sanitizer.
function(moebius_add_fmt folder)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
        add_library(moebius_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
        # They are inline there: without it only those that are called would be compiled.
        target_compile_options(moebius_fmt PRIVATE -fkeep-inline-functions -w)
        target_include_directories(moebius_fmt SYSTEM PUBLIC $<BUILD_INTERFACE:${folder}>)
    else()
        add_library(moebius_fmt INTERFACE)
        target_include_directories(moebius_fmt SYSTEM INTERFACE $<BUILD_INTERFACE:${folder}>)
        target_compile_definitions(moebius_fmt INTERFACE $<BUILD_INTERFACE:FMT_HEADER_ONLY=1>)
    endif()
    set_target_properties(moebius_fmt PROPERTIES EXPORT_NAME fmt)
endfunction()
if(MOEBIUS_KERNELS_ONLY)
    # CUDA and fmt's headers are all that kernels need.
    set(MOEBIUS_FMT_INCLUDE "" CACHE PATH "Folder that holds fmt/format.h, where no fmt is installed")
    if(NOT MOEBIUS_FMT_INCLUDE)
        find_path(MOEBIUS_FMT_FOUND fmt/format.h)
        if(NOT MOEBIUS_FMT_FOUND)
            message(FATAL_ERROR "fmt/format.h was not found: -D MOEBIUS_FMT_INCLUDE=<folder that holds fmt/>")
        endif()
        set(MOEBIUS_FMT_INCLUDE ${MOEBIUS_FMT_FOUND})
    elseif(NOT EXISTS ${MOEBIUS_FMT_INCLUDE}/fmt/format.h)
        message(FATAL_ERROR "MOEBIUS_FMT_INCLUDE=${MOEBIUS_FMT_INCLUDE}: there is no fmt/format.h in it")
    endif()
    moebius_add_fmt(${MOEBIUS_FMT_INCLUDE})
    return()
endif()
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
moebius_add_fmt(${fmt_include})
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HTS REQUIRED IMPORTED_TARGET htslib)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

# yaml-cpp 0.8 has a namespace (its old name still works there, with a deprecation note), 0.7 has none.
if(TARGET yaml-cpp::yaml-cpp)
    set(MOEBIUS_YAML yaml-cpp::yaml-cpp)
else()
    set(MOEBIUS_YAML yaml-cpp)
endif()

# The program links yaml-cpp, htslib and the C++ library statically, so that build/bin/moebius needs only libc and libm
# and what is tested is what `make dist` packs. OFF: whatever find_package gives.
option(MOEBIUS_STATIC_LIBRARIES "Link the program against static third-party libraries" ON)
if(MOEBIUS_STATIC_LIBRARIES)
    function(moebius_static_library variable name)
        find_library(${variable} NAMES lib${name}.a)
        if(NOT ${variable})
            message(FATAL_ERROR "lib${name}.a was not found (tools/setup.sh installs it); "
                "-D MOEBIUS_STATIC_LIBRARIES=OFF links shared libraries instead")
        endif()
        mark_as_advanced(${variable})
    endfunction()

    moebius_static_library(MOEBIUS_YAML_CPP_A yaml-cpp)
    get_target_property(configurations ${MOEBIUS_YAML} IMPORTED_CONFIGURATIONS)
    foreach(configuration ${configurations})
        set_target_properties(${MOEBIUS_YAML} PROPERTIES IMPORTED_LOCATION_${configuration} ${MOEBIUS_YAML_CPP_A}
            IMPORTED_SONAME_${configuration} "")
    endforeach()

    # What `pkg-config --static htslib` names, less its link flags.
    set(static_hts "")
    foreach(name hts htscodecs deflate lzma bz2 z)
        moebius_static_library(MOEBIUS_${name}_A ${name})
        list(APPEND static_hts ${MOEBIUS_${name}_A})
    endforeach()
    set_target_properties(PkgConfig::HTS PROPERTIES INTERFACE_LINK_LIBRARIES "${static_hts};Threads::Threads")
endif()
