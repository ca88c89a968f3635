#include "paths.h"

namespace test_paths {

std::string source_dir() { return DSPLAN_SOURCE_DIR; }
const char* binary() { return DSPLAN_BINARY; }

}  // namespace test_paths
