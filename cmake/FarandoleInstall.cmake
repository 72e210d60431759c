# SPDX-License-Identifier: Apache-2.0
# Headers and the CMake package; the same below a prefix and inside the wheel.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/farandole)

set(header_filter PATTERN "*.h")
if(NOT FARANDOLE_TORCH)  # a package of the comm layer alone has no header that needs torch
  list(APPEND header_filter
    REGEX "include/farandole/(process_group|data|ddp|optim|amp|farandole\\.h)$" EXCLUDE)
endif()
install(DIRECTORY include/farandole DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING ${header_filter})
install(EXPORT farandoleTargets NAMESPACE farandole:: DESTINATION ${package_dir})

configure_package_config_file(cmake/farandoleConfig.cmake.in farandoleConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(farandoleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/farandoleConfig.cmake
              ${PROJECT_BINARY_DIR}/farandoleConfigVersion.cmake
              DESTINATION ${package_dir})
if(FARANDOLE_TORCH)
  install(FILES cmake/FarandoleTorch.cmake DESTINATION ${package_dir})
endif()
