# The CUDA toolkit, and how kernels are compiled: one OBJECT library an architecture and room.
set(MOEBIUS_CUDA_ARCHITECTURES "80-real;90-real;100-real" CACHE STRING
    "Cards that every kernel but sm90.cu and sm100.cu is compiled for (a quick build: 90-real)")
option(MOEBIUS_CUDA_LINEINFO "Source lines in kernels, for ncu and compute-sanitizer" OFF)

set(CMAKE_CUDA_ARCHITECTURES ${MOEBIUS_CUDA_ARCHITECTURES})
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(MOEBIUS_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(NOT MOEBIUS_NVCC)
        message(FATAL_ERROR "MOEBIUS_CUDA=ON needs a CUDA toolkit (13.0 or later): there is no nvcc in PATH, CUDA_PATH or "
            "/usr/local/cuda. Name it by -D CMAKE_CUDA_COMPILER=<nvcc> (tools/fetch_cuda.sh fetches one without root), or "
            "build for the CPU alone: preset cpu, make CUDA=0")
    endif()
    set(CMAKE_CUDA_COMPILER ${MOEBIUS_NVCC})
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    message(FATAL_ERROR "MOEBIUS_CUDA=ON needs a CUDA toolkit from 13.0 on: ${CMAKE_CUDA_COMPILER} is "
        "${CMAKE_CUDA_COMPILER_VERSION}")
endif()
find_package(CUDAToolkit REQUIRED)
# The runtime alone, static, and never libcuda: the program starts, and says so, where there is no driver.
set(MOEBIUS_CUDA_LIBRARIES CUDA::cudart_static)

# CMake 3.25 drops CMAKE_CUDA_STANDARD 20 in silence for nvcc 13, so the flag is written out.
set(MOEBIUS_CUDA_FLAGS -std=c++20 -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wno-psabi,-Wno-missing-field-initializers
    -Xcompiler=-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=,-ffile-prefix-map=${CMAKE_BINARY_DIR}=build)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3")
if(MOEBIUS_CUDA_LINEINFO)
    list(APPEND MOEBIUS_CUDA_FLAGS -lineinfo)
endif()
# Everywhere, so that a header means the same in every file.
add_compile_definitions(MOEBIUS_WITH_CUDA)
include(MoebiusCudnn)

# moebius_kernels(ROOM): compiles the room's .cu files into moebius_ROOM: sm90*.cu and sm100*.cu for the
# architecture-specific targets 90a and 100a, any other for MOEBIUS_CUDA_ARCHITECTURES.
function(moebius_kernels room)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/moebius/${room}/*.cu)
    foreach(part "sm90:90a-real" "sm100:100a-real" "any:")
        string(REPLACE ":" ";" part ${part})
        list(GET part 0 stem)
        list(GET part 1 architecture)
        set(sources ${kernels})
        if(stem STREQUAL "any")
            list(FILTER sources EXCLUDE REGEX "/(sm90|sm100)[^/]*\\.cu$")
            set(architecture ${MOEBIUS_CUDA_ARCHITECTURES})
        else()
            list(FILTER sources INCLUDE REGEX "/${stem}[^/]*\\.cu$")
        endif()
        if(sources)
            set(target moebius_${room}_${stem})
            add_library(${target} OBJECT ${sources})
            # CMake takes the C++ standard for CUDA's where that is unset, and does not know C++20 there.
            set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architecture}")
            foreach(property CXX_STANDARD CXX_STANDARD_REQUIRED CXX_EXTENSIONS)
                set_property(TARGET ${target} PROPERTY ${property})
            endforeach()
            target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
            target_compile_options(${target} PRIVATE ${MOEBIUS_CUDA_FLAGS})
            target_sources(moebius_${room} PRIVATE $<TARGET_OBJECTS:${target}>)
        endif()
    endforeach()
endfunction()
