#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "calls.h"

namespace {

std::size_t available() {
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == 0);
  CHECK(total == 1024 * kMiB);
  return free;
}

long proportional_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pss:", 0) == 0) return std::stol(line.substr(4));
  }
  return 0;
}

}  // namespace

TEST_CASE("the device has its capacity less its context, and gives memory in 2 MiB") {
  CHECK(available() == 960 * kMiB);
  void* small = nullptr;
  CHECK(cudaMalloc(&small, 1) == 0);
  CHECK(available() == 958 * kMiB);
  void* large = nullptr;
  CHECK(cudaMalloc(&large, 959 * kMiB) == dsplan::dry::kOutOfMemory);
  CHECK(large == nullptr);
  CHECK(std::string(cudaGetErrorString(cudaPeekAtLastError())) == "out of memory");
  CHECK(cudaGetLastError() == dsplan::dry::kOutOfMemory);
  CHECK(cudaGetLastError() == 0);
  CHECK(cudaMalloc(&large, 958 * kMiB) == 0);
  CHECK(available() == 0);
  CHECK(cudaFree(large) == 0);
  CHECK(cudaFree(small) == 0);
  CHECK(cudaFree(small) == dsplan::dry::kInvalidValue);
  CHECK(cudaFree(nullptr) == 0);
  CHECK(available() == 960 * kMiB);
}

TEST_CASE("each device has its own memory") {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == 0);
  CHECK(count == 2);
  CHECK(cudaSetDevice(2) == dsplan::dry::kInvalidDevice);
  CHECK(cudaSetDevice(1) == 0);
  void* at = nullptr;
  CHECK(cudaMalloc(&at, 100 * kMiB) == 0);
  CHECK(available() == 860 * kMiB);
  PointerAttributes told{};
  CHECK(cudaPointerGetAttributes(&told, static_cast<char*>(at) + kMiB) == 0);
  CHECK(told.type == dsplan::dry::kDevice);
  CHECK(told.device == 1);
  CHECK(cudaSetDevice(0) == 0);
  CHECK(available() == 960 * kMiB);
  CHECK(cudaFree(at) == 0);
  cudaGetLastError();
}

TEST_CASE("freed addresses are the first to be given again, and read as zeros") {
  void* first = nullptr;
  void* second = nullptr;
  void* again = nullptr;
  CHECK(cudaMalloc(&first, 10 * kMiB) == 0);
  CHECK(cudaMalloc(&second, 10 * kMiB) == 0);
  CHECK(cudaMemset(first, 7, 1000) == 0);
  CHECK(*static_cast<char*>(first) == 7);
  CHECK(cudaFree(first) == 0);
  CHECK(cudaMalloc(&again, 4 * kMiB) == 0);
  CHECK(again == first);
  CHECK(*static_cast<char*>(again) == 0);
  CHECK(cudaFree(second) == 0);
  CHECK(cudaFree(again) == 0);
}

TEST_CASE("small copies are carried out, large ones are left out") {
  void* at = nullptr;
  CHECK(cudaMalloc(&at, kMiB) == 0);
  std::vector<char> data(kMiB, 'x');
  CHECK(cudaMemcpy(at, data.data(), 64 << 10, 1) == 0);
  CHECK(static_cast<char*>(at)[65535] == 'x');
  CHECK(cudaMemcpy(static_cast<char*>(at) + (64 << 10), data.data(), (64 << 10) + 1, 1) == 0);
  CHECK(static_cast<char*>(at)[64 << 10] == 0);
  CHECK(cudaFree(at) == 0);
}

TEST_CASE("the driver knows memory of the host that it pinned or registered") {
  void* pinned = nullptr;
  std::vector<char> own(8192);
  PointerAttributes told{};
  CHECK(cudaHostAlloc(&pinned, 100, 0) == 0);
  CHECK(cudaPointerGetAttributes(&told, pinned) == 0);
  CHECK(told.type == dsplan::dry::kHost);
  CHECK(cudaPointerGetAttributes(&told, own.data()) == 0);
  CHECK(told.type == dsplan::dry::kUnregistered);
  CHECK(cudaHostRegister(own.data(), own.size(), 0) == 0);
  CHECK(cudaHostRegister(own.data(), own.size(), 0) == dsplan::dry::kAlreadyRegistered);
  CHECK(cudaPointerGetAttributes(&told, own.data() + 100) == 0);
  CHECK(told.type == dsplan::dry::kHost);
  CHECK(cudaHostUnregister(own.data()) == 0);
  CHECK(cudaHostUnregister(own.data()) == dsplan::dry::kNotRegistered);
  CHECK(cudaFreeHost(pinned) == 0);
  CHECK(cudaFreeHost(pinned) == dsplan::dry::kInvalidValue);
  cudaGetLastError();
}

