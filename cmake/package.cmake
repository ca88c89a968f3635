# What CPack makes of the install rules: `cpack -G DEB` in the build folder. tools/wheel calls it with a program that
# needs no library but libc, so that one package serves every distribution.
set(CPACK_PACKAGE_VENDOR "The dsplan maintainers")
set(CPACK_PACKAGE_CONTACT "The dsplan maintainers <maintainers@dsplan.invalid>")
set(CPACK_PACKAGE_DESCRIPTION "${PROJECT_DESCRIPTION}.
 It predicts per rank, to the byte, what PyTorch and DeepSpeed allocate, from the
 model's config.json and the DeepSpeed JSON, without Python or a GPU.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES OFF)  # The host's strip does not know the target's files; the linker strips.
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.28)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libopenblas0")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dsplan RENAME copyright)
# Notices of what is linked in, gathered by tools/wheel.
set(DSPLAN_NOTICES "" CACHE FILEPATH "Licences of linked libraries, to be installed with the program")
if(DSPLAN_NOTICES)
  install(FILES ${DSPLAN_NOTICES} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dsplan)
endif()
include(CPack)
