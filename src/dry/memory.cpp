#include "dry/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>

#include "dry/device.h"
#include "dry/host_memory.h"
#include "dry/ledger.h"

namespace dsplan::dry {
namespace {

constexpr std::size_t kAddresses = std::size_t{8} << 40;  // Asked of the machine at a time.
constexpr std::size_t kPage = 4096;

void* map_lazily(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

template <class Ranges>
auto range_around(Ranges& ranges, const void* address) {
  auto* at = static_cast<char*>(const_cast<void*>(address));
  auto found = ranges.upper_bound(at);
  return found == ranges.begin() ? ranges.end() : std::prev(found);
}

}  // namespace

// A machine that limits address space gives less at a time.
bool DeviceMemory::grow(std::size_t bytes) {
  for (std::size_t size = std::max(kAddresses, bytes); size >= bytes && size > 0; size /= 2) {
    void* at = map_lazily(size + kGranule);
    if (at == nullptr) continue;
    madvise(at, size + kGranule, MADV_NOHUGEPAGE);
    auto* base = reinterpret_cast<char*>(round_up(reinterpret_cast<std::size_t>(at), kGranule));
    mapped_.emplace_back(base, size);
    free_[base] = size / kGranule * kGranule;
    return true;
  }
  return false;
}

void* DeviceMemory::take(std::size_t bytes, bool charged) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < bytes) continue;
      char* at = range->first;
      const std::size_t rest = range->second - bytes;
      free_.erase(range);
      if (rest > 0) free_[at + bytes] = rest;
      taken_[at] = {bytes, charged};
      return at;
    }
    if (!grow(bytes)) break;
  }
  return nullptr;
}

void* DeviceMemory::reserve(std::size_t bytes) {
  const std::lock_guard guard(lock_);
  return take(round_up(std::max<std::size_t>(bytes, 1), kGranule), false);
}

bool DeviceMemory::release(void* address) {
  const std::lock_guard guard(lock_);
  const auto found = taken_.find(static_cast<char*>(address));
  if (found == taken_.end()) return false;
  char* at = found->first;
  const std::size_t bytes = found->second.bytes;
  if (found->second.charged) used_ -= bytes;
  taken_.erase(found);
  madvise(at, bytes, MADV_DONTNEED);
  auto range = free_.emplace(at, bytes).first;
  if (const auto next = std::next(range); next != free_.end() && at + bytes == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == at) {
      before->second += range->second;
      free_.erase(range);
    }
  }
  return true;
}

bool DeviceMemory::charge(std::size_t bytes) {
  const std::lock_guard guard(lock_);
  if (used_ + bytes + context_ > total_) {
    count(Counted::Refused);
    return false;
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

void DeviceMemory::discharge(std::size_t bytes) {
  const std::lock_guard guard(lock_);
  used_ -= bytes;
}

void* DeviceMemory::allocate(std::size_t bytes) {
  bytes = round_up(std::max<std::size_t>(bytes, 1), kGranule);
  if (!charge(bytes)) return nullptr;
  void* at = nullptr;
  {
    const std::lock_guard guard(lock_);
    at = take(bytes, true);
  }
  if (at == nullptr) discharge(bytes);
  if (at != nullptr) count(Counted::DeviceAllocations);
  return at;
}

bool DeviceMemory::free(void* address) {
  if (!release(address)) return false;
  count(Counted::DeviceFrees);
  return true;
}

bool DeviceMemory::holds(const void* address) {
  const std::lock_guard guard(lock_);
  const auto* at = static_cast<const char*>(address);
  return std::any_of(mapped_.begin(), mapped_.end(),
                     [&](const auto& range) { return at >= range.first && at < range.first + range.second; });
}

std::pair<void*, std::size_t> DeviceMemory::around(const void* address) {
  const std::lock_guard guard(lock_);
  const auto found = range_around(taken_, address);
  if (found == taken_.end() || static_cast<const char*>(address) >= found->first + found->second.bytes) return {};
  return {found->first, found->second.bytes};
}

std::size_t DeviceMemory::available() {
  const std::lock_guard guard(lock_);
  const std::size_t gone = used_ + context_;
  return total_ > gone ? total_ - gone : 0;
}

std::size_t DeviceMemory::used() {
  const std::lock_guard guard(lock_);
  return used_;
}

std::size_t DeviceMemory::peak() {
  const std::lock_guard guard(lock_);
  return peak_;
}

namespace {

// Never destroyed: programs free while they end.
std::vector<DeviceMemory*>& memories() {
  static auto* const made = [] {
    auto* all = new std::vector<DeviceMemory*>;
    for (int i = 0; i < std::max(device().count, 1); ++i) {
      all->push_back(new DeviceMemory(device().memory, device().context));
    }
    return all;
  }();
  return *made;
}

}  // namespace

DeviceMemory& memory_of(int device) { return *memories()[static_cast<std::size_t>(device)]; }

int device_of(const void* address) {
  const std::vector<DeviceMemory*>& all = memories();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i]->holds(address)) return static_cast<int>(i);
  }
  return -1;
}