TEST_CASE("large memory of the host costs the machine nothing, however much is written") {
  constexpr std::size_t kLarge = std::size_t{2} << 30;
  void* at = nullptr;
  REQUIRE(posix_memalign(&at, 64, kLarge) == 0);
  for (std::size_t i = 0; i < kLarge; i += 4096) static_cast<char*>(at)[i] = 'x';
  CHECK(static_cast<char*>(at)[kLarge - 4096] == 'x');
  // The resident size counts a page as often as it is shown; the proportional one does not.
  CHECK(proportional_kib() < 256 << 10);
  std::free(at);
  void* pinned = nullptr;
  CHECK(cudaHostAlloc(&pinned, kLarge, 0) == 0);
  std::memset(pinned, 1, kLarge);
  CHECK(cudaFreeHost(pinned) == 0);
  REQUIRE(posix_memalign(&at, 64, 4096) == 0);
  std::free(at);
  CHECK(posix_memalign(&at, 3, 4096) == EINVAL);
}

TEST_CASE("physical memory is held by its handle and by its mappings") {
  std::uintptr_t at = 0;
  void* handle = nullptr;
  CHECK(cuMemAddressReserve(&at, 2000 * kMiB, 0, 0, 0) == 0);  // More than the device has: addresses cost nothing.
  CHECK(available() == 960 * kMiB);
  CHECK(cuMemCreate(&handle, 3 * kMiB, nullptr, 0) == dsplan::dry::kOutOfMemory);  // No whole granules.
  CHECK(cuMemCreate(&handle, 20 * kMiB, nullptr, 0) == 0);
  CHECK(available() == 940 * kMiB);
  CHECK(cuMemMap(at, 20 * kMiB, 0, handle, 0) == 0);
  CHECK(cuMemMap(at + 10 * kMiB, 20 * kMiB, 0, handle, 0) == dsplan::dry::kInvalidValue);
  CHECK(cuMemRelease(handle) == 0);
  CHECK(available() == 940 * kMiB);
  CHECK(cuMemUnmap(at, 10 * kMiB) == dsplan::dry::kInvalidValue);
  CHECK(cuMemUnmap(at, 20 * kMiB) == 0);
  CHECK(available() == 960 * kMiB);
  CHECK(cuMemRelease(handle) == dsplan::dry::kInvalidValue);
  CHECK(cuMemCreate(&handle, 962 * kMiB, nullptr, 0) == dsplan::dry::kOutOfMemory);
  CHECK(cuMemAddressFree(at, 2000 * kMiB) == 0);
}

TEST_CASE("a pool keeps what it reserved until it is trimmed") {
  void* pool = nullptr;
  void* at = nullptr;
  std::uint64_t reserved = 0;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0) == 0);
  CHECK(cudaMallocAsync(&at, 40 * kMiB, nullptr) == 0);
  CHECK(cudaMemPoolGetAttribute(pool, 5, &reserved) == 0);
  CHECK(reserved == 64 * kMiB);
  CHECK(available() == 896 * kMiB);
  CHECK(cudaFreeAsync(at, nullptr) == 0);
  CHECK(available() == 896 * kMiB);
  CHECK(cudaMemPoolTrimTo(pool, 0) == 0);
  CHECK(available() == 960 * kMiB);
}

TEST_CASE("calls that nobody has written are done, counted and named") {
  CHECK(cudaCtxResetPersistingL2Cache() == 0);
  CHECK(cudaCtxResetPersistingL2Cache() == 0);
  CHECK(std::string(dsplan_dry_ledger()).find("{\"call\": \"cudaCtxResetPersistingL2Cache\", \"count\": 2}") !=
        std::string::npos);
}

extern "C" void dsplan_dry_tell(long long count);

TEST_CASE("a number that a kernel would have counted comes to the host as it was told, once") {
  void* there = nullptr;
  CHECK(cudaMalloc(&there, 64) == 0);
  dsplan_dry_tell(7);
  dsplan_dry_tell(1);
  std::vector<char> many(16, 'a');
  CHECK(cudaMemcpy(there, many.data(), many.size(), 1) == 0);  // To the device: not asked for.
  CHECK(cudaMemcpy(many.data(), there, many.size(), 2) == 0);  // No number.
  CHECK(many[0] == 'a');
  int count = 0;
  CHECK(cudaMemcpy(&count, there, sizeof count, 2) == 0);
  CHECK(count == 7);
  bool flag = false;
  CHECK(cudaMemcpy(&flag, there, 1, 2) == 0);
  CHECK(flag);
  CHECK(cudaMemcpy(&count, there, sizeof count, 2) == 0);
  CHECK(count == 0x61616161);
  CHECK(cudaFree(there) == 0);
}
