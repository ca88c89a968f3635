#include "dry/device.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace dsplan::dry {
namespace {

struct Multiprocessor {
  int capability;
  int shared_kib;
  int threads;
  int blocks;
};
// CUDA C++ Programming Guide, technical specifications per compute capability.
constexpr Multiprocessor kMultiprocessors[] = {
    {70, 96, 2048, 32},  {75, 64, 1024, 16},  {80, 164, 2048, 32},  {86, 100, 1536, 16},  {87, 164, 1536, 16},
    {89, 100, 1536, 24}, {90, 228, 2048, 32}, {100, 228, 2048, 32}, {103, 228, 2048, 32}, {120, 100, 1536, 24},
};

void derive(Device& device) {
  const Multiprocessor* found = &kMultiprocessors[0];
  for (const Multiprocessor& row : kMultiprocessors) {
    if (row.capability <= device.major * 10 + device.minor) found = &row;
  }
  device.shared_per_multiprocessor = static_cast<std::size_t>(found->shared_kib) << 10;
  device.threads_per_multiprocessor = found->threads;
  device.blocks_per_multiprocessor = found->blocks;
}

std::map<std::string, std::string> pairs(std::string_view text) {
  std::map<std::string, std::string> found;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    if (const std::size_t sign = item.find('='); sign != std::string_view::npos) {
      found[std::string(item.substr(0, sign))] = std::string(item.substr(sign + 1));
    }
  }
  return found;
}

// How many entries of CUDA_VISIBLE_DEVICES name a device; all where it is not set.
int visible(int count, const char* list) {
  if (list == nullptr) return count;
  std::string_view rest = list;
  int seen = 0;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty() || item.front() == '-') break;  // As CUDA does: what follows an invalid one is not seen.
    ++seen;
  }
  return seen;
}

}  // namespace

Device read_device(std::string_view text, const char* visible_devices) {
  Device device;
  const std::map<std::string, std::string> given = pairs(text);
  const auto number = [&](const char* key, auto& member) {
    const auto found = given.find(key);
    if (found == given.end()) return;
    char* end = nullptr;
    const unsigned long long value = std::strtoull(found->second.c_str(), &end, 10);
    if (end != found->second.c_str() && *end == '\0') member = static_cast<std::decay_t<decltype(member)>>(value);
  };
  if (const auto name = given.find("name"); name != given.end()) device.name = name->second;
  number("major", device.major);
  number("minor", device.minor);
  number("multiprocessors", device.multiprocessors);
  number("memory", device.memory);
  number("context", device.context);
  number("l2_bytes", device.l2_bytes);
  number("bus_bits", device.bus_bits);
  number("clock_khz", device.clock_khz);
  number("memory_clock_khz", device.memory_clock_khz);
  number("registers_per_block", device.registers_per_block);
  number("memory_bytes_per_ns", device.memory_bytes_per_ns);
  number("link_bytes_per_ns", device.link_bytes_per_ns);
  number("host_bytes_per_ns", device.host_bytes_per_ns);
  number("flop_per_ns", device.flop_per_ns);
  for (std::size_t* rate :
       {&device.memory_bytes_per_ns, &device.link_bytes_per_ns, &device.host_bytes_per_ns, &device.flop_per_ns}) {
    *rate = std::max<std::size_t>(*rate, 2);
  }
  number("count", device.count);
  device.count = visible(device.count, visible_devices);
  derive(device);
  return device;
}

const Device& device() {
  static const Device* const read = [] {
    const char* text = std::getenv("DSPLAN_DRY_DEVICE");
    return new Device(read_device(text != nullptr ? text : "", std::getenv("CUDA_VISIBLE_DEVICES")));
  }();
  return *read;
}

std::size_t setting(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 0) : otherwise;
}

}  // namespace dsplan::dry

// By this name programs find out that what they loaded computes nothing (the CUDA plugin: is_dry).
extern "C" __attribute__((visibility("default"))) int dsplan_dry_computes_nothing() { return 1; }
