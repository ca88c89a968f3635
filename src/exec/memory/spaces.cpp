#include "exec/memory/spaces.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {

std::unique_ptr<DeviceSpace> make_device_space(Device& device, MemoryOptions options) {
  switch (options.kind) {
    case AllocatorKind::Caching: return make_caching_space(device, options);
    case AllocatorKind::Planned: return make_planned_space(device, std::move(options));
    case AllocatorKind::Plain: break;
  }
  return make_plain_space(device, options);
}

// A device may have less left than the books say: its context and other ranks and programs lie there, too.
void out_of_memory(Device& device, BufferId id, Bytes requested, const Shortage& shortage) {
  const Bytes free(device.usage().device_free);
  const bool is_full = free >= Bytes(0) && free < shortage.left;
  const Bytes missing = std::max(Bytes(0), shortage.needed - (is_full ? free : shortage.left));
  Failure failure{DSPLAN_OUT_OF_MEMORY, device.rank(), kNoEvent, "allocate",
                  formatted("buffer {} wants {} bytes; {} are taken of {}, {}{} are missing", id, requested.value(),
                            shortage.taken.value(), shortage.limit.value(),
                            is_full ? formatted("the device has {} left, ", free.value()) : "", missing.value())};
  failure.requested = requested;
  failure.missing = missing;
  throw RunFailure(std::move(failure));
}

Bytes limit_of(const Device& device, const MemoryOptions& options) {
  const Bytes all(device.info().memory_bytes);
  return options.limit ? std::min(*options.limit, all) : all;
}

Patterns::Patterns(const Device& device, bool on) : on_(on) {
  constexpr std::uint32_t kNeeded = DSPLAN_HOST_READABLE | DSPLAN_SYNCHRONOUS;
  if (on && (device.info().flags & kNeeded) != kNeeded) {
    throw Refusal("patterns", "need a device whose memory the host can read, and that does everything at once");
  }
}

void Patterns::fill(void* memory, Bytes bytes) const {
  if (on_ && bytes > Bytes(0)) std::memset(memory, kPattern, static_cast<std::size_t>(bytes.value()));
}

void Patterns::check(const void* memory, Bytes bytes, const char* what, BufferId id) const {
  if (!on_ || bytes <= Bytes(0)) return;
  const auto* begin = static_cast<const std::uint8_t*>(memory);
  const auto* end = begin + bytes.value();
  const auto* wrong = std::find_if(begin, end, [](std::uint8_t byte) { return byte != kPattern; });
  if (wrong == end) return;
  check_failed("memory that nobody holds is not written to", __FILE__, __LINE__,
               formatted("{} buffer {}: byte {} of {} was written", what, id, wrong - begin, bytes.value()));
}

}  // namespace dsplan::exec
