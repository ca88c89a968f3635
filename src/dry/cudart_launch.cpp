// The CUDA runtime: kernels are registered and launched, and none is run.
#include <map>
#include <mutex>
#include <vector>

#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/ledger.h"
#include "dry/memory.h"

namespace dsplan::dry {
namespace {

struct Configuration {
  Dim3 grid;
  Dim3 block;
  std::size_t shared;
  void* stream;
};
std::vector<Configuration>& configurations() {
  thread_local std::vector<Configuration> pushed;
  return pushed;
}

// A variable of the device. It lies in the context's memory, which is not counted.
struct Symbols {
  std::mutex lock;
  std::map<const void*, std::size_t> sizes;
  std::map<std::pair<const void*, int>, void*> places;

  void* place(const void* symbol) {
    const std::lock_guard guard(lock);
    void*& at = places[{symbol, current_device()}];
    const auto size = sizes.find(symbol);
    if (at == nullptr) at = memory_of(current_device()).reserve(size == sizes.end() ? kGranule : size->second);
    return at;
  }
};
Symbols& symbols() {
  static auto* const all = new Symbols;
  return *all;
}

Result run(const void* function, Dim3 grid, Dim3 block, std::size_t shared, void* stream) {
  return say(launch(function, grid, block, shared, stream_of(stream)));
}

constexpr const char* kRegisters = "32 registers a thread, no static shared memory";

}  // namespace
}  // namespace dsplan::dry

using namespace dsplan::dry;

// A program is told a handle, and hands it back with each of its kernels.
DSPLAN_DRY_CALL void** __cudaRegisterFatBinary(void* binary) {
  auto* code = new Code;
  code->bytes = binary;
  return reinterpret_cast<void**>(code);
}
DSPLAN_DRY_CALL void __cudaRegisterFatBinaryEnd(void**) {}
DSPLAN_DRY_CALL void __cudaUnregisterFatBinary(void**) {}
DSPLAN_DRY_CALL void __cudaRegisterFunction(void** code, const char* function, char*, const char* name, int threads,
                                            void*, void*, void*, void*, int*) {
  kernels().add(function, name, threads, reinterpret_cast<Code*>(code));
}
DSPLAN_DRY_CALL void __cudaRegisterVar(void**, char* variable, char*, const char*, int, std::size_t bytes, int, int) {
  const std::lock_guard guard(symbols().lock);
  symbols().sizes[variable] = bytes;
}
DSPLAN_DRY_CALL char __cudaInitModule(void**) { return 1; }
DSPLAN_DRY_CALL Result __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaGetKernel(const void** kernel, const void* function) {
  return __cudaGetKernel(kernel, function);
}
DSPLAN_DRY_CALL Result cudaGetFuncBySymbol(const void** kernel, const void* function) {
  return __cudaGetKernel(kernel, function);
}
DSPLAN_DRY_CALL unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared, void* stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}
DSPLAN_DRY_CALL Result __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared, void* stream) {
  if (configurations().empty()) return say(kMissingConfiguration);
  const Configuration top = configurations().back();
  configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<void**>(stream) = top.stream;
  return kSuccess;
}

DSPLAN_DRY_CALL Result __cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void**, std::size_t shared,
                                          void* stream) {
  return run(function, grid, block, shared, stream);
}
DSPLAN_DRY_CALL Result cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void**, std::size_t shared,
                                        void* stream) {
  return run(function, grid, block, shared, stream);
}
DSPLAN_DRY_CALL Result cudaLaunchCooperativeKernel(const void* function, Dim3 grid, Dim3 block, void**,
                                                   std::size_t shared, void* stream) {
  return run(function, grid, block, shared, stream);
}
DSPLAN_DRY_CALL Result cudaLaunchKernelExC(const LaunchConfig* how, const void* function, void**) {
  return run(function, how->grid, how->block, how->shared, how->stream);
}

DSPLAN_DRY_CALL Result cudaFuncGetAttributes(FunctionAttributes* out, const void* function) {
  const Kernel kernel = kernels().find(function);
  if (kernel.architecture == kNoImage) return say(kNoKernelImageForDevice);
  if (kernel.registers == 0) DSPLAN_DRY_GUESS("cudaFuncGetAttributes", kRegisters);
  *out = FunctionAttributes{};
  out->shared_bytes = kernel.shared;
  out->max_threads_per_block = kernel.threads;
  out->registers = registers_of(kernel);
  // What was compiled, not what it runs on: cub looks for the very architecture that its kernels were compiled for.
  const int own = device().major * 10 + device().minor;
  out->ptx_version = out->binary_version = kernel.architecture > 0 ? kernel.architecture : own;
  out->max_dynamic_shared_bytes = static_cast<int>(kernel.dynamic_shared);
  out->preferred_carveout = -1;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaFuncSetAttribute(const void* function, int attribute, int value) {
  return attribute == kMaxDynamicSharedBytes ? say(kernels().allow_shared(function, value)) : kSuccess;
}
DSPLAN_DRY_CALL Result cudaFuncSetCacheConfig(const void*, int) { return kSuccess; }
DSPLAN_DRY_CALL Result cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                     std::size_t shared) {
  const Kernel kernel = kernels().find(function);
  if (kernel.registers == 0) DSPLAN_DRY_GUESS("cudaOccupancyMaxActiveBlocksPerMultiprocessor", kRegisters);
  *blocks = blocks_per_multiprocessor(kernel, threads, shared);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                              int threads, std::size_t shared,
                                                                              unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
DSPLAN_DRY_CALL Result cudaOccupancyMaxActiveClusters(int* clusters, const void*, const LaunchConfig*) {
  DSPLAN_DRY_GUESS("cudaOccupancyMaxActiveClusters", "half as many as multiprocessors");
  *clusters = device().multiprocessors / 2;
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaGetSymbolAddress(void** at, const void* symbol) {
  *at = symbols().place(symbol);
  return *at != nullptr ? kSuccess : say(kInvalidSymbol);
}
DSPLAN_DRY_CALL Result cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  const std::lock_guard guard(symbols().lock);
  const auto found = symbols().sizes.find(symbol);
  if (found == symbols().sizes.end()) return say(kInvalidSymbol);
  *bytes = found->second;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
                                          int) {
  copy(static_cast<char*>(symbols().place(symbol)) + offset, from, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpyToSymbolAsync(const void* symbol, const void* from, std::size_t bytes,
                                               std::size_t offset, int kind, void*) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
DSPLAN_DRY_CALL Result cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t bytes, std::size_t offset, int) {
  copy(to, static_cast<char*>(symbols().place(symbol)) + offset, bytes);
  return kSuccess;
}
