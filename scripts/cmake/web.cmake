# What a build with Emscripten (scripts/web) has in place of packages: headers of the distribution, which are
# any machine's, and libyaml's sources. Headers are linked into a folder of their own, for /usr/include holds
# another C library's as well.
set(headers ${CMAKE_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${headers})
# web_headers(target name file [definition]): the headers that lie as <name>/<file>, as an imported target.
function(web_headers target name file)
  find_path(found_${name} ${file} PATHS /usr/include/${name} /usr/include/eigen3/${name} REQUIRED
    NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
  file(CREATE_LINK ${found_${name}} ${headers}/${name} SYMBOLIC)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE ${headers})
  target_compile_definitions(${target} INTERFACE ${ARGN})
endfunction()
web_headers(fmt::fmt fmt format.h FMT_HEADER_ONLY)
web_headers(nlohmann_json::nlohmann_json nlohmann json.hpp)
web_headers(CLI11::CLI11 CLI CLI.hpp)
web_headers(Eigen3::Eigen Eigen Core)
set(fmt_library fmt::fmt)
add_library(Threads::Threads INTERFACE IMPORTED GLOBAL) # there are none (planner/search/parallel_for.h)

set(QPLAN_LIBYAML "" CACHE PATH "Where libyaml's sources lie, for builds with Emscripten")
enable_language(C)
file(GLOB yaml_sources ${QPLAN_LIBYAML}/src/*.c)
if(NOT yaml_sources)
  message(FATAL_ERROR "QPLAN_LIBYAML names no folder with libyaml's sources; scripts/web gets them")
endif()
add_library(libyaml STATIC ${yaml_sources})
target_include_directories(libyaml PRIVATE ${QPLAN_LIBYAML}/include ${QPLAN_LIBYAML}/src)
# As its own CMakeLists.txt says them.
file(STRINGS ${QPLAN_LIBYAML}/CMakeLists.txt version_lines REGEX "set \\(YAML_VERSION_(MAJOR|MINOR|PATCH) [0-9]+\\)")
foreach(line IN LISTS version_lines)
  string(REGEX REPLACE ".*(YAML_VERSION_[A-Z]+) ([0-9]+).*" "\\1=\\2" definition "${line}")
  target_compile_definitions(libyaml PRIVATE ${definition})
endforeach()
target_compile_definitions(libyaml PRIVATE
  "YAML_VERSION_STRING=\"of Debian\"")
set(LIBYAML_INCLUDE ${QPLAN_LIBYAML}/include)
set(LIBYAML libyaml)

# What Emscripten's standard library lacks, for the module has one thread: shared memory would need a server
# that isolates the page.
include_directories(BEFORE SYSTEM ${CMAKE_SOURCE_DIR}/cli/web/std)

# Exceptions as WebAssembly has them, not as calls into JavaScript around every call that may throw.
add_compile_options(-fwasm-exceptions)
add_compile_options(-Wno-shorten-64-to-32) # std::size_t has 32 bits, and what loses the others is a hash
add_link_options(-fwasm-exceptions)
