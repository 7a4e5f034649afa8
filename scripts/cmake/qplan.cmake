# The project's few CMake functions.

# Flags that every target of ours is built with; third-party headers are SYSTEM and stay silent.
add_library(qplan_flags INTERFACE)
target_compile_features(qplan_flags INTERFACE cxx_std_20)
target_include_directories(qplan_flags INTERFACE ${CMAKE_SOURCE_DIR})
# Answers are the same bits on every machine, so a product and a sum stay two roundings where a
# processor could fuse them (models/portable_math.h).
target_compile_options(qplan_flags INTERFACE -ffp-contract=off
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wcast-qual
  -Wformat=2 -Wnon-virtual-dtor -Woverloaded-virtual -Wswitch-enum
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond -Wlogical-op>
  # gcc 12 at -O3 sees overlaps in std::string that are not there (GCC bug 105651), gcc 11 reads of an
  # empty std::optional's payload, gcc 13 writes behind a std::vector that has just grown and, in
  # fmt 9's big integers, behind their one digit.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-maybe-uninitialized>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-array-bounds>
  # Of files that are compiled together gcc takes each for a header, and warns of what lies in an unnamed
  # namespace and is used in a named type.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${QPLAN_UNITY}>>:-Wno-subobject-linkage>
  $<$<BOOL:${QPLAN_WERROR}>:-Werror>)
# Where each of the compilers that ninja starts, cores and two, has 2 GiB, gcc may take more of it: it tidies
# its memory whenever that has grown to 128 MB, and a seventh of its time goes there; and groups of files
# (qplan_unity) may be twice as large. The largest compiler then takes 1.4 GB.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR mib_each "${memory_mib} / (${cores} + 2)")
set(unity_bytes 60000)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND mib_each GREATER 2048)
  set(unity_bytes 120000)
  target_compile_options(qplan_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
if(QPLAN_SANITIZE)
  target_compile_options(qplan_flags INTERFACE -fsanitize=${QPLAN_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(qplan_flags INTERFACE -fsanitize=${QPLAN_SANITIZE})
endif()

# The headers that most files include are read once (-DQPLAN_PCH=OFF: by each file). No file may lean on
# that: each includes what it needs, so that it compiles without as well.
#   qplan_headers(name HEADERS <a> b... LINK target...): precompiles headers for libraries.
#   qplan_use_headers(target name): for a target with the same options; gcc takes no others.
function(qplan_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK" ${ARGN})
  if(QPLAN_PCH)
    # CMake precompiles for a target that compiles something.
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers/${name}.cpp CONTENT "// Nothing.\n")
    add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/headers/${name}.cpp)
    target_link_libraries(${name} PRIVATE qplan_flags ${ARG_LINK})
    target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()
function(qplan_use_headers target name)
  if(QPLAN_PCH)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

set(common_headers <fmt/format.h> <fmt/ranges.h>
  <algorithm> <array> <charconv> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <numeric>
  <optional> <set> <span> <string> <string_view> <utility> <variant> <vector>)
# Apart, because a file that reads nlohmann/json compiles 0.4 s of it whether it uses any or not.
set(json_headers ${common_headers} <nlohmann/json.hpp>)
# Where most files search or evaluate: what those two headers bring is 2 s of each file otherwise.
set(evaluating_headers ${json_headers} "${CMAKE_SOURCE_DIR}/models/plan/words.h"
  "${CMAKE_SOURCE_DIR}/planner/search/search.h")
qplan_headers(qplan_headers HEADERS ${common_headers} LINK ${fmt_library})
qplan_headers(qplan_json_headers HEADERS ${json_headers} LINK ${fmt_library} nlohmann_json::nlohmann_json)
qplan_headers(qplan_evaluating_headers HEADERS ${evaluating_headers}
  LINK ${fmt_library} nlohmann_json::nlohmann_json)

# qplan_unity(target source...): with QPLAN_UNITY, files of one folder are compiled some at a time as one:
# headers are read, and templates made, once for all of them. So no two files of a folder may give a name
# two meanings, in their unnamed namespaces too. The groups of a folder are about equal, and have at most
# unity_bytes of text: some twenty seconds of compiling, so that all cores have work to the end. Generated files, and those with options of their own, stay apart.
function(qplan_unity target)
  if(NOT QPLAN_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS ARGN)
    get_filename_component(source ${source} ABSOLUTE)
    get_filename_component(folder ${source} DIRECTORY)
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER ${folder} folder)
    file(SIZE ${source} size)
    if(NOT DEFINED bytes_${folder})
      list(APPEND folders ${folder})
      set(bytes_${folder} 0)
    endif()
    # Where its middle lies in the folder's text.
    math(EXPR middle "${bytes_${folder}} + ${size} / 2")
    math(EXPR bytes_${folder} "${bytes_${folder}} + ${size}")
    list(APPEND files_${folder} ${source})
    list(APPEND middles_${folder} ${middle})
  endforeach()
  foreach(folder IN LISTS folders)
    math(EXPR groups "1 + ${bytes_${folder}} / ${unity_bytes}")
    foreach(source middle IN ZIP_LISTS files_${folder} middles_${folder})
      math(EXPR group "${middle} * ${groups} / ${bytes_${folder}}")
      set_source_files_properties(${source} TARGET_DIRECTORY ${target}
        PROPERTIES UNITY_GROUP ${folder}_${group})
    endforeach()
  endforeach()
endfunction()

# qplan_library(name [JSON | EVALUATING] [SOURCES a.cpp...] DEPENDS target...): one static library with our
# flags. Without SOURCES it is made of this folder's *.cpp; folders below add theirs with qplan_part(). JSON:
# most of its files include models/json.h; EVALUATING: planner/search/search.h too.
function(qplan_library name)
  cmake_parse_arguments(ARG "JSON;EVALUATING" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_SOURCES)
    qplan_sources(ARG_SOURCES)
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE qplan_flags PUBLIC ${ARG_DEPENDS})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_features(${name} PUBLIC cxx_std_20)
  if(ARG_EVALUATING)
    qplan_use_headers(${name} qplan_evaluating_headers)
  elseif(ARG_JSON)
    qplan_use_headers(${name} qplan_json_headers)
  else()
    qplan_use_headers(${name} qplan_headers)
  endif()
  qplan_unity(${name} ${ARG_SOURCES})