void PinnedMemory::add(std::size_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

void* PinnedMemory::allocate(std::size_t bytes) {
  const std::lock_guard guard(lock_);
  const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), kPage);
  void* at = is_large_host_memory(rounded) ? map_shared_pages(rounded) : map_lazily(rounded);
  if (at == nullptr) return nullptr;
  allocated_[static_cast<char*>(at)] = rounded;
  add(rounded);
  return at;
}

bool PinnedMemory::free(void* address) {
  const std::lock_guard guard(lock_);
  const auto found = allocated_.find(static_cast<char*>(address));
  if (found == allocated_.end()) return false;
  if (!unmap_shared_pages(address)) munmap(address, found->second);
  used_ -= found->second;
  allocated_.erase(found);
  return true;
}

bool PinnedMemory::register_range(void* address, std::size_t bytes) {
  const std::lock_guard guard(lock_);
  if (!registered_.emplace(static_cast<char*>(address), bytes).second) return false;
  add(bytes);
  return true;
}

bool PinnedMemory::unregister(void* address) {
  const std::lock_guard guard(lock_);
  const auto found = registered_.find(static_cast<char*>(address));
  if (found == registered_.end()) return false;
  used_ -= found->second;
  registered_.erase(found);
  return true;
}

bool PinnedMemory::holds(const void* address) {
  const std::lock_guard guard(lock_);
  for (const auto* ranges : {&allocated_, &registered_}) {
    const auto found = range_around(*ranges, address);
    if (found != ranges->end() && static_cast<const char*>(address) < found->first + found->second) return true;
  }
  return false;
}

std::size_t PinnedMemory::used() {
  const std::lock_guard guard(lock_);
  return used_;
}

std::size_t PinnedMemory::peak() {
  const std::lock_guard guard(lock_);
  return peak_;
}

PinnedMemory& pinned() {
  static auto* const memory = new PinnedMemory;
  return *memory;
}

std::size_t copy_limit() {
  static const std::size_t limit = setting("DSPLAN_DRY_COPY_LIMIT", 64 << 10);
  return limit;
}

namespace {

// Of the thread that asks.
thread_local std::deque<long long> told;

// What a kernel would have counted, on its way to the host.
bool deliver(void* to, const void* from, std::size_t bytes) {
  if (told.empty() || bytes > sizeof(long long) || device_of(from) < 0 || device_of(to) >= 0) return false;
  std::memcpy(to, &told.front(), bytes);
  told.pop_front();
  return true;
}

}  // namespace

void copy(void* to, const void* from, std::size_t bytes) {
  if (deliver(to, from, bytes)) return count(Counted::Copies);
  const bool small = bytes <= copy_limit();
  count(small ? Counted::Copies : Counted::CopiesLeftOut);
  if (small && bytes > 0) std::memmove(to, from, bytes);
}

void fill(void* to, int value, std::size_t bytes) {
  const bool small = bytes <= copy_limit();
  count(small ? Counted::Copies : Counted::CopiesLeftOut);
  if (small && bytes > 0) std::memset(to, value, bytes);
}

}  // namespace dsplan::dry

// The next number that this thread copies from the device to the host, which a kernel would have counted, is this one,
// behind those that were told before (tools/dry/site/dsplan_dry/values.py).
extern "C" __attribute__((visibility("default"))) void dsplan_dry_tell(long long count) {
  dsplan::dry::told.push_back(count);
}
