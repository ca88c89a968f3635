// Writes the program beside the schedule (core/program.h), for those who want to execute it: which body each piece of
// work is, and on which tensors. An emitter without a recording pays nothing for it.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/program.h"
#include "core/schedule.h"

namespace dsplan {

class Recording {
 public:
  // `tensor_rank`: of those that share each layer.
  explicit Recording(std::int64_t tensor_rank = 0) : tensor_rank_(tensor_rank) {}
  [[nodiscard]] std::int64_t tensor_rank() const { return tensor_rank_; }

  // Tensors. Those of the graph `graph` (its index among the job's graphs) from here on.
  void of_graph(std::uint8_t graph) { graph_ = graph; }
  // `tensor` of the graph lies contiguously at `offset` of `buffer`.
  [[nodiscard]] ValueId placed(BufferId buffer, Bytes offset, TensorId tensor);
  // The work to come fills `buffer` with it, from the beginning; or: a view of others.
  [[nodiscard]] ValueId made_in(BufferId buffer);
  [[nodiscard]] ValueId viewed() { return made_in(kNoBuffer); }

  // The work under way is on these tensors; its body, which is one of those that work on values, comes at its end. Work
  // of which nobody says so is on flat ranges: what is read and written.
  void on_values(NodeId node, std::uint8_t part, std::span<const ValueId> in, std::span<const MadeValue> made);
  // Something that takes no event happens before the next one.
  void silent(Body body, NodeId node, std::uint8_t part, std::span<const ValueId> in, std::span<const MadeValue> made,
              ParameterId parameter, std::size_t event);
  // The mean loss of a micro-batch is known at this event.
  void loss(ValueId value, std::size_t event) { program_.losses.push_back({static_cast<std::uint32_t>(event), value}); }
  void module_buffers(std::vector<BufferId> buffers) { program_.module_buffers = std::move(buffers); }

  // About the work under way: which stretches it really reads or writes, where the schedule names whole buffers; and
  // the rank that a broadcast comes from or a reduction goes to.
  void reads(std::vector<ByteRange> ranges) { reads_ = std::move(ranges); }
  void writes(std::vector<ByteRange> ranges) { writes_ = std::move(ranges); }
  void root(std::int64_t rank) { root_ = static_cast<std::int32_t>(rank); }
  // Of an update: what is written are the targets, each with so many states behind it.
  void states(std::size_t count) { states_ = static_cast<std::uint8_t>(count); }

  // Of a collective: the largest of all instead of their sum.
  void largest() { states_ = 1; }

  // Called by the emitter.
  void begin_work();
  void read(const ByteRange& range) { reads_.push_back(range); }
  void write(const ByteRange& range) { writes_.push_back(range); }
  void end_work(Body body, std::size_t event);
  void end_unexecutable(Label work, std::size_t event);
  void end_collective(std::size_t event) { flat(Body::Collective, event); }

  [[nodiscard]] Program finish() { return std::move(program_); }

 private:
  [[nodiscard]] Task task_of(Body body, NodeId node, std::uint8_t part, std::span<const ValueId> in,
                             std::span<const MadeValue> made);
  [[nodiscard]] Span pooled(const std::vector<ByteRange>& ranges);
  void flat(Body body, std::size_t event);

  std::int64_t tensor_rank_;
  Program program_;
  std::uint8_t graph_ = 0;
  std::optional<Task> on_values_;  // The work under way, where it has been described so.
  std::int32_t root_ = 0;
  std::uint8_t states_ = 0;
  std::vector<ByteRange> reads_;
  std::vector<ByteRange> writes_;
};

}  // namespace dsplan
