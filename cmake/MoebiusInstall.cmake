# `cmake --install`: the program and what it reads (component program), libraries, headers and the CMake package
# (component development): find_package(Moebius COMPONENTS nn), then Moebius::nn.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY MOEBIUS_ROOMS)
set(targets moebius_flags ${MOEBIUS_OWN})
set(MOEBIUS_ROOM_TABLE "")
foreach(room ${rooms})
    list(APPEND targets moebius_${room})
    get_property(deps GLOBAL PROPERTY MOEBIUS_ROOM_${room}_DEPS)
    get_property(libs GLOBAL PROPERTY MOEBIUS_ROOM_${room}_LIBS)
    list(REMOVE_ITEM libs ${MOEBIUS_HEADER_ONLY} ${MOEBIUS_OWN})
    string(APPEND MOEBIUS_ROOM_TABLE "set(_moebius_deps_${room} \"${deps}\")\nset(_moebius_libs_${room} \"${libs}\")\n")
endforeach()
set(MOEBIUS_ROOM_LIST "${rooms}")
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Moebius)

install(TARGETS ${targets} EXPORT MoebiusTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT MoebiusTargets NAMESPACE Moebius:: DESTINATION ${package_folder} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/moebius DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
    FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE)
set(MOEBIUS_CONFIGS_DIR ${CMAKE_INSTALL_DATADIR}/moebius/configs)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/MoebiusConfig.cmake.in
    ${CMAKE_BINARY_DIR}/package/MoebiusConfig.cmake INSTALL_DESTINATION ${package_folder}
    PATH_VARS MOEBIUS_CONFIGS_DIR)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/MoebiusConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/MoebiusConfig.cmake ${CMAKE_BINARY_DIR}/package/MoebiusConfigVersion.cmake
    DESTINATION ${package_folder} COMPONENT development)

if(TARGET moebius)
    install(TARGETS moebius RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/moebius COMPONENT program)
    install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE
        ${PROJECT_SOURCE_DIR}/THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/moebius COMPONENT program)
endif()
