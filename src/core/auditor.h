// The state of the naive auditor between two events; for core/audit*.cpp only. core/audit.h says what is judged.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/audit.h"
#include "core/format.h"
#include "core/schedule.h"

namespace dsplan {

class Auditor {
 public:
  Auditor(const Schedule& schedule, std::size_t most);
  std::vector<Finding> finish();

  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Compute& event);
  void on(std::size_t at, const Communicate& event);
  void on(std::size_t at, const RecordEvent& event);
  void on(std::size_t at, const WaitEvent& event);
  void on(std::size_t at, const EmptyCache& event);
  void on(std::size_t at, const Enter& event);
  void on(std::size_t at, const Exit& event);
  void on(std::size_t at, const Mark& event);

 private:
  // How much of each stream's work lies behind: a vector clock, in pieces of work.
  using Clock = std::array<std::uint32_t, kStreams>;
  struct Point {
    StreamId stream = 0;
    std::uint32_t time = 0;
  };
  // A run of bytes with one content. Cut where reads and writes begin and end, so that each is wholly in or out.
  struct Piece {
    std::int64_t from = 0;
    std::int64_t to = 0;
    ContentId content = kNone;
    bool read = false;
    Clock read_at{};  // The last reader of each stream.
  };
  struct State {
    bool allocated = false;
    bool released = false;
    bool survives = false;
    StreamId stream = 0;
    std::uint32_t since = 0;    // What its stream had been given when it was allocated.
    std::int64_t extent = 0;    // End of the furthest byte touched.
    std::size_t touched = 0;    // The latest work that did, counted from 1.
    std::vector<Piece> pieces;  // Ascending, disjoint.
  };
  // Who follows may be a release: `id` is what it must name, `work` whether it may be a last use.
  struct Before {
    ContentId id = kNone;
    bool work = false;
  };
  struct Sums {
    std::int64_t read = 0;
    std::int64_t written = 0;
  };

  bool full() const { return findings_.size() >= most_; }
  template <class... Parts>
  void find(std::type_identity_t<FormatPattern<sizeof...(Parts)>> text, const Parts&... parts) {
    if (!full()) findings_.push_back({at_, formatted(text, parts...)});
  }
  std::string named(BufferId buffer) const { return formatted("{} ({})", buffer, schedule_.buffers[buffer].label); }

  // audit.cpp
  bool known(BufferId buffer);
  bool identify(ContentId id);
  void judge_size(BufferId buffer);
  void judge_promise(const Promise& promise);

  // audit_work.cpp
  template <class Work>
  Sums work(const Work& event, bool compute);

  // audit_work.cpp; reads and writes return the bytes that they found legal to touch.
  State* touch(const Access& access, StreamId stream);
  std::int64_t read(const Access& access, StreamId stream);
  std::int64_t write(const Access& access, StreamId stream, bool ours, bool counts);
  bool is_unread(BufferId buffer, const Piece& piece) const;
  void lose(BufferId buffer, const Piece& piece);
  void count_update(const Access& access);

  // What streams may see of one another.
  bool is_stream(StreamId stream);
  void judge_read(const Access& access, StreamId stream);
  void judge_overwrite(const Access& access, const Piece& piece, StreamId stream);

  const Schedule& schedule_;
  std::size_t most_;
  std::vector<Finding> findings_;
  Indexed<BufferId, State> states_;
  Indexed<ContentId, bool> identified_;    // Markers too.
  Indexed<ContentId, bool> ours_;          // Made here, not sent by other ranks.
  Indexed<ContentId, std::size_t> maker_;  // The work that made it, counted from 1.
  Indexed<ContentId, Point> made_at_;      // The same among the work of its stream.
  std::array<Clock, kStreams> clocks_{};
  std::vector<std::pair<ContentId, Clock>> recorded_;
  Indexed<ContentId, bool> partly_read_;
  std::vector<Promise> updates_;       // By buffer, ascending.
  std::vector<std::int64_t> updated_;  // Bytes written in this step, as updates_.
  std::vector<Enter> modules_;         // Entered and not left.
  std::size_t at_ = 0;
  std::size_t works_ = 0;
  Before before_;
  bool in_step_ = false;
  bool stopped_ = false;  // A recomputation dropped what nobody has read, and must be abandoned.
};

}  // namespace dsplan
