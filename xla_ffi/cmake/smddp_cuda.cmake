# SPDX-License-Identifier: Apache-2.0
# Code for GPUs: whether it is built, and for which.
#
# Nothing asks for a GPU or a driver: a machine without either compiles all of it. One
# file of kernels for every architecture, so that a driver never has to compile; PTX of
# the newest serves those that come after it.
set(SMDDP_CUDA OFF CACHE STRING "Build the CUDA kernels: AUTO (if nvcc is there), ON, OFF")
set_property(CACHE SMDDP_CUDA PROPERTY STRINGS AUTO ON OFF)

set(SMDDP_CUDA_FOUND FALSE)
if(SMDDP_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(SMDDP_CUDA_FOUND TRUE)
  elseif(SMDDP_CUDA STREQUAL "AUTO")
    message(STATUS "No nvcc: the CUDA kernels are not built")
  else()
    message(FATAL_ERROR "SMDDP_CUDA=${SMDDP_CUDA} and no nvcc: put it on PATH or into "
                        "CMAKE_CUDA_COMPILER, or set SMDDP_CUDA=OFF")
  endif()
endif()

# smddp_cuda_library(TARGET SOURCES a.cu DEPS device)
function(smddp_cuda_library target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND smddp_)
  add_library(${target} STATIC ${ARG_SOURCES})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_compile_options(${target} PRIVATE -Xcompiler=-Wall,-Wextra)
  if(SMDDP_WERROR)
    target_compile_options(${target} PRIVATE --Werror all-warnings -Xcompiler=-Werror)
  endif()
  target_link_libraries(${target} PUBLIC CUDA::cudart_static ${ARG_DEPS})
endfunction()
