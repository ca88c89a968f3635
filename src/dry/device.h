// What a program may ask about the device that is not there.
//
// Whoever starts the program says it in the environment: DSPLAN_DRY_DEVICE is a list "key=value;key=value" of what
// differs from an H100 (the keys are the members' names). What follows from the capability is derived from it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsplan::dry {

struct Device {
  std::string name = "NVIDIA H100 80GB HBM3";
  int major = 9;
  int minor = 0;
  int multiprocessors = 132;
  std::size_t memory = 85029158912;    // What cudaMemGetInfo calls the total.
  std::size_t context = 560ULL << 20;  // Taken before the program's first byte.
  int l2_bytes = 52428800;
  int bus_bits = 5120;
  int clock_khz = 1980000;
  int memory_clock_khz = 2619000;
  int registers_per_block = 65536;  // Tegra's have half of them.
  // For estimated durations.
  std::size_t memory_bytes_per_ns = 3350;
  std::size_t link_bytes_per_ns = 450;
  std::size_t host_bytes_per_ns = 55;
  std::size_t flop_per_ns = 989000;

  int count = 1;  // How many of them this process sees.

  // By capability.
  std::size_t shared_per_multiprocessor = 0;
  int threads_per_multiprocessor = 0;
  int blocks_per_multiprocessor = 0;
  [[nodiscard]] std::size_t shared_per_block_optin() const { return shared_per_multiprocessor - kSharedOfTheSystem; }

  static constexpr std::size_t kSharedOfTheSystem = 1024;  // Of each block.
  static constexpr std::size_t kSharedPerBlock = 49152;    // Without asking for more.
  static constexpr int kThreadsPerBlock = 1024;
  static constexpr int kGridX = 2147483647;
  static constexpr int kGridYZ = 65535;
  static constexpr int kBlockZ = 64;
};

// Throws nothing: a key that is not known, or no number, is left at its default.
[[nodiscard]] Device read_device(std::string_view text, const char* visible_devices);
[[nodiscard]] const Device& device();

// A variable of the environment as a number.
[[nodiscard]] std::size_t setting(const char* name, std::size_t otherwise);

}  // namespace dsplan::dry
