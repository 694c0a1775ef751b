# Attention by cuDNN: its headers come with it, those of its frontend by tools/fetch_cudnn_frontend.sh. Without them the
# variant's rows are null. The library itself is opened when it is first needed, never linked.
set(MOEBIUS_CUDNN_FRONTEND ${PROJECT_SOURCE_DIR}/build/cudnn_frontend/include CACHE PATH
    "Folder that holds cudnn_frontend.h (tools/fetch_cudnn_frontend.sh fills the default one)")
find_path(MOEBIUS_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
set(MOEBIUS_CUDNN OFF)
if(NOT MOEBIUS_CUDNN_INCLUDE)
    message(STATUS "Attention by cuDNN: not in this build, cudnn.h was not found (-D MOEBIUS_CUDNN_INCLUDE=<folder>)")
elseif(NOT EXISTS ${MOEBIUS_CUDNN_FRONTEND}/cudnn_frontend.h)
    message(STATUS "Attention by cuDNN: not in this build, there is no ${MOEBIUS_CUDNN_FRONTEND}/cudnn_frontend.h "
        "(tools/fetch_cudnn_frontend.sh fetches it)")
else()
    message(STATUS "Attention by cuDNN: frontend in ${MOEBIUS_CUDNN_FRONTEND}")
    set(MOEBIUS_CUDNN ON)
    add_compile_definitions(MOEBIUS_WITH_CUDNN)
    set(folder ${PROJECT_SOURCE_DIR}/moebius/ops/attention)
    set(system "-isystem;${MOEBIUS_CUDNN_INCLUDE}")
    if(MOEBIUS_CUDNN_INCLUDE IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
        set(system "")  # /usr/include named again would come before the C++ library's own headers
    endif()
    # Templates that run once a shape: at -O2 they cost minutes.
    set_source_files_properties(${folder}/cudnn.cpp PROPERTIES COMPILE_OPTIONS
        "-O1;-DCUDNN_FRONTEND_SKIP_JSON_LIB;-isystem;${MOEBIUS_CUDNN_FRONTEND};${system}")
    set_source_files_properties(${folder}/cudnn_functions.cpp PROPERTIES COMPILE_OPTIONS "${system}")
endif()
