# The CUDA plugin: a library of its own that dsplan loads when it is asked for it (docs/decisions/0015).
#
#   DSPLAN_CUDA=AUTO   (default) built where nvcc and cuBLASLt of CUDA 12 or later are found; not under sanitizers
#   DSPLAN_CUDA=ON     built, or the configuration ends with what is missing
#   DSPLAN_CUDA=OFF    left out; nothing is looked for
set(DSPLAN_CUDA AUTO CACHE STRING "The CUDA plugin: AUTO, ON or OFF")
set_property(CACHE DSPLAN_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT DSPLAN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DSPLAN_CUDA is \"${DSPLAN_CUDA}\"; it must be AUTO, ON or OFF")
endif()

set(DSPLAN_HAVE_CUDA OFF)
# What plugins share with the host's executor, compiled for libraries: launches and their tensors, views, files.
add_library(dsplan_plugin_parts OBJECT EXCLUDE_FROM_ALL
  src/core/error.cpp src/core/format.cpp src/core/graph.cpp src/core/model.cpp src/core/program.cpp src/core/units.cpp
  src/exec/operators/layout.cpp src/exec/operators/views.cpp
  src/exec/host/args.cpp src/exec/host/combine.cpp src/exec/host/host_backend.cpp src/exec/host/host_files.cpp
  src/exec/host/host_memory.cpp src/exec/host/picked_rows.cpp src/exec/host/product_calls.cpp src/exec/host/strided.cpp)
target_link_libraries(dsplan_plugin_parts PUBLIC dsplan_options)
target_include_directories(dsplan_plugin_parts SYSTEM PRIVATE
                           $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
set_target_properties(dsplan_plugin_parts PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
dsplan_together(dsplan_plugin_parts)

# Says why there is no plugin, and ends the configuration where one was asked for.
macro(dsplan_without_cuda reason)
  if(DSPLAN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DSPLAN_CUDA is ON, but ${reason}")
  endif()
  message(STATUS "CUDA plugin: left out, ${reason}")
  return()
endmacro()

if(DSPLAN_CUDA STREQUAL "OFF")
  message(STATUS "CUDA plugin: left out, DSPLAN_CUDA is OFF")
  return()
endif()
if(DSPLAN_SANITIZE OR DSPLAN_FUZZ)
  dsplan_without_cuda("sanitizers and nvcc do not go together")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(DSPLAN_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT DSPLAN_NVCC)
    dsplan_without_cuda("nvcc was not found (in PATH, CUDACXX, CUDA_HOME or /usr/local/cuda)")
  endif()
  set(CMAKE_CUDA_COMPILER ${DSPLAN_NVCC})
endif()
find_package(CUDAToolkit 12 QUIET)
if(NOT CUDAToolkit_FOUND)
  dsplan_without_cuda("no CUDA toolkit 12 or later was found")
endif()
if(NOT TARGET CUDA::cublasLt OR NOT TARGET CUDA::cudart_static)
  dsplan_without_cuda("the CUDA toolkit ${CUDAToolkit_VERSION} has no cuBLASLt or no static runtime")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "Code for A100 and H100, and PTX for what comes later")
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  dsplan_without_cuda("nvcc does not work with this host compiler")
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 knows C++17 for nvcc at most.
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

file(GLOB dsplan_cuda_plain CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/cuda/plugin/*.cpp)
file(GLOB dsplan_cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/kernels/*.cpp)
add_library(dsplan_cuda_plain OBJECT ${dsplan_cuda_plain})
target_link_libraries(dsplan_cuda_plain PRIVATE dsplan_options)
target_include_directories(dsplan_cuda_plain SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(dsplan_cuda_plain PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
# NCCL is not linked but looked up at run time: what is written down of it is held against its header where it is here.
list(APPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/cmake)
find_package(NCCL QUIET)
if(NCCL_FOUND)
  set_source_files_properties(src/cuda/plugin/nccl_prototypes.cpp PROPERTIES COMPILE_DEFINITIONS DSPLAN_HAVE_NCCL
                              INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()

# The same files as tests compile for the host; here they are the device's.
set_source_files_properties(${dsplan_cuda_kernels} PROPERTIES LANGUAGE CUDA)
add_library(dsplan_cuda_kernels OBJECT ${dsplan_cuda_kernels})
target_include_directories(dsplan_cuda_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(dsplan_cuda_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xptxas=-v
                       -Xcompiler=-Wall,-Wextra>)
# What ptxas says of registers and spills is kept beside each object, for the test cuda_kernels_fit. A list, so that no
# empty argument stands for a ccache that is not there.
set(dsplan_cuda_launcher sh ${CMAKE_SOURCE_DIR}/cmake/keep_ptxas_log.sh ${CMAKE_CXX_COMPILER_LAUNCHER})
set_target_properties(dsplan_cuda_kernels PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
  POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden CUDA_COMPILER_LAUNCHER "${dsplan_cuda_launcher}")
# The plugin brings CUDA's runtime along. That of the tests takes the library, for which the dry device stands in.
function(dsplan_cuda_plugin target)
  add_library(${target} MODULE ${ARGN} $<TARGET_OBJECTS:dsplan_cuda_kernels> $<TARGET_OBJECTS:dsplan_cuda_plain>
              $<TARGET_OBJECTS:dsplan_plugin_parts>)
  target_link_options(${target} PRIVATE -Wl,--no-undefined)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()
dsplan_cuda_plugin(dsplan_cuda)
target_link_libraries(dsplan_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt ${CMAKE_DL_LIBS})
# Where src/exec/plugin.cpp looks. Optional: tools/run builds the program alone, and that much can be installed.
install(TARGETS dsplan_cuda LIBRARY DESTINATION lib/dsplan OPTIONAL)
install(CODE "if(NOT EXISTS \"$<TARGET_FILE:dsplan_cuda>\")
  message(STATUS \"CUDA plugin: not built, so not installed (build the target dsplan_cuda first)\")
endif()")
set(DSPLAN_HAVE_CUDA ON)
message(STATUS "CUDA plugin: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}; header of NCCL: ${NCCL_VERSION}")
