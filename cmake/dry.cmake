# The dry device: libraries that stand in for those of CUDA (docs/dry-device.md). They need neither CUDA nor Python: what
# nobody has written is a stub, made here from the lists of names in src/dry/exports.
#
#   DSPLAN_DRY=ON   (default) built into the folder dry/ of the build
set(dsplan_dry_default ON)
if(DSPLAN_SANITIZE OR DSPLAN_FUZZ)
  set(dsplan_dry_default OFF)  # They are loaded into programs that were not built with sanitizers.
endif()
option(DSPLAN_DRY "Build the dry device's libraries" ${dsplan_dry_default})
if(NOT DSPLAN_DRY)
  return()
endif()

set(DSPLAN_DRY_FOLDER ${CMAKE_BINARY_DIR}/dry)

# One library that stands in: `soname`, the list of names that it exports, the pattern that is let out, and the files.
function(dsplan_dry_library target soname list pattern)
  cmake_parse_arguments(dry "" "MAJOR;VERSION" "" ${ARGN})
  set(stubs ${CMAKE_BINARY_DIR}/dry-stubs/${target})
  if(list)
    set(file ${CMAKE_SOURCE_DIR}/src/dry/exports/${list}.txt)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(STRINGS ${file} names REGEX "^[^#]")
    list(TRANSFORM names REPLACE "(.+)" "DSPLAN_DRY_STUB(\\1)")
    list(JOIN names "\n" names)
    file(CONFIGURE OUTPUT ${stubs}.cpp CONTENT "#include \"dry/stub.h\"\n${names}\n" @ONLY)
    list(APPEND dry_UNPARSED_ARGUMENTS ${stubs}.cpp)
  endif()
  file(CONFIGURE OUTPUT ${stubs}.map CONTENT "${dry_VERSION} { global: ${pattern} local: *; };\n" @ONLY)
  add_library(${target} SHARED ${dry_UNPARSED_ARGUMENTS})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE dsplan_dry ${CMAKE_DL_LIBS})
  if(dry_MAJOR)
    target_compile_definitions(${target} PRIVATE DSPLAN_DRY_CUDA=${dry_MAJOR})
  endif()
  target_link_options(${target} PRIVATE -Wl,--version-script=${stubs}.map -Wl,-soname,${soname})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${soname} SUFFIX "")
  dsplan_dry_place(${target})
endfunction()

function(dsplan_dry_place target)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${DSPLAN_WERROR}>:-Werror>)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${DSPLAN_DRY_FOLDER}
                        BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${target} LIBRARY DESTINATION lib/dsplan/dry OPTIONAL)
endfunction()

# What they share: one device, its memory, its streams, its peers, and the ledger.
set(dsplan_dry_shared device host_memory memory pool mapping streams capture kernels cubin ledger attributes peers reduce)
list(TRANSFORM dsplan_dry_shared REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/dry/\\1.cpp")
add_library(dsplan_dry SHARED ${dsplan_dry_shared})
target_include_directories(dsplan_dry PUBLIC ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(dsplan_dry PRIVATE Threads::Threads rt ${CMAKE_DL_LIBS})
dsplan_dry_place(dsplan_dry)

set(dry ${CMAKE_SOURCE_DIR}/src/dry)
set(dsplan_dry_targets dsplan_dry)
foreach(major 12 13)
  dsplan_dry_library(dsplan_dry_cudart_${major} libcudart.so.${major} cudart-${major} "cuda*; __cuda*;" MAJOR ${major}
    VERSION libcudart.so.${major} ${dry}/cudart_device.cpp ${dry}/cudart_launch.cpp ${dry}/cudart_memory.cpp
    ${dry}/cudart_streams.cpp)
  dsplan_dry_library(dsplan_dry_cublas_${major} libcublas.so.${major} cublas-${major} "cu*;" MAJOR ${major}
    VERSION libcublas.so.${major} ${dry}/cublas.cpp)
  dsplan_dry_library(dsplan_dry_cublaslt_${major} libcublasLt.so.${major} cublasLt-${major} "cu*;" MAJOR ${major}
    VERSION libcublasLt.so.${major} ${dry}/cublaslt.cpp)
  list(APPEND dsplan_dry_targets dsplan_dry_cudart_${major} dsplan_dry_cublas_${major} dsplan_dry_cublaslt_${major})
endforeach()
dsplan_dry_library(dsplan_dry_driver libcuda.so.1 cuda "cu*;" ${dry}/driver.cpp ${dry}/driver_memory.cpp)
dsplan_dry_library(dsplan_dry_nccl libnccl.so.2 nccl "nccl*; pnccl*;" ${dry}/nccl.cpp)
dsplan_dry_library(dsplan_dry_nvml libnvidia-ml.so.1 nvidia-ml "nvml*;" ${dry}/nvml.cpp)
dsplan_dry_library(dsplan_dry_cudnn libdsplan_dry_cudnn.so "" "cudnn*;" ${dry}/cudnn.cpp)
list(APPEND dsplan_dry_targets dsplan_dry_driver dsplan_dry_nccl dsplan_dry_nvml dsplan_dry_cudnn)
add_custom_target(dsplan_dry_device ALL DEPENDS ${dsplan_dry_targets})
