# What a package's program links: everything but the C library, and libgcc_s, which each system has and
# which the program shares with the CUDA executor, for an exception of the one may end in the other.
find_library(LIBYAML NAMES libyaml.a yaml REQUIRED)

# Debian and Ubuntu have fmt as a shared library and as headers. The headers hold all of it, so that one
# file that keeps their functions is the library; each file with FMT_HEADER_ONLY would compile them anew.
find_library(QPLAN_FMT_ARCHIVE libfmt.a)
if(QPLAN_FMT_ARCHIVE)
  add_library(fmt_archive STATIC IMPORTED)
  set_target_properties(fmt_archive PROPERTIES IMPORTED_LOCATION ${QPLAN_FMT_ARCHIVE}
    INTERFACE_INCLUDE_DIRECTORIES "$<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>")
else()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/fmt_archive.cpp CONTENT
"#include <fmt/format.h>
// A template of a class that is none: no flag keeps it.
template std::locale fmt::detail::locale_ref::get<std::locale>() const;
")
  add_library(fmt_archive STATIC ${CMAKE_BINARY_DIR}/fmt_archive.cpp)
  target_compile_features(fmt_archive PUBLIC cxx_std_20)
  target_compile_options(fmt_archive PRIVATE -fkeep-inline-functions -ffunction-sections)
  target_link_libraries(fmt_archive PRIVATE fmt::fmt-header-only)
endif()
set(fmt_library fmt_archive)

# What nothing calls is left out, and with it symbols that only a newer C library has: hypotf of 2.35 by
# fmt's headers, arc4random of 2.36 by std::random_device. Debian 12's program then asks for 2.34.
add_link_options(-static-libstdc++ LINKER:--gc-sections)
