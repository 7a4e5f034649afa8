# Read by cpack for each kind of package: a tarball has one folder on top, a .deb the system's own.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
