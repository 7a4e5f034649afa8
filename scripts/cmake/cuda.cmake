# The libraries of the CUDA executor. Without nvcc everything else is built as before.
include(CheckLanguage)
# Where NVIDIA's installer puts it, on the PATH or not.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(QPLAN_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(QPLAN_NVCC)
    set(CMAKE_CUDA_COMPILER ${QPLAN_NVCC})
  endif()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA executor: not built, nvcc was not found")
  set(QPLAN_CUDA OFF)
  return()
endif()
set(architectures ${CMAKE_CUDA_ARCHITECTURES})
enable_language(CUDA)
# Matrix products in bf16 begin with 80; what is older in the cache was nvcc's default.
list(FILTER architectures EXCLUDE REGEX "^[1-7][0-9]([^0-9]|$)") # 100 is not older
if(NOT architectures)
  set(architectures 80) # A100; then, as nvcc learned them, H100 and H200, and B200
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.0)
    list(APPEND architectures 90a)
  endif()
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND architectures 100)
  endif()
endif()
# In the cache, where the language has put nvcc's default: the next configuration would take that for
# somebody's wish.
set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPUs that kernels are built for" FORCE)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 17)

# Neither NCCL nor cuDNN has a CMake package of its own.
foreach(library nccl cudnn)
  find_path(QPLAN_${library}_INCLUDE ${library}.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(QPLAN_${library}_LIBRARY ${library} HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT QPLAN_${library}_INCLUDE OR NOT QPLAN_${library}_LIBRARY)
    message(STATUS "CUDA executor: not built, ${library} was not found beside CUDA ${CUDAToolkit_VERSION}")
    set(QPLAN_CUDA OFF)
    return()
  endif()
  add_library(${library} INTERFACE IMPORTED)
  target_include_directories(${library} SYSTEM INTERFACE ${QPLAN_${library}_INCLUDE})
  target_link_libraries(${library} INTERFACE ${QPLAN_${library}_LIBRARY})
endforeach()
