#include "planner/lower/recording.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace dsplan {

ValueId Recording::placed(BufferId buffer, Bytes offset, TensorId tensor) {
  program_.values.push_back({buffer, offset, tensor, graph_});
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId Recording::made_in(BufferId buffer) { return placed(buffer, Bytes(0), kNone); }

Task Recording::task_of(Body body, NodeId node, std::uint8_t part, std::span<const ValueId> in,
                        std::span<const MadeValue> made) {
  const auto in_begin = static_cast<std::uint32_t>(program_.inputs.size());
  const auto made_begin = static_cast<std::uint32_t>(program_.made.size());
  program_.inputs.insert(program_.inputs.end(), in.begin(), in.end());
  program_.made.insert(program_.made.end(), made.begin(), made.end());
  Task task;
  task.body = body;
  task.graph = graph_;
  task.part = part;
  task.node = node;
  task.in = {in_begin, static_cast<std::uint32_t>(program_.inputs.size())};
  task.made = {made_begin, static_cast<std::uint32_t>(program_.made.size())};
  return task;
}

void Recording::on_values(NodeId node, std::uint8_t part, std::span<const ValueId> in,
                          std::span<const MadeValue> made) {
  DSPLAN_CHECK(!on_values_, "one piece of work, described twice");
  on_values_ = task_of(Body::Nothing, node, part, in, made);
}

void Recording::silent(Body body, NodeId node, std::uint8_t part, std::span<const ValueId> in,
                       std::span<const MadeValue> made, ParameterId parameter, std::size_t event) {
  Task task = task_of(body, node, part, in, made);
  task.parameter = parameter;
  task.event = static_cast<std::uint32_t>(event);
  program_.tasks.push_back(task);
}

void Recording::begin_work() {
  on_values_.reset();
  root_ = 0;
  states_ = 0;
  reads_.clear();
  writes_.clear();
}

Span Recording::pooled(const std::vector<ByteRange>& ranges) {
  const auto begin = static_cast<std::uint32_t>(program_.ranges.size());
  program_.ranges.insert(program_.ranges.end(), ranges.begin(), ranges.end());
  return {begin, static_cast<std::uint32_t>(program_.ranges.size())};
}

void Recording::flat(Body body, std::size_t event) {
  Task task;
  task.body = body;
  task.event = static_cast<std::uint32_t>(event);
  task.root = root_;
  task.part = states_;
  task.reads = pooled(reads_);
  task.writes = pooled(writes_);
  program_.tasks.push_back(task);
}

void Recording::end_work(Body body, std::size_t event) {
  DSPLAN_CHECK(works_on_values(body) == on_values_.has_value(),
               std::string("a body without its values: ") + name(body));
  if (!on_values_) return flat(body, event);
  on_values_->body = body;
  on_values_->event = static_cast<std::uint32_t>(event);
  program_.tasks.push_back(*std::exchange(on_values_, std::nullopt));
}

void Recording::end_unexecutable(Label work, std::size_t event) {
  const auto known = std::find_if(program_.unknown_work.begin(), program_.unknown_work.end(),
                                  [&](Label other) { return std::string_view(other) == work; });
  if (known == program_.unknown_work.end()) program_.unknown_work.push_back(work);
  flat(Body::Nothing, event);
}

}  // namespace dsplan
