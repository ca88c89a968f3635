// Writes a schedule. The emitter counts references to buffers, so that a buffer is released when the last holder lets
// go, and knows for every buffer which contents it holds and when it was last touched, so that each release carries
// its reason and each read names what it expects. It knows nothing of models or of ZeRO.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/schedule.h"
#include "planner/lower/contents.h"
#include "planner/lower/happens_before.h"
#include "planner/lower/recording.h"
#include "planner/lower/until.h"

namespace dsplan {

// What a buffer is: its role, its name for people, and who makes it.
struct What {
  Role role = Role::Temporaries;
  Label label = "";
  Source source = "";
  bool capacity = false;   // Need not be filled (core/schedule.h).
  bool in_pieces = false;  // It stands for many.
};

class Emitter {
 public:
  // `allocate` throws Ended once `until` is reached or wants no more, and whatever is let go of then is not written.
  explicit Emitter(std::size_t events, const Until& until = {});

  // A program is written beside the schedule. `recording` must outlive this; nullptr: none is.
  void attach(Recording* recording) { recording_ = recording; }
  [[nodiscard]] Recording* recording() const { return recording_; }
  // Of the update under way: how many states stand behind each target.
  void states_of_update(std::size_t count) {
    if (recording_ != nullptr) recording_->states(count);
  }
  // The index of the event that comes next.
  [[nodiscard]] std::size_t next_event() const { return schedule_.events.size(); }

  // The place and pass that following events carry.
  void at(Pass pass, ModuleId module = kNone) {
    pass_ = pass;
    module_ = module;
  }
  [[nodiscard]] Pass pass() const { return pass_; }
  [[nodiscard]] ModuleId module() const { return module_; }

  // Streams. Everything is on the compute stream, and nothing waits, unless `use_streams` was called before.
  void use_streams() { schedule_.several_streams = true; }
  // What follows is allocated and enqueued on `stream`; returns the one before.
  StreamId on_stream(StreamId stream) {
    return std::exchange(stream_, schedule_.several_streams ? stream : kComputeStream);
  }
  // waiter.wait_stream(on), or torch.cuda.synchronize where the waiter is kHostSync: what `waiter` is given from here
  // on comes after all that `on` was given so far. Nothing is written where that is so already.
  void wait_stream(StreamId waiter, StreamId on);
  // In two parts, for those who wait later: event.record(on) and waiter.wait_event(event). nullopt: nobody needs to.
  [[nodiscard]] std::optional<ContentId> record_event(StreamId on);
  void wait_event(StreamId waiter, std::optional<ContentId> event);

  // torch.cuda.empty_cache().
  void empty_cache() { schedule_.events.emplace_back(EmptyCache{begin_marker()}); }

  // A new buffer with one reference.
  BufferId allocate(Bytes bytes, DType dtype, const What& what, ParameterId parameter = kNone,
                    Space space = Space::Device);
  // One buffer that stands for `count` tensors of these sizes, which repeat, where that suffices: `allows_pieces`.
  friend BufferId allocate_pieces(Emitter& emitter, std::size_t count, std::vector<Bytes> sizes, DType dtype,
                                  What what);
  [[nodiscard]] friend bool allows_pieces(const Emitter& emitter) { return emitter.until_.peaks_alone; }
  void retain(BufferId buffer) { ++states_[buffer].references; }
  // The last reference releases. `reason` is used only if something else has run since the last touch.
  void release(BufferId buffer, Reason reason);
  [[nodiscard]] std::int32_t references(BufferId buffer) const { return states_[buffer].references; }
  [[nodiscard]] Bytes size(BufferId buffer) const { return schedule_.buffers[buffer].size; }
  [[nodiscard]] Space space(BufferId buffer) const { return schedule_.buffers[buffer].space; }
  [[nodiscard]] DType dtype(BufferId buffer) const { return schedule_.buffers[buffer].dtype; }
  // It is something else from here on.
  void rename(BufferId buffer, const What& what);

