// What a program's own device code says of its kernels: registers, static shared memory, launch bounds.
//
// A program hands its code to the runtime as a "fat binary": one image for each architecture. Images that nvcc
// compressed are not read; of those kernels nothing is known.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace dsplan::dry {

struct KernelFacts {
  int registers = 0;
  int threads = 0;  // 0: no launch bounds.
  std::size_t shared = 0;
};

// By the kernel's name, of the image that a device of this capability (9, 0) would load; empty where none can be read.
// `code` is what __cudaRegisterFatBinary is given, or one image alone.
[[nodiscard]] std::map<std::string, KernelFacts> facts_in(const void* code, int major, int minor);

// Which of a program's images a device of this capability loads: 86 for one of sm_89 where there are 80, 86 and 90.
// Text that the driver compiles (PTX) counts where no machine code runs. 0: unknown, no such images are there;
// kNoImage: none runs.
inline constexpr int kNoImage = -1;
[[nodiscard]] int architecture_in(const void* code, int major, int minor);

}  // namespace dsplan::dry
