# Packages, by `cpack` in a build folder: qplan-VERSION-SYSTEM.tar.gz, to be unpacked anywhere, and
# qplan_VERSION_ARCHITECTURE.deb, with qplan-cuda beside both where the CUDA executor was built. Build
# them with QPLAN_STATIC, as scripts/package does: they then need no more than the C library.
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME qplan)
set(CPACK_PACKAGE_VENDOR qplan)
set(CPACK_PACKAGE_CONTACT "qplan <qplan@invalid>") # a .deb must name somebody
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "which parallel plan for training a large language model, at what cost")
set(CPACK_PACKAGE_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION_SUMMARY}")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME qplan-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CHECKSUM SHA256)

# Two packages: the CUDA executor needs libraries of NVIDIA's that a planner's machine has not.
set(CPACK_COMPONENTS_ALL command manual)
if(QPLAN_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/scripts/cmake/packing.cmake)
set(CPACK_ARCHIVE_PLANNER_FILE_NAME ${CPACK_PACKAGE_FILE_NAME})
set(CPACK_ARCHIVE_CUDA_FILE_NAME qplan-cuda-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # the C library, and as of which version
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PLANNER_PACKAGE_NAME qplan)
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME qplan-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "qplan (= ${PROJECT_VERSION})") # one version, or it is not loaded
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF) # NVIDIA's come from its own archive, or from a wheel
include(CPack)
cpack_add_component(command GROUP planner REQUIRED)
cpack_add_component(manual GROUP planner)
cpack_add_component_group(planner DISPLAY_NAME qplan)
if(QPLAN_CUDA)
  cpack_add_component(cuda GROUP cuda)
  cpack_add_component_group(cuda DISPLAY_NAME qplan-cuda
    DESCRIPTION "runs plans on GPUs, and measures them, for qplan")
endif()
