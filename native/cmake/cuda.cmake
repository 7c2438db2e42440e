# SPDX-License-Identifier: Apache-2.0
#
# Decides whether the CUDA library is built, and for which architectures. Sets KDTREE_WITH_CUDA and cuda_sources, and
# says why when the answer is no.

set(KDTREE_WITH_CUDA OFF)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/*.cu)

if("$ENV{KDTREE_CUDA}" STREQUAL "0")
  message(STATUS "kdtree: no CUDA library: KDTREE_CUDA=0")
  return()
endif()
if(NOT cuda_sources)
  message(STATUS "kdtree: no CUDA library: src/cuda has no .cu files")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(hints "")
  if(DEFINED ENV{CUDA_HOME})
    # A named toolkit is the one to use, and not a preference.
    find_program(KDTREE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin NO_DEFAULT_PATH)
  elseif(DEFINED ENV{CUDACXX})
    set(KDTREE_NVCC $ENV{CUDACXX})
  else()
    find_program(KDTREE_NVCC nvcc HINTS /usr/local/cuda/bin)
  endif()
  if(NOT KDTREE_NVCC)
    if("$ENV{KDTREE_CUDA}" STREQUAL "1")
      message(FATAL_ERROR "kdtree: KDTREE_CUDA=1, and no nvcc was found (CUDA_HOME='$ENV{CUDA_HOME}')")
    endif()
    message(STATUS "kdtree: no CUDA library: nvcc was not found")
    return()
  endif()
  set(CMAKE_CUDA_COMPILER ${KDTREE_NVCC})
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  if(DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES $ENV{CUDAARCHS})
  else()
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE failed)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
    if(failed OR NOT capabilities)
      set(CMAKE_CUDA_ARCHITECTURES 80 89 90a 100 120)
    else()
      list(REMOVE_DUPLICATES capabilities)
      list(TRANSFORM capabilities REPLACE "\\." "")
      # The architecture-specific variant has instructions that plain 90 does not.
      list(TRANSFORM capabilities REPLACE "^90$" "90a")
      set(CMAKE_CUDA_ARCHITECTURES ${capabilities})
    endif()
  endif()
endif()

enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(KDTREE_WITH_CUDA ON)
message(STATUS "kdtree: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
