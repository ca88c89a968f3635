#include "exec/plugin.h"

#include <dlfcn.h>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "core/format.h"

namespace dsplan::exec {
namespace {

namespace fs = std::filesystem;

std::string variable_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return "DSPLAN_" + name + "_PLUGIN";
}

fs::path folder_of_program() {
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  return unknown ? fs::path() : program.parent_path();
}

// What the loader has to say, without the name of the library, which stands before it already.
std::string loader_says(const std::string& path) {
  const char* text = ::dlerror();
  std::string said = text == nullptr ? "the loader gives no reason" : text;
  if (said.rfind(path + ": ", 0) == 0) said.erase(0, path.size() + 2);
  return said;
}

std::string unfit(const dsplan_backend* table) {
  if (table == nullptr) return "it has no table of functions";
  // The version comes first whatever the rest looks like.
  if (table->version != DSPLAN_BACKEND_VERSION || table->size != sizeof(dsplan_backend)) {
    return formatted("it speaks version {} of the interface in {} bytes, this dsplan version {} in {}", table->version,
                     table->size, DSPLAN_BACKEND_VERSION, sizeof(dsplan_backend));
  }
  return {};
}

}  // namespace

std::vector<std::string> plugin_places(const std::string& name) {
  if (const char* given = std::getenv(variable_of(name).c_str()); given != nullptr && *given != '\0') return {given};
  const std::string file = formatted("libdsplan_{}.so", name);
  const fs::path program = folder_of_program();
  if (program.empty()) return {file};
  return {(program / file).string(), (program.parent_path() / "lib" / "dsplan" / file).string()};
}

Plugin load_plugin_from(const std::string& path) {
  Plugin plugin;
  plugin.path = path;
  ::dlerror();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    plugin.why = formatted("{}: {}", path, loader_says(path));
    return plugin;
  }
  void* symbol = ::dlsym(library, DSPLAN_BACKEND_SYMBOL);
  if (symbol == nullptr) {
    plugin.why = formatted("{}: it is no backend of dsplan: it has no {}", path, DSPLAN_BACKEND_SYMBOL);
    return plugin;
  }
  const auto give = reinterpret_cast<const dsplan_backend* (*)()>(symbol);
  const dsplan_backend* table = give();
  if (std::string reason = unfit(table); !reason.empty()) {
    plugin.why = formatted("{}: {}", path, reason);
  } else {
    plugin.table = table;
  }
  return plugin;
}

Plugin load_plugin(const std::string& name) {
  const std::vector<std::string> places = plugin_places(name);
  std::error_code ignored;
  for (const std::string& place : places) {
    if (places.size() == 1 || fs::exists(place, ignored)) return load_plugin_from(place);
  }
  Plugin plugin;
  plugin.why = formatted("there is no {}; dsplan was built without it, or it was not installed along",
                         joined(places, ", and no "));
  return plugin;
}

}  // namespace dsplan::exec
