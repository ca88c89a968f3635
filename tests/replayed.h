// A schedule replayed on the executor's memory: its requests alone, nothing is computed.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "exec/memory/memory.h"

namespace replayed {

struct MarkSeen {
  std::size_t event = 0;
  dsplan::AllocatorStatistics now;
};

struct Replayed {
  std::vector<MarkSeen> marks;  // Of the schedule, up to a failure.
  dsplan::AllocatorStatistics peaks;
  dsplan::Bytes peak_requested;
  dsplan::ByRole peak_by_role;
  dsplan::exec::HostPeaks host;
  std::int64_t retries = 0;
  std::optional<std::size_t> failed_event;
  std::optional<dsplan::exec::Failure> failure;
};

class Player : public dsplan::Ignores<dsplan::Enter, dsplan::Exit> {
 public:
  Player(const dsplan::Schedule& schedule, dsplan::exec::RankMemory& memory, Replayed& result)
      : schedule_(schedule), memory_(memory), result_(result) {}
  using Ignores<dsplan::Enter, dsplan::Exit>::on;
  void on(std::size_t at, const dsplan::Allocate& event) {
    if (result_.failed_event) return;
    const dsplan::Buffer& buffer = schedule_.buffers[event.buffer];
    try {
      memory_.allocate(event.buffer, buffer.size, buffer.role, buffer.space, event.stream);
    } catch (const dsplan::exec::RunFailure& failure) {
      result_.failed_event = at;
      result_.failure = failure.failure();
      result_.failure->event = at;
    }
  }
  void on(std::size_t, const dsplan::Release& event) {
    if (!result_.failed_event) memory_.release(event.buffer);
  }
  void on(std::size_t, const dsplan::Compute& event) { work(event.stream, event.reads, event.writes); }
  void on(std::size_t, const dsplan::Communicate& event) { work(event.stream, event.reads, event.writes); }
  void on(std::size_t, const dsplan::RecordEvent& event) {
    if (!result_.failed_event) memory_.happens(event);
  }
  void on(std::size_t, const dsplan::WaitEvent& event) {
    if (!result_.failed_event) memory_.happens(event);
  }
  void on(std::size_t, const dsplan::EmptyCache& event) {
    if (!result_.failed_event) memory_.happens(event);
  }
  void on(std::size_t at, const dsplan::Mark&) {
    if (!result_.failed_event) result_.marks.push_back({at, memory_.device()});
  }

 private:
  void work(dsplan::StreamId stream, dsplan::Span reads, dsplan::Span writes) {
    if (!result_.failed_event) memory_.work(stream, schedule_.range(reads), schedule_.range(writes));
  }
  const dsplan::Schedule& schedule_;
  dsplan::exec::RankMemory& memory_;
  Replayed& result_;
};

inline Replayed replay_on_memory(const dsplan::Schedule& schedule, const dsplan::exec::MemoryOptions& options,
                                 const dsplan_backend& backend, const std::string& directory = "") {
  Replayed result;
  dsplan::exec::Device device(backend, {0, 0, directory});
  dsplan::exec::RankMemory memory(device, options);
  Player player(schedule, memory, result);
  dsplan::replay(schedule, player);
  result.peaks = memory.device_peaks();
  result.peak_requested = memory.demand().peak;
  result.peak_by_role = memory.demand().peak_by_role;
  result.host = memory.host().peaks;
  result.retries = memory.device().retries;
  memory.finish();
  device.close();
  return result;
}

}  // namespace replayed
