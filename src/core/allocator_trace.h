// A recorded sequence of allocator calls: one line each in the file, one step each here. Read by `io`, replayed by
// `sim`.
#pragma once

#include <cstdint>
#include <vector>

#include "core/allocator_config.h"
#include "core/document.h"
#include "core/units.h"

namespace dsplan {

struct TraceStep {
  enum class Kind : std::uint8_t {
    Capacity,      // bytes: what the device has.
    Configure,     // conf: index into AllocatorTrace::configs.
    Fraction,      // fraction
    Allocate,      // id, bytes, stream
    Free,          // id
    RecordStream,  // id, stream
    EventsReady,   // ready
    EmptyCache,
  };
  Kind kind = Kind::EmptyCache;
  bool ready = false;
  std::uint16_t stream = 0;  // Numbered densely in order of appearance.
  std::uint32_t id = 0;      // Likewise.
  Bytes bytes;
  double fraction = 0;
  std::uint32_t config = 0;
  std::size_t offset = 0;  // Of the line's second word (or its first) in the text, for messages.
};

// Whether a step prints a row when replayed.
[[nodiscard]] constexpr bool prints_row(TraceStep::Kind kind) {
  return kind == TraceStep::Kind::Allocate || kind == TraceStep::Kind::Free || kind == TraceStep::Kind::RecordStream ||
         kind == TraceStep::Kind::EmptyCache;
}

struct AllocatorTrace {
  Document document;  // Path and text; there is no tree.
  std::vector<TraceStep> steps;
  std::vector<AllocatorConfig> configs;  // As they stand after each `conf` line.
  std::uint32_t ids = 0;                 // Distinct IDs.
};

// The device of a trace that names none.
inline constexpr Bytes kTraceCapacity{85'899'345'920};
// More streams than any program has; a bound on what a hostile trace can make the allocator build.
inline constexpr std::size_t kMostTraceStreams = 1024;

}  // namespace dsplan