endfunction()

# qplan_sources(variable): this folder's *.cpp. A new file is built, and a test run, without being
# named anywhere: what is not in a list cannot be left out of it.
function(qplan_sources variable)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# qplan_part(name): this folder's *.cpp are part of the library of the folder above.
function(qplan_part name)
  qplan_sources(sources)
  target_sources(${name} PRIVATE ${sources})
  qplan_unity(${name} ${sources})
endfunction()

# qplan_embed(target symbol FILES a.json b.json): compiles text files into `target` as
#   extern const EmbeddedFile <symbol>[]; extern const std::size_t <symbol>_count;
# (models/embedded.h), so that the built-in models and machines need no installed folder.
function(qplan_embed target symbol)
  cmake_parse_arguments(ARG "" "" "FILES" ${ARGN})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DSYMBOL=${symbol} "-DFILES=${ARG_FILES}"
            -P ${CMAKE_SOURCE_DIR}/scripts/cmake/embed.cmake
    DEPENDS ${ARG_FILES} ${CMAKE_SOURCE_DIR}/scripts/cmake/embed.cmake VERBATIM)
  target_sources(${target} PRIVATE ${output})
  set_source_files_properties(${output} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# qplan_test_headers(target headers): a program of tests uses these precompiled headers. They are made for
# a library, and a program's usual -fPIE would not go with their -fPIC.
function(qplan_test_headers target headers)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  qplan_use_headers(${target} ${headers})
endfunction()

# qplan_test(name FOLDERS a b/... DEPENDS target...): a doctest program of every *_test.cpp in these
# folders, and below those that end in /... ; every case is a ctest, labelled by its program.
function(qplan_test name)
  cmake_parse_arguments(ARG "" "" "FOLDERS;DEPENDS" ${ARGN})
  set(found "")
  foreach(folder IN LISTS ARG_FOLDERS)
    set(below GLOB)
    if(folder MATCHES "/\\.\\.\\.$")
      set(below GLOB_RECURSE)
      string(REGEX REPLACE "/\\.\\.\\.$" "" folder "${folder}")
    endif()
    file(${below} sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp)
    if(NOT sources)
      message(FATAL_ERROR "qplan_test(${name}): ${folder} holds no *_test.cpp")
    endif()
    list(APPEND found ${sources})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY QPLAN_TEST_SOURCES ${found})
  add_executable(${name} ${found})
  target_link_libraries(${name} PRIVATE qplan_flags test_main ${ARG_DEPENDS})
  # Each file alone: two helpers of one name but other parameters would answer for each other unseen.
  if(planner IN_LIST ARG_DEPENDS OR cli IN_LIST ARG_DEPENDS)
    qplan_test_headers(${name} test_evaluating_headers)
  else()
    qplan_test_headers(${name} test_headers)
  endif()
  doctest_discover_tests(${name} PROPERTIES LABELS ${name})
endfunction()
