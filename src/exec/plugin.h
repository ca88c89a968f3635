// A backend that is a library of its own, loaded when it is asked for: what needs CUDA and its libraries stays out of
// dsplan itself, which starts in a millisecond and on machines that have neither.
//
// Looked for in this order, and the first that is there is taken: the file that $DSPLAN_CUDA_PLUGIN names (and then
// nothing else), libdsplan_cuda.so beside the running program, and in ../lib/dsplan seen from there.
#pragma once

#include <string>
#include <vector>

#include "exec/backend.h"

namespace dsplan::exec {

struct Plugin {
  const dsplan_backend* table = nullptr;  // nullptr: it could not be had, and `why` says it.
  std::string path;                       // Of the library; absolute where it was found beside the program.
  // "no libdsplan_cuda.so beside dsplan (/usr/bin) or in /usr/lib/dsplan", or what the loader said of a library that
  // is there, or which version of the interface that speaks.
  std::string why;
};

// Where libdsplan_NAME.so is looked for.
[[nodiscard]] std::vector<std::string> plugin_places(const std::string& name);
// Loads the library at `path`; what is loaded stays for the rest of the process.
[[nodiscard]] Plugin load_plugin_from(const std::string& path);
// Finds and loads the backend NAME ("cuda").
[[nodiscard]] Plugin load_plugin(const std::string& name);

}  // namespace dsplan::exec
