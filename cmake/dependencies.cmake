# Every third-party library: the system's package where there is one, else its source at a pinned commit.
#
#   DSPLAN_FETCH=AUTO   (default) the package if CMake finds it, else the pinned source
#   DSPLAN_FETCH=ON     the pinned sources, whatever is installed
#   DSPLAN_FETCH=OFF    packages only; a missing one is an error that names it
#
# The pinned commits are the releases that Debian 12 packages, so that both ways build the same thing. A full commit
# hash needs no trust in the server. FETCHCONTENT_SOURCE_DIR_<NAME> takes a source tree from the disk instead.
#
# No other project's build system runs for the header-only libraries and libyaml: their headers, and libyaml's eight
# sources, are used directly. Hence no options, tests, warnings or install rules of theirs leak into ours.
include(FetchContent)

set(DSPLAN_FETCH AUTO CACHE STRING "Where libraries come from: AUTO, ON (pinned sources), OFF (packages)")
set_property(CACHE DSPLAN_FETCH PROPERTY STRINGS AUTO ON OFF)
if(NOT DSPLAN_FETCH MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DSPLAN_FETCH is \"${DSPLAN_FETCH}\"; it must be AUTO, ON or OFF")
endif()

# Says what happens without the package: nothing returns with DSPLAN_FETCH=OFF.
function(dsplan_package_is_missing name package)
  if(DSPLAN_FETCH STREQUAL "OFF")
    message(FATAL_ERROR "${name} is not installed and DSPLAN_FETCH is OFF: "
                        "apt-get install ${package}, or tools/setup, or configure with -DDSPLAN_FETCH=AUTO")
  endif()
  message(STATUS "${name}: pinned source")
endfunction()

# Fetches NAME at COMMIT without adding it to the build; <name>_SOURCE_DIR is set in the caller.
macro(dsplan_source name repository commit)
  # No such subfolder: MakeAvailable then only populates.
  FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${commit} SOURCE_SUBDIR not-built)
  FetchContent_MakeAvailable(${name})
endmacro()

# A library of headers: `target` either from find_package(`name` `version`), or the folder `include` of the source.
macro(dsplan_headers name version target package include repository commit)
  if(NOT DSPLAN_FETCH STREQUAL "ON")
    find_package(${name} ${version} QUIET)
  endif()
  if(NOT TARGET ${target})
    dsplan_package_is_missing(${name} ${package})
    string(TOLOWER ${name} dsplan_lower)
    dsplan_source(${dsplan_lower} ${repository} ${commit})
    add_library(dsplan_${dsplan_lower} INTERFACE)
    target_include_directories(dsplan_${dsplan_lower} SYSTEM INTERFACE ${${dsplan_lower}_SOURCE_DIR}/${include})
    add_library(${target} ALIAS dsplan_${dsplan_lower})
  endif()
endmacro()

dsplan_headers(fmt 9 fmt::fmt-header-only libfmt-dev include
               https://github.com/fmtlib/fmt.git a33701196adfad74917046096bf5a2aa0ab0bb50)  # 9.1.0
dsplan_headers(nlohmann_json 3.11 nlohmann_json::nlohmann_json nlohmann-json3-dev include
               https://github.com/nlohmann/json.git bc889afb4c5bf1c0d8ee29ef35eaaf4c8bef8a5d)  # 3.11.2
dsplan_headers(CLI11 2.1 CLI11::CLI11 libcli11-dev include
               https://github.com/CLIUtils/CLI11.git 70f8072f9dd2292fd0b9f9e5f58e279f60483ed3)  # 2.1.2
dsplan_headers(tomlplusplus 3.3 tomlplusplus::tomlplusplus libtomlplusplus-dev include
               https://github.com/marzer/tomlplusplus.git c635f218c0aefc801d9748841930365e54fe3089)  # 3.3.0
if(DSPLAN_TESTS)
  dsplan_headers(doctest 2.4 doctest::doctest doctest-dev .
                 https://github.com/doctest/doctest.git b7c21ec5ceeadb4951b00396fc1e4642dd347e5f)  # 2.4.9
endif()

# libyaml packages no CMake file.
add_library(dsplan_yaml INTERFACE)
if(NOT DSPLAN_FETCH STREQUAL "ON")
  find_path(DSPLAN_YAML_INCLUDE yaml.h)
  find_library(DSPLAN_YAML_LIBRARY NAMES yaml)
endif()
if(NOT DSPLAN_FETCH STREQUAL "ON" AND DSPLAN_YAML_INCLUDE AND DSPLAN_YAML_LIBRARY)
  target_include_directories(dsplan_yaml SYSTEM INTERFACE ${DSPLAN_YAML_INCLUDE})
  target_link_libraries(dsplan_yaml INTERFACE ${DSPLAN_YAML_LIBRARY})
else()
  dsplan_package_is_missing(libyaml libyaml-dev)
  dsplan_source(yaml https://github.com/yaml/libyaml.git 2c891fc7a770e8ba2fec34fc6b545c672beb37e6)  # 0.2.5
  enable_language(C)
  file(GLOB yaml_sources ${yaml_SOURCE_DIR}/src/*.c)
  add_library(dsplan_yaml_source STATIC ${yaml_sources})
  target_include_directories(dsplan_yaml_source SYSTEM PUBLIC ${yaml_SOURCE_DIR}/include)
  target_compile_definitions(dsplan_yaml_source PUBLIC YAML_DECLARE_STATIC PRIVATE
                             YAML_VERSION_MAJOR=0 YAML_VERSION_MINOR=2 YAML_VERSION_PATCH=5 YAML_VERSION_STRING="0.2.5")
  target_compile_options(dsplan_yaml_source PRIVATE -w)
  target_link_libraries(dsplan_yaml INTERFACE dsplan_yaml_source)
endif()

# OpenBLAS is no part of the build: the host executor looks for libopenblas.so.0 when it multiplies for the first time
# (src/exec/host/gemm.cpp), so that commands that run nothing start without it, and has loops of its own where there is
# none. tools/setup installs it.

if(DSPLAN_BENCH)
  if(NOT DSPLAN_FETCH STREQUAL "ON")
    find_package(benchmark 1.7 QUIET)
  endif()
  if(NOT TARGET benchmark::benchmark)
    dsplan_package_is_missing(benchmark libbenchmark-dev)
    dsplan_source(benchmark https://github.com/google/benchmark.git d572f4777349d43653b21d6c2fc63020ab326db2)  # 1.7.1
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    set(BENCHMARK_ENABLE_WERROR OFF)
    set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
    add_subdirectory(${benchmark_SOURCE_DIR} ${benchmark_BINARY_DIR} EXCLUDE_FROM_ALL)
    target_compile_options(benchmark PRIVATE -w)
  endif()
endif()
