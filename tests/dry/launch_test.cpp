#include <doctest/doctest.h>

#include "calls.h"

using namespace dsplan::dry;

namespace {

int launched(const char* kernel, Dim3 grid, Dim3 block, std::size_t shared = 0) {
  const int result = cudaLaunchKernel(kernel, grid, block, nullptr, shared, nullptr);
  CHECK(cudaGetLastError() == result);
  return result;
}

}  // namespace

TEST_CASE("a launch that no device could make fails") {
  static const char kernel = 0;
  __cudaRegisterFunction(nullptr, &kernel, nullptr, "plain", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  CHECK(launched(&kernel, {1, 1, 1}, {1024, 1, 1}) == kSuccess);
  CHECK(launched(&kernel, {2147483647, 65535, 65535}, {1, 1, 64}) == kSuccess);
  CHECK(launched(&kernel, {1, 1, 1}, {1025, 1, 1}) == kInvalidConfiguration);
  CHECK(launched(&kernel, {1, 1, 1}, {512, 4, 1}) == kInvalidConfiguration);
  CHECK(launched(&kernel, {1, 1, 1}, {1, 1, 65}) == kInvalidConfiguration);
  CHECK(launched(&kernel, {0, 1, 1}, {1, 1, 1}) == kInvalidConfiguration);
  CHECK(launched(&kernel, {1, 1, 1}, {0, 1, 1}) == kInvalidConfiguration);
  CHECK(launched(&kernel, {1, 65536, 1}, {1, 1, 1}) == kInvalidConfiguration);
}

TEST_CASE("shared memory above 48 KiB has to be asked for, and the device's limit holds") {
  static const char kernel = 0;
  __cudaRegisterFunction(nullptr, &kernel, nullptr, "shared", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  CHECK(launched(&kernel, {1, 1, 1}, {32, 1, 1}, 49152) == kSuccess);
  CHECK(launched(&kernel, {1, 1, 1}, {32, 1, 1}, 49153) == kInvalidValue);
  CHECK(cudaFuncSetAttribute(&kernel, kMaxDynamicSharedBytes, 99 << 10) == 0);
  CHECK(launched(&kernel, {1, 1, 1}, {32, 1, 1}, 99 << 10) == kSuccess);
  CHECK(cudaFuncSetAttribute(&kernel, kMaxDynamicSharedBytes, 100 << 10) == kInvalidValue);  // Of 100 the system has 1.
  cudaGetLastError();
}

TEST_CASE("launch bounds hold") {
  static const char kernel = 0;
  __cudaRegisterFunction(nullptr, &kernel, nullptr, "bounded", 256, nullptr, nullptr, nullptr, nullptr, nullptr);
  CHECK(launched(&kernel, {1, 1, 1}, {256, 1, 1}) == kSuccess);
  CHECK(launched(&kernel, {1, 1, 1}, {257, 1, 1}) == kOutOfResources);
  FunctionAttributes told{};
  CHECK(cudaFuncGetAttributes(&told, &kernel) == 0);
  CHECK(told.max_threads_per_block == 256);
}

TEST_CASE("as many blocks share a multiprocessor as its threads, blocks, registers and shared memory allow") {
  static const char kernel = 0;
  const auto blocks = [](int threads, std::size_t shared) {
    int found = -1;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, &kernel, threads, shared) == 0);
    return found;
  };
  CHECK(blocks(1024, 0) == 1);  // Of 1,536 threads.
  CHECK(blocks(256, 0) == 6);
  CHECK(blocks(32, 0) == 24);
  CHECK(blocks(32, 20 << 10) == 4);
  CHECK(blocks(2048, 0) == 0);
}
