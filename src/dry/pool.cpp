#include "dry/pool.h"

#include <algorithm>
#include <vector>

#include "dry/device.h"
#include "dry/ledger.h"
#include "dry/memory.h"

namespace dsplan::dry {
namespace {

constexpr std::size_t kStep = std::size_t{32} << 20;  // A pool grows by this.
constexpr std::size_t kRounding = 512;

enum Attribute : int { kThreshold = 4, kReservedNow = 5, kReservedHigh = 6, kUsedNow = 7, kUsedHigh = 8 };

}  // namespace

bool MemoryPool::reserve(std::size_t bytes) {
  for (const std::size_t step : {kStep, kGranule}) {
    const std::size_t more = round_up(bytes, step);
    if (!memory_of(device_).charge(more)) continue;
    reserved_ += more;
    reserved_high_ = std::max(reserved_high_, reserved_);
    return true;
  }
  return false;
}

void* MemoryPool::allocate(std::size_t bytes) {
  DSPLAN_DRY_GUESS("cudaMallocAsync", "a pool grows by 32 MiB and never fragments");
  const std::lock_guard guard(lock_);
  bytes = round_up(std::max<std::size_t>(bytes, 1), kRounding);
  if (used_ + bytes > reserved_ && !reserve(used_ + bytes - reserved_)) return nullptr;
  void* at = memory_of(device_).reserve(bytes);
  if (at == nullptr) return nullptr;
  taken_[at] = bytes;
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
  return at;
}

bool MemoryPool::free(void* address) {
  const std::lock_guard guard(lock_);
  const auto found = taken_.find(address);
  if (found == taken_.end()) return false;
  used_ -= found->second;
  taken_.erase(found);
  memory_of(device_).release(address);
  return true;
}

bool MemoryPool::owns(const void* address) {
  const std::lock_guard guard(lock_);
  return taken_.count(const_cast<void*>(address)) > 0;
}

void MemoryPool::trim(std::size_t keep) {
  const std::lock_guard guard(lock_);
  const std::uint64_t least = std::max<std::uint64_t>(round_up(used_, kGranule), keep);
  if (reserved_ <= least) return;
  memory_of(device_).discharge(reserved_ - least);
  reserved_ = least;
}

std::uint64_t MemoryPool::get(int attribute) {
  const std::lock_guard guard(lock_);
  switch (attribute) {
    case kThreshold: return threshold_;
    case kReservedNow: return reserved_;
    case kReservedHigh: return reserved_high_;
    case kUsedNow: return used_;
    case kUsedHigh: return used_high_;
    default: return 1;
  }
}

void MemoryPool::set(int attribute, std::uint64_t value) {
  const std::lock_guard guard(lock_);
  if (attribute == kThreshold) threshold_ = value;
  if (attribute == kReservedHigh) reserved_high_ = reserved_;
  if (attribute == kUsedHigh) used_high_ = used_;
}

MemoryPool& pool_of(int device) {
  static auto* const all = [] {
    auto* made = new std::vector<MemoryPool*>;
    for (int i = 0; i < std::max(dry::device().count, 1); ++i) made->push_back(new MemoryPool(i));
    return made;
  }();
  return *(*all)[static_cast<std::size_t>(device)];
}

}  // namespace dsplan::dry
