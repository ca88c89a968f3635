// Kernels: what is known of one, and whether the device could launch it. None is run.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "dry/cubin.h"
#include "dry/cuda_abi.h"
#include "dry/streams.h"

namespace dsplan::dry {

// The code that a program registered or loaded, read when one of its kernels is asked for.
struct Code {
  const void* bytes = nullptr;
  bool read = false;
  int architecture = 0;
  std::map<std::string, KernelFacts> facts;
};

struct Kernel {
  std::string name;
  Code* code = nullptr;
  int architecture = 0;                                  // Of the image that the device loads; 0: unknown.
  int threads = Device::kThreadsPerBlock;                // By its launch bounds.
  int registers = 0;                                     // 0: nobody looked into its code.
  std::size_t shared = 0;                                // Static.
  std::size_t dynamic_shared = Device::kSharedPerBlock;  // As much as was asked for with cudaFuncSetAttribute.
};

// By the address that a program launches: a function of the host, or a handle of ours.
class Kernels {
 public:
  void add(const void* function, const char* name, int threads, Code* code);
  [[nodiscard]] Kernel find(const void* function);
  Result allow_shared(const void* function, int bytes);

 private:
  std::mutex lock_;
  std::unordered_map<const void*, Kernel> known_;
};
[[nodiscard]] Kernels& kernels();

// Registers of a thread that a kernel is said to use where nobody knows (DSPLAN_DRY_REGISTERS, 32).
[[nodiscard]] int registers_of(const Kernel& kernel);
// Success, or why no device like this one can launch it.
[[nodiscard]] Result launch_limits(const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared);
[[nodiscard]] int blocks_per_multiprocessor(const Kernel& kernel, int threads, std::size_t shared);

// Checks, and puts the work on the stream.
Result launch(const void* function, Dim3 grid, Dim3 block, std::size_t shared, Stream* stream);

// Estimates for streams that are timed.
[[nodiscard]] Nanoseconds kernel_time(std::size_t threads);
[[nodiscard]] Nanoseconds copy_time(std::size_t bytes, bool over_the_host);

}  // namespace dsplan::dry
