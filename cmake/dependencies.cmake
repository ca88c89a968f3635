# Every third-party library: the system's package where there is one, else a pinned download.
# Debian and Ubuntu have them all (tools/setup installs them); the fallback is for other systems.
include(FetchContent)

find_package(fmt 9 QUIET)
find_package(nlohmann_json 3.11 QUIET)
find_package(CLI11 2.1 QUIET)
if(DSPLAN_TESTS)
  find_package(doctest 2.4 QUIET)
endif()

find_path(DSPLAN_YAML_INCLUDE yaml.h)
find_library(DSPLAN_YAML_LIBRARY NAMES yaml)
add_library(dsplan_yaml INTERFACE)
if(DSPLAN_YAML_INCLUDE AND DSPLAN_YAML_LIBRARY)
  target_include_directories(dsplan_yaml SYSTEM INTERFACE ${DSPLAN_YAML_INCLUDE})
  target_link_libraries(dsplan_yaml INTERFACE ${DSPLAN_YAML_LIBRARY})
endif()
