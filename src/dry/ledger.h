// What the stand-ins were asked that they could not answer as the real library would: calls that nobody has written,
// and calls whose answer is a guess. Everything else that they count for the receipt is here, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

// One call, counted at its place. Without destructors and allocations: programs call while they end.
struct dsplan_dry_call {
  const char* name;
  const char* guess;  // What was guessed; nullptr: the call is a stub that says "done" and does nothing.
  std::atomic<std::uint64_t> count;
  std::atomic<dsplan_dry_call*> next;
};
extern "C" void dsplan_dry_called(dsplan_dry_call* call);

namespace dsplan::dry {

// Counts a guess at the place where it stands.
#define DSPLAN_DRY_GUESS(name, what)                         \
  do {                                                       \
    static dsplan_dry_call call{name, what, {0}, {nullptr}}; \
    dsplan_dry_called(&call);                                \
  } while (false)

enum class Counted : std::uint8_t { Launches, DeviceAllocations, DeviceFrees, Copies, CopiesLeftOut, Refused };
constexpr int kCounted = 6;
void count(Counted what);
[[nodiscard]] std::uint64_t counted(Counted what);

// A collective that this process took part in. Payload is the full logical buffer. A flag or norm of one element, or a
// list of numbers, controls; all else is data.
struct CollectiveKind {
  const char* name;
  const char* dtype;
  int ranks;
  bool control;
};
// `again`: it belongs to the call before, as what a group of calls makes together.
void count_collective(const CollectiveKind& kind, std::size_t payload, bool again);

// A process asked for a device that it does not see. The launcher is told at once: such a process may end without a
// word.
void tell_missing_device(int ordinal);

// All of it, as JSON.
[[nodiscard]] std::string ledger();

}  // namespace dsplan::dry
