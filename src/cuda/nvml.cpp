#include "cuda/nvml.h"

#include <dlfcn.h>
#include <algorithm>
#include <vector>

#include "core/format.h"

namespace dsplan::cuda {
namespace {

constexpr int kSuccess = 0;
constexpr int kTooSmall = 7;  // NVML_ERROR_INSUFFICIENT_SIZE.

template <class Call>
bool look_up(void* library, const char* name, Call*& into) {
  into = reinterpret_cast<Call*>(::dlsym(library, name));
  return into != nullptr;
}

}  // namespace

Nvml::Nvml(const std::string& library) {
  library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* said = ::dlerror();
    why_ = said == nullptr ? library : said;
    return;
  }
  int (*init)() = nullptr;
  const bool whole = look_up(library_, "nvmlInit_v2", init) && look_up(library_, "nvmlShutdown", shutdown_) &&
                     look_up(library_, "nvmlDeviceGetHandleByPciBusId_v2", device_of_) &&
                     look_up(library_, "nvmlDeviceGetComputeRunningProcesses_v3", processes_of_);
  const int begun = whole ? init() : kSuccess;
  if (whole && begun == kSuccess) return;
  why_ = whole ? formatted("nvmlInit: error {}", begun) : library + " lacks a call";
  shutdown_ = nullptr;
  (void)::dlclose(library_);
  library_ = nullptr;
}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  (void)shutdown_();
  (void)::dlclose(library_);
}

std::int64_t Nvml::fail(std::string why) {
  why_ = std::move(why);
  return -1;
}

std::int64_t Nvml::process_bytes(const std::string& bus_id, unsigned process) {
  if (library_ == nullptr) return -1;
  Device device = nullptr;
  if (const int error = device_of_(bus_id.c_str(), &device); error != kSuccess) {
    return fail(formatted("NVML knows no device {}: error {}", bus_id, error));
  }
  std::vector<Process> list(16);
  auto count = static_cast<unsigned>(list.size());
  int error = processes_of_(device, &count, list.data());
  while (error == kTooSmall && count > list.size()) {
    list.resize(count);
    error = processes_of_(device, &count, list.data());
  }
  if (error != kSuccess) return fail(formatted("NVML lists no processes: error {}", error));
  list.resize(std::min<std::size_t>(count, list.size()));
  const auto own = std::find_if(list.begin(), list.end(), [&](const Process& each) { return each.id == process; });
  if (own == list.end()) return fail("NVML does not list this process");
  // NVML_VALUE_NOT_AVAILABLE: all bits are set.
  if (own->bytes > static_cast<unsigned long long>(INT64_MAX)) return fail("NVML does not know the process's memory");
  why_.clear();
  return static_cast<std::int64_t>(own->bytes);
}

}  // namespace dsplan::cuda