  // The buffer is a kernel's scratch: what is written there need not be read by anyone.
  void mark_scratch(BufferId buffer) { schedule_.buffers[buffer].scratch = true; }

  // Whether the allocator learns of what other streams do with it; it does unless this was said. kNoBuffer: with any.
  friend void tell_uses(Emitter& emitter, BufferId buffer, bool told);

  // What is written so far.
  [[nodiscard]] friend const Schedule& written(const Emitter& emitter) { return emitter.schedule_; }

  // It belongs to the logits or to what the loss makes of them.
  void mark_of_loss(BufferId buffer) { schedule_.buffers[buffer].of_loss = true; }

  // A piece of work is stated as: begin, reads, writes, then one of the four that end it.
  void begin();
  void read(BufferId buffer);                              // Everything that it holds.
  void read(BufferId buffer, Bytes offset, Bytes bytes);   // Exactly what lies there, which may be several contents.
  void write(BufferId buffer);                             // All of it, as one content.
  void write(BufferId buffer, Bytes offset, Bytes bytes);  // One piece; replaces what overlapped.
  // `body` is what an executor does, `work` the name for people. The bodies that work on values (core/program.h) take
  // them from Recording::on_values, which was called before; the others take what is read and written, as flat ranges.
  void compute(Body body, Label work, Cost cost = Cost::Memory) {
    if (recording_ != nullptr) recording_->end_work(body, next_event());
    end_compute(work, cost);
  }
  // No executor can do it yet: a program that holds such work is refused by its name.
  void compute_unexecutable(Label work);
  void communicate(Collective collective, DType dtype, Bytes payload, TrafficKind kind = TrafficKind::Data,
                   Group group = Group::DataParallel);

  void enter(ModuleId module);
  void exit(ModuleId module, bool abandoned = false);
  void mark(Moment moment, Stretch stretch, std::int32_t micro_batch = 0);

  // Here the framework would print what the allocator has.
  void print(std::string text) {
    if (!until_.peaks_alone) schedule_.prints.push_back({schedule_.events.size(), std::move(text)});
  }

  // Every optimizer step must write these bytes exactly once. Stated where a runtime lays out what it trains, apart
  // from where it updates.
  void promise_update(BufferId buffer, Bytes offset, Bytes bytes);

  // Throws Ended where the schedule is not wanted.
  [[nodiscard]] Schedule finish();

 private:
  struct State {
    std::int32_t references = 0;
    std::uint32_t last_touch = 0;  // Serial of the last work that read or wrote it.
    Contents::Held held;
    StreamId stream = kComputeStream;  // That allocated it.
  };

  void touch(BufferId buffer, const Contents::Piece& piece);
  ContentId begin_marker();
  void end_work();
  void end_compute(Label work, Cost cost);

  Schedule schedule_;
  Recording* recording_ = nullptr;
  Indexed<BufferId, State> states_;
  Contents contents_;
  HappensBefore order_;
  std::uint32_t next_content_ = 1;
  ContentId cause_ = kNone;   // First content that the latest work made, or the latest marker.
  std::uint32_t serial_ = 0;  // Counts computes and communicates.
  bool after_marker_ = true;
  std::uint32_t reads_begin_ = 0;
  std::uint32_t writes_begin_ = 0;
  bool writing_ = false;
  ContentId first_written_ = kNone;
  Pass pass_ = Pass::Setup;
  ModuleId module_ = kNone;
  StreamId stream_ = kComputeStream;
  Until until_;
  Bytes live_;            // Of the device; counted where `until_` is given.
  bool stopped_ = false;  // Nothing is released any more.
};

// What is emitted while it lives is on `stream`.
class OnStream {
 public:
  OnStream(Emitter& emitter, StreamId stream) : emitter_(emitter), before_(emitter.on_stream(stream)) {}
  ~OnStream() { emitter_.on_stream(before_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  Emitter& emitter_;
  StreamId before_;
};

}  // namespace dsplan
