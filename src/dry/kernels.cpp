#include "dry/kernels.h"

#include <algorithm>
#include <utility>

#include "dry/ledger.h"

namespace dsplan::dry {

namespace {

// What its code says of a kernel, once.
void read_code(Kernel& kernel) {
  Code& code = *std::exchange(kernel.code, nullptr);
  if (!std::exchange(code.read, true)) {
    code.facts = facts_in(code.bytes, device().major, device().minor);
    code.architecture = architecture_in(code.bytes, device().major, device().minor);
  }
  kernel.architecture = code.architecture;
  const auto found = code.facts.find(kernel.name);
  if (found == code.facts.end()) return;
  kernel.registers = found->second.registers;
  kernel.shared = found->second.shared;
  if (found->second.threads > 0) kernel.threads = std::min(kernel.threads, found->second.threads);
}

}  // namespace

void Kernels::add(const void* function, const char* name, int threads, Code* code) {
  const std::lock_guard guard(lock_);
  Kernel& kernel = known_[function];
  kernel.name = name != nullptr ? name : "";
  kernel.code = code;
  if (threads > 0) kernel.threads = std::min(threads, Device::kThreadsPerBlock);
}

Kernel Kernels::find(const void* function) {
  const std::lock_guard guard(lock_);
  const auto found = known_.find(function);
  if (found == known_.end()) return {};
  if (found->second.code != nullptr) read_code(found->second);
  return found->second;
}

Result Kernels::allow_shared(const void* function, int bytes) {
  if (bytes < 0 || static_cast<std::size_t>(bytes) > device().shared_per_block_optin()) return kInvalidValue;
  const std::lock_guard guard(lock_);
  known_[function].dynamic_shared = static_cast<std::size_t>(bytes);
  return kSuccess;
}

Kernels& kernels() {
  static auto* const all = new Kernels;
  return *all;
}

int registers_of(const Kernel& kernel) {
  static const int guess = static_cast<int>(std::max<std::size_t>(setting("DSPLAN_DRY_REGISTERS", 32), 1));
  return kernel.registers > 0 ? kernel.registers : guess;
}

Result launch_limits(const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared) {
  if (kernel.architecture == kNoImage) return kNoKernelImageForDevice;
  const auto within = [](unsigned value, int most) { return value > 0 && value <= static_cast<unsigned>(most); };
  if (!within(grid.x, Device::kGridX) || !within(grid.y, Device::kGridYZ) || !within(grid.z, Device::kGridYZ) ||
      !within(block.x, Device::kThreadsPerBlock) || !within(block.y, Device::kThreadsPerBlock) ||
      !within(block.z, Device::kBlockZ)) {
    return kInvalidConfiguration;
  }
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  if (threads > Device::kThreadsPerBlock) return kInvalidConfiguration;
  if (threads > static_cast<std::size_t>(kernel.threads)) return kOutOfResources;
  // Only registers that were read count here: a guess must not fail a program.
  if (threads * static_cast<std::size_t>(kernel.registers) > static_cast<std::size_t>(device().registers_per_block)) {
    return kOutOfResources;
  }
  if (shared > kernel.dynamic_shared || shared + kernel.shared > device().shared_per_block_optin())
    return kInvalidValue;
  return kSuccess;
}

int blocks_per_multiprocessor(const Kernel& kernel, int threads, std::size_t shared) {
  if (threads <= 0 || threads > kernel.threads) return 0;
  const Device& on = device();
  const int warps = (threads + 31) / 32;
  int blocks = std::min(on.threads_per_multiprocessor / 32 / warps, on.blocks_per_multiprocessor);
  const int per_warp = (registers_of(kernel) * 32 + 255) / 256 * 256;  // Given out 256 at a time.
  blocks = std::min(blocks, on.registers_per_block / (warps * per_warp));
  const std::size_t each = shared + kernel.shared + Device::kSharedOfTheSystem;
  return std::min(blocks, static_cast<int>(on.shared_per_multiprocessor / each));
}

Result launch(const void* function, Dim3 grid, Dim3 block, std::size_t shared, Stream* stream) {
  const Result allowed = launch_limits(kernels().find(function), grid, block, shared);
  if (allowed != kSuccess) return allowed;
  const std::size_t threads = std::size_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
  streams().launch(stream, kernel_time(threads));
  return kSuccess;
}

// A thread moves some 16 bytes, and what a kernel computes is little beside that; no kernel takes less than 2 us.
Nanoseconds kernel_time(std::size_t threads) {
  return std::max<Nanoseconds>(2000, threads * 16 / device().memory_bytes_per_ns);
}

Nanoseconds copy_time(std::size_t bytes, bool over_the_host) {
  return 2000 + bytes / (over_the_host ? device().host_bytes_per_ns : device().memory_bytes_per_ns / 2);
}

}  // namespace dsplan::dry
