# SPDX-License-Identifier: Apache-2.0
# How a folder becomes a target, and what every target of ours is compiled with.

add_library(smddp_options INTERFACE)
target_compile_options(smddp_options INTERFACE -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlaps in `"text" + std::string` that are not there (its bug 105651).
  target_compile_options(smddp_options INTERFACE -Wno-restrict)
endif()
if(SMDDP_WERROR)
  target_compile_options(smddp_options INTERFACE -Werror)
endif()
if(SMDDP_SANITIZE)
  target_compile_options(smddp_options INTERFACE -fsanitize=${SMDDP_SANITIZE} -g
                                                 -fno-omit-frame-pointer)
  target_link_options(smddp_options INTERFACE -fsanitize=${SMDDP_SANITIZE})
  if(SMDDP_SANITIZE MATCHES "undefined")
    target_compile_options(smddp_options INTERFACE -fno-sanitize-recover=all)
  endif()
endif()

# Parses headers once that most files include, in builds that nobody ships. The others find
# out where an #include is missing.
function(smddp_precompile target kind)
  if(NOT SMDDP_PRECOMPILE)
    return()
  endif()
  get_property(first GLOBAL PROPERTY smddp_precompiled_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
    return()
  endif()
  set_property(GLOBAL PROPERTY smddp_precompiled_${kind} ${target})
  target_precompile_headers(${target} PRIVATE ${ARGN} <algorithm> <chrono> <deque>
    <functional> <map> <memory> <mutex> <optional> <string> <thread> <unordered_map>
    <vector>)
endfunction()

# smddp_library(FOLDER SOURCES a.cc b.cc DEPS base plan)
# Target smddp_FOLDER. Sources are listed by hand, so that a stray file is never
# built by accident; a folder of headers alone becomes an interface target.
function(smddp_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  set(target smddp_${folder})
  set(deps ${ARG_DEPS})
  list(TRANSFORM deps PREPEND smddp_)
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} PRIVATE smddp_options PUBLIC Threads::Threads ${deps})
    smddp_precompile(${target} library)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} INTERFACE Threads::Threads ${deps})
  endif()
endfunction()

# smddp_test(FOLDER SOURCES a_test.cc b_test.cc)
# One GoogleTest program per folder, linked with that folder's target.
function(smddp_test folder)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    return()
  endif()
  list(TRANSFORM ARG_SOURCES PREPEND "${folder}/")
  set(target ${folder}_test)
  add_executable(${target} ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE smddp_${folder} smddp_options GTest::gtest_main)
  smddp_precompile(${target} test <gtest/gtest.h>)
  add_test(NAME ${folder} COMMAND ${target})
  # Sanitized code runs several times slower; a hang must still end the run.
  set_tests_properties(${folder} PROPERTIES TIMEOUT 300 ENVIRONMENT
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1;UBSAN_OPTIONS=print_stacktrace=1")
endfunction()

# Sets `variable` to what the Python of this build prints for `code`, every time
# CMake runs: a cached path would outlive the environment it came from.
macro(smddp_find_python_package variable code)
  if(NOT DEFINED CACHE{${variable}})
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${code}"
                    OUTPUT_VARIABLE ${variable} OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
endmacro()
