// One rank's schedule laid out along its events, for pictures: what the device holds after each of them, and what runs
// from where to where. The axis counts events; a clock says when they happen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

// Right after an event that took or gave back memory of the device, or emptied the cache.
struct TimelinePoint {
  std::size_t event = 0;
  BufferId buffer = kNoBuffer;  // None where the cache was emptied.
  Bytes change;                 // Of that buffer: its size, negative where it was given back.
  ByRole by_role;               // Requested bytes.
  Bytes allocated;
  Bytes reserved;
};

// From before event `begin` to before event `end`. Slices of one kind lie beside or within each other, never across;
// kernels and collectives take one event each.
struct TimelineSlice {
  enum class Kind : std::uint8_t { Phase, Pass, Module, Recomputation, Kernel, Collective };
  Kind kind = Kind::Phase;
  std::size_t begin = 0;
  std::size_t end = 0;
  StreamId stream = kComputeStream;  // Of kernels and collectives.
  std::string name;  // "steady", "forward, micro-batch 2", "model.layers.0.mlp", "linear", "all_gather"
};

// Estimated seconds since the schedule began, by event. Never decreasing.
struct Clock {
  std::vector<double> at;      // When the compute stream gets there; one more for the end.
  std::vector<double> begins;  // Of what an event launches; as `at` where it launches nothing.
  std::vector<double> ends;
};

struct Timeline {
  std::size_t events = 0;
  std::optional<Clock> clock;  // Absent where nothing is known of the device's rates.
  std::vector<TimelinePoint> points;
  std::vector<TimelineSlice> slices;  // In order of their ends.
};

}  // namespace dsplan
