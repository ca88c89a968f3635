// Carries out one rank's schedule: a reader of the only replay loop, riding behind the meter of the prediction. Every
// allocation that belongs to an operator has the size that the operator wants; after each event both sums are compared,
// and the first event at which they part ends the run.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "core/program.h"
#include "core/schedule.h"
#include "exec/data.h"
#include "exec/device.h"
#include "exec/flat.h"
#include "exec/loss_scale.h"
#include "exec/memory.h"
#include "exec/settings.h"
#include "exec/stream_events.h"
#include "exec/transport.h"
#include "exec/values.h"
#include "sim/memory.h"

namespace dsplan::exec {

// What one rank carries out: `model` is the whole model, graphs, schedule and program are the rank's. Everything must
// outlive the runner.
struct RankPlan {
  const ModelSpec& model;
  std::span<const Graph> graphs;
  const Schedule& schedule;
  const Program& program;
  std::int64_t tensor_rank = 0;  // Of the ranks that share each layer.

  // Among all ranks: those that share layers are neighbours.
  [[nodiscard]] std::int64_t rank() const { return schedule.rank * schedule.tp + tensor_rank; }
};

// Prediction and measurement part at an event of this rank.
class Parted : public std::exception {
 public:
  Parted(std::int64_t rank, std::size_t event, std::string text);
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] std::size_t event() const { return event_; }

 private:
  std::size_t event_;
  std::string text_;
};

// What a test or a report may look at while the run goes on. Pointers are the host's: only where the backend says so.
struct Observer {
  // The gradient of a parameter is ready, before the runtime takes it.
  std::function<void(ParameterId, const dsplan_tensor&)> gradient;
  // Everything up to this mark has happened.
  std::function<void(const Mark&, const RankMemory&)> mark;
};

class Runner : public Ignores<Enter, Exit> {
 public:
  // `meter` sees every event before this does.
  Runner(const RankPlan& plan, const RunSettings& settings, const MemoryMeter& meter, Device& device,
         RankMemory& memory, Communicators& communicators, const Text& text, const Observer& observer = {});
  ~Runner();

  using Ignores<Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Compute& event);
  void on(std::size_t at, const Communicate& event);
  void on(std::size_t at, const RecordEvent& event);
  void on(std::size_t at, const WaitEvent& event);
  void on(std::size_t at, const Mark& event);

  // Every collective of this rank so far, with what it really sent, and the event at which it was called.
  struct Sent {
    std::size_t event = 0;
    CallRecord record;
  };
  [[nodiscard]] const std::vector<Sent>& sent() const { return sent_; }
  // Nanoseconds of exposed communication, waiting for other ranks included: within collectives; on a device that only
  // enqueues, those of the compute stream and its waits for other streams, of what had happened at the last mark.
  [[nodiscard]] std::int64_t communicating() const { return communicating_ + clock_.nanoseconds(); }
  // The mean loss of each micro-batch of this rank, in order.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  [[nodiscard]] std::size_t event() const { return event_; }
  // Each optimizer step so far: the loss scale with which its backward ran, and whether it was left out because
  // gradients were not finite.
  struct Step {
    double loss_scale = 1;
    bool skipped = false;
  };
  [[nodiscard]] const std::vector<Step>& steps() const { return taken_; }
  // Bytes that came from files and went to them so far.
  [[nodiscard]] Bytes file_read() const { return device_.file_read(); }
  [[nodiscard]] Bytes file_written() const { return device_.file_written(); }

 private:
  enum Register : std::uint8_t { kSquares, kOverflow, kRegisters };

  void arrive(std::size_t at);  // Silent tasks that come before this event.
  void drain();                 // Waits for what was enqueued.
  void compare(std::size_t at) const;
  [[nodiscard]] const Task& task_at(std::size_t at);
  [[nodiscard]] Bytes size_of(BufferId buffer);

  // Work on values.
  [[nodiscard]] dsplan_tensor tensor_of(const TensorAt& tensor) const;
  void run_operator(const Task& task);
  void make_batch(const Task& task);
  void take_loss(ValueId value);
  [[nodiscard]] dsplan_random random_for(const Task& task) const;
  void lend_workspace(dsplan_launch& what) const;

  // Flat work (runner_flat.cpp).
  [[nodiscard]] std::vector<Piece> pieces(Span ranges, DType zeros = DType::UInt8) const;
  void run_flat(const Task& task);
  void load_parameters(const Task& task);
  void load_buffer(const Task& task);
  void copy(const Task& task);
  void add(const Task& task);
  void convert(const Task& task);  // To int8 and back.
  void scale(const Task& task, double factor);
  void square_sum(const Task& task);
  void put_norm(const Task& task);
  void take_norm(const Task& task);
  [[nodiscard]] Piece joined(const std::vector<Piece>& parts, const Piece& place);
  void scan(std::span<const Piece> pieces);
  void scan_for_overflow(const Task& task);
  void take_flag(const Task& task);
  void unscale(const Task& task);
  void move_file(const Task& task);
  // Gradients of this step are not finite. Moves the loss scale, once in each step.
  [[nodiscard]] bool overflows();
  void end_step();
  void update(const Task& task);
  void update_one(std::span<const Piece> gradients, const Piece& target, std::span<const Piece> states);
  [[nodiscard]] CallRecord timed(Communicator& communicator, const CollectiveCall& call);
  void launch(Body body, std::span<const dsplan_tensor> in, std::span<const dsplan_tensor> made,
              std::span<const std::int64_t> integers = {}, std::span<const double> numbers = {},
              dsplan_random random = {});
  void to_device(const Piece& target, const void* values, std::int64_t bytes);
  [[nodiscard]] double scalar_at(const Piece& piece);
  [[nodiscard]] double gradient_factor() const;

  const RankPlan plan_;
  const RunSettings settings_;
  const MemoryMeter& meter_;
  Device& device_;
  RankMemory& memory_;
  Communicators& communicators_;
  const Text& text_;
  const Observer& observer_;
  Values values_;

  std::size_t event_ = 0;
  std::size_t next_task_ = 0;
  std::size_t next_loss_ = 0;
  std::int64_t micro_batches_ = 0;  // Begun since the run began.
  std::int64_t steps_ = 0;          // Optimizer steps begun that were not left out.
  std::vector<double> losses_;
  std::vector<std::vector<std::uint32_t>> draws_;  // By graph and node.
  std::vector<std::vector<bool>> on_parts_;        // By graph and node; empty: no layer is shared.
  std::vector<Sent> sent_;
  std::int64_t communicating_ = 0;
  StreamClock clock_;
  StreamEvents stream_events_;
  std::byte* registers_ = nullptr;  // Of the device, the executor's own: not among the plan's bytes.
  double squares_ = 0;              // Of the norm of all ranks' gradients.
  double pending_ = 0;              // This rank's part, not yet with the others.
  double contributed_ = 0;          // What went into `norm_buffer_`.
  bool clips_apart_ = false;        // Clipping is work of its own, not part of the update,
  bool unscales_apart_ = false;     // and so is the division by the loss scale.
  LossScale scale_;
  bool overflow_ = false;       // A flag of this step says so, on any rank.
  std::optional<bool> judged_;  // What `overflows` said in this step.
  double taken_scale_;          // With which the backward of this step runs.
  std::vector<Step> taken_;
  BufferId norm_buffer_ = kNoBuffer;
  // The first that the plan has for the libraries of products, which work in it one after the other.
  BufferId workspace_ = kNoBuffer;
};

}  // namespace dsplan::exec
