#include "dry/host_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>

#include "dry/device.h"
#include "dry/ledger.h"
#include "dry/memory.h"

namespace dsplan::dry {
namespace {

constexpr std::size_t kWindow = std::size_t{64} << 20;    // What all of it shows.
constexpr std::size_t kAddresses = std::size_t{4} << 40;  // One range, so that free() knows ours at a glance.

struct Shared {
  std::mutex lock;
  int window = -1;
  char* base = nullptr;
  std::map<char*, std::size_t> free;
  std::map<char*, std::size_t> taken;
};
Shared& shared() {
  static auto* const all = new Shared;
  return *all;
}
std::atomic<std::uintptr_t> first_address{0};

bool start(Shared& all) {
  if (all.base != nullptr) return true;
  all.window = memfd_create("dsplan-dry", MFD_CLOEXEC);
  if (all.window < 0 || ftruncate(all.window, kWindow) != 0) return false;
  void* at = mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  all.base = static_cast<char*>(at);
  all.free[all.base] = kAddresses;
  first_address = reinterpret_cast<std::uintptr_t>(at);
  return true;
}

bool show_window(const Shared& all, char* at, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes; done += kWindow) {
    if (mmap(at + done, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, all.window, 0) == MAP_FAILED)
      return false;
  }
  return true;
}

void give_back(Shared& all, char* at, std::size_t bytes) {
  mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  all.free[at] = bytes;
}

}  // namespace

bool is_large_host_memory(std::size_t bytes) {
  static const std::size_t from = setting("DSPLAN_DRY_SHARED_HOST", std::size_t{256} << 20);
  return from > 0 && bytes >= from;
}

void* map_shared_pages(std::size_t bytes) {
  DSPLAN_DRY_GUESS("large host memory", "its values: all of it shows the same 64 MiB");
  Shared& all = shared();
  const std::lock_guard guard(all.lock);
  if (!start(all)) return nullptr;
  bytes = round_up(bytes, kWindow);
  for (auto range = all.free.begin(); range != all.free.end(); ++range) {
    const auto [at, size] = *range;
    if (size < bytes) continue;
    all.free.erase(range);
    if (size > bytes) all.free[at + bytes] = size - bytes;
    if (!show_window(all, at, bytes)) {
      give_back(all, at, bytes);
      return nullptr;
    }
    all.taken[at] = bytes;
    return at;
  }
  return nullptr;
}

bool unmap_shared_pages(void* address) {
  const std::uintptr_t first = first_address.load(std::memory_order_relaxed);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (first == 0 || at < first || at >= first + kAddresses) return false;
  Shared& all = shared();
  const std::lock_guard guard(all.lock);
  const auto found = all.taken.find(static_cast<char*>(address));
  if (found == all.taken.end()) return false;
  give_back(all, found->first, found->second);
  all.taken.erase(found);
  return true;
}

}  // namespace dsplan::dry

namespace {

// The one that comes after ours: the C library's, or an allocator's that was loaded before the program. Asking for it
// may itself allocate and free; what is freed meanwhile is kept.
template <class Function>
Function next_of(const char* name) {
  static std::atomic<Function> found{nullptr};
  thread_local bool asking = false;
  if (found.load() == nullptr && !asking) {
    asking = true;
    found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
    asking = false;
  }
  return found.load();
}

}  // namespace

// PyTorch takes tensors of the host from posix_memalign. These two stand before the C library's.
extern "C" {
__attribute__((visibility("default"))) int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  if (dsplan::dry::is_large_host_memory(bytes)) {
    *out = dsplan::dry::map_shared_pages(bytes);
    if (*out != nullptr) return 0;
  }
  const auto next = next_of<int (*)(void**, std::size_t, std::size_t)>("posix_memalign");
  return next != nullptr ? next(out, alignment, bytes) : ENOMEM;
}

__attribute__((visibility("default"))) void free(void* address) {
  if (address == nullptr || dsplan::dry::unmap_shared_pages(address)) return;
  if (const auto next = next_of<void (*)(void*)>("free")) next(address);
}
}
