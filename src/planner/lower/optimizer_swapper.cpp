#include "planner/lower/optimizer_swapper.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {

// Gradients that are too small for files stay in memory until their sub-group is written; before, until it was read
// (optimizer_utils.py, _retrieve_unswapped_grad_partitions).
constexpr Version kKeepsUntilWritten{0, 19, 8};

OptimizerSwapper::OptimizerSwapper(const Training& training, const std::vector<Bytes>& groups, Emitter& emitter)
    : rules_(training.zero),
      type_(training.master_dtype),
      read_(training.zero.offload_optimizer.pipeline_read),
      write_(training.zero.offload_optimizer.pipeline_write),
      drops_when_read_(training.deepspeed < kKeepsUntilWritten),
      emitter_(emitter),
      count_(static_cast<std::size_t>(training.zero.offload_optimizer.buffer_count)) {
  for (const Bytes bytes : groups) {
    groups_.emplace_back().bytes = bytes;
    largest_ = std::max(largest_, rules_.aligned(bytes));
  }
}

bool OptimizerSwapper::swaps_any() const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) { return rules_.swaps(group.bytes); });
}

// SwapBufferManager: of the largest sub-group, whether that is swapped or not.
void OptimizerSwapper::make_buffers() {
  for (std::size_t at = 0; at < count_; ++at) {
    buffers_.push_back(
        emitter_.allocate(largest_, type_, Role::RuntimeBuffers, "swap buffer", kNone, true, Space::Locked));
    free_.push_back(at);
  }
}

std::vector<std::size_t> OptimizerSwapper::take(std::size_t count) {
  DSPLAN_CHECK(count > 0 && count <= free_.size(), "swap buffers of the optimizer run out");
  std::vector<std::size_t> taken(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void OptimizerSwapper::give_back(std::vector<std::size_t>& buffers) {
  free_.insert(free_.end(), buffers.begin(), buffers.end());
  buffers.clear();
}

BufferId OptimizerSwapper::make_file(Bytes bytes, Label label) {
  return emitter_.allocate(rules_.aligned(bytes), type_, Role::Optimizer, label, kNone, false, Space::Nvme);
}

// A file is written up to its aligned end.
void OptimizerSwapper::write_file(BufferId from, Bytes bytes, BufferId file) {
  emitter_.begin();
  emitter_.read(from, Bytes(0), bytes);
  emitter_.write(file);
  emitter_.compute("write to NVMe");
}

// _create_next_swappable_fp32_groups.
std::optional<std::size_t> OptimizerSwapper::next(std::size_t group) const {
  for (std::size_t at = group + 1; at < groups_.size(); ++at) {
    if (swaps(at)) return at;
  }
  return std::nullopt;
}

void OptimizerSwapper::swap_in(std::size_t group) {
  flush_gradients();
  if (ahead_) {
    DSPLAN_CHECK(*ahead_ == group, "another sub-group was read ahead");
    ahead_.reset();
  } else {
    read_in(group);
  }
  if (!read_) return;
  ahead_ = next(group);
  if (ahead_) read_in(*ahead_);
}

// _swap_in_optimizer_state. States that the first step made are dropped here where nothing dropped them before.
void OptimizerSwapper::read_in(std::size_t index) {
  Group& group = groups_[index];
  const bool graded = !group.gradients.empty() || !group.kept.empty();
  group.buffers = take(1 + group.state_files.size() + (graded ? 1 : 0));
  for (BufferId state : std::exchange(group.pageable, {})) emitter_.release(state, Reason::PythonFrame);
  for (std::size_t at = 0; at <= group.state_files.size(); ++at) {
    emitter_.begin();
    emitter_.read(at == 0 ? group.file : group.state_files[at - 1]);
    emitter_.write(buffers_[group.buffers[at]], Bytes(0), group.bytes);
    emitter_.compute("read from NVMe");
  }
  if (graded) read_gradients(group, buffers_[group.buffers.back()]);
}

void OptimizerSwapper::read_gradients(Group& group, BufferId into) {
  for (const Bytes offset : group.gradient_offsets) {
    const Piece& piece = group.gradients.at(offset);
    emitter_.begin();
    emitter_.read(piece.file);
    emitter_.write(into, offset, piece.bytes);
    emitter_.compute("read from NVMe");
  }
  for (const auto& [offset, kept] : group.kept) {
    emitter_.begin();
    emitter_.read(kept.tensor, kept.from, kept.bytes);
    emitter_.write(into, offset, kept.bytes);
    emitter_.compute("copy gradient to host");
  }
  if (!drops_when_read_) return;
  for (auto& [offset, kept] : group.kept) {
    emitter_.release(std::exchange(kept.tensor, kNoBuffer), Reason::GradientHeld);
  }
}

BufferRange OptimizerSwapper::master(std::size_t group) const {
  return {buffers_[groups_[group].buffers.front()], Bytes(0), groups_[group].bytes, type_};
}

// DeepSpeedCPUAdam.step, on what was read; the gradient where there is one, padding left out.
void OptimizerSwapper::update(std::size_t index, const std::vector<StateTensor>& states) {
  Group& group = groups_[index];
  if (group.labels.empty() && !states.empty()) {
    for (const StateTensor& state : states) {
      group.labels.push_back(state.label);
      group.pageable.push_back(
          emitter_.allocate(state.bytes, state.dtype, Role::Optimizer, state.label, kNone, false, Space::Pageable));
    }
    emitter_.begin();
    for (BufferId state : group.pageable) emitter_.write(state);
    emitter_.compute("create optimizer state");
  }
  const auto each_state = [&](auto&& visit) {
    for (BufferId state : group.pageable) visit(state);
    for (std::size_t at = 1; at <= group.state_files.size(); ++at) visit(buffers_[group.buffers[at]]);
  };
  const auto used = [&](BufferId state) { return group.pageable.empty() ? group.bytes : emitter_.size(state); };
  emitter_.begin();
  emitter_.read(buffers_[group.buffers.front()], Bytes(0), group.bytes);
  each_state([&](BufferId state) { emitter_.read(state, Bytes(0), used(state)); });
  for (const auto& [offset, piece] : group.gradients) {
    emitter_.read(buffers_[group.buffers.back()], offset, piece.bytes);
  }
  for (const auto& [offset, kept] : group.kept) {
    emitter_.read(buffers_[group.buffers.back()], offset, kept.bytes);
  }
  emitter_.write(buffers_[group.buffers.front()], Bytes(0), group.bytes);
  each_state([&](BufferId state) { emitter_.write(state, Bytes(0), used(state)); });
  record_update(group);
  emitter_.compute("optimizer update on the host");
}

// For an executor: gradients one after another, with zeros where there is only padding.
void OptimizerSwapper::record_update(const Group& group) {
  Recording* recording = emitter_.recording();
  if (recording == nullptr) return;
  std::map<Bytes, Bytes> gradients;
  for (const auto& [offset, piece] : group.gradients) gradients.emplace(offset, piece.bytes);
  for (const auto& [offset, kept] : group.kept) gradients.emplace(offset, kept.bytes);
  std::vector<ByteRange> reads;
  Bytes end;
  for (const auto& [offset, bytes] : gradients) {
    if (offset > end) reads.push_back({kNoBuffer, Bytes(0), offset - end});
    reads.push_back({buffers_[group.buffers.back()], offset, bytes});
    end = offset + bytes;
  }
  if (group.bytes > end) reads.push_back({kNoBuffer, Bytes(0), group.bytes - end});
  recording->reads(std::move(reads));
  recording->states(group.labels.size());
}

void OptimizerSwapper::swap_out(std::size_t index) {
  Group& group = groups_[index];
  if (pipelines()) {
    complete_write();
    release_kept(group);
  }
  write_states(group);
  if (!pipelines()) {
    for (BufferId state : std::exchange(group.pageable, {})) emitter_.release(state, Reason::PythonFrame);
    give_back(group.buffers);
    release_kept(group);
    return;
  }
  written_ = std::exchange(group.buffers, {});
  if (!write_ || !next(index)) complete_write();
}

void OptimizerSwapper::complete_write() { give_back(written_); }

// What was read goes back to its files; what the first step made passes through buffers that are free. The plain
// swapper takes all of those, and writes what was read before them; the pipelined one takes as many as it needs, and
// writes everything together.
void OptimizerSwapper::write_states(Group& group) {
  const bool made = !group.pageable.empty() && group.state_files.empty();
  const auto write_back = [&] {
    write_file(buffers_[group.buffers.front()], group.bytes, group.file);
    for (std::size_t at = 1; at <= group.state_files.size(); ++at) {
      write_file(buffers_[group.buffers[at]], group.bytes, group.state_files[at - 1]);
    }
  };
  if (!made) return write_back();
  if (!pipelines()) {
    write_back();
    return write_new_states(group);
  }
  const std::vector<std::size_t> taken = take(group.pageable.size());
  for (std::size_t at = 0; at < taken.size(); ++at) {
    emitter_.begin();
    emitter_.read(group.pageable[at]);
    emitter_.write(buffers_[taken[at]], Bytes(0), group.bytes);
    emitter_.compute("copy state to swap buffer");
  }
  write_back();
  for (std::size_t at = 0; at < taken.size(); ++at) {
    group.state_files.push_back(make_file(group.bytes, "optimizer state in a file"));
    write_file(buffers_[taken[at]], group.bytes, group.state_files.back());
  }
  group.buffers.insert(group.buffers.end(), taken.begin(), taken.end());
}

// _swap_out_unpinned_tensors: as many at a time as there are buffers.
void OptimizerSwapper::write_new_states(Group& group) {
  const std::vector<std::size_t> taken = take(free_.size());
  for (std::size_t first = 0; first < group.pageable.size(); first += taken.size()) {
    const std::size_t last = std::min(group.pageable.size(), first + taken.size());
    for (std::size_t at = first; at < last; ++at) {
      emitter_.begin();
      emitter_.read(group.pageable[at]);
      emitter_.write(buffers_[taken[at - first]], Bytes(0), group.bytes);
      emitter_.compute("copy state to swap buffer");
    }
    for (std::size_t at = first; at < last; ++at) {
      group.state_files.push_back(make_file(group.bytes, "optimizer state in a file"));
      write_file(buffers_[taken[at - first]], group.bytes, group.state_files.back());
    }
  }
  group.buffers.insert(group.buffers.end(), taken.begin(), taken.end());
}

void OptimizerSwapper::release_kept(Group& group) {
  for (const auto& [offset, kept] : std::exchange(group.kept, {})) {
    if (kept.tensor != kNoBuffer) emitter_.release(kept.tensor, Reason::GradientHeld);
  }
}

void OptimizerSwapper::keep(Group& group, Bytes offset, const Kept& kept) {
  emitter_.retain(kept.tensor);
  const auto [place, fresh] = group.kept.emplace(offset, kept);
  if (fresh) return;
  if (place->second.tensor != kNoBuffer) emitter_.release(place->second.tensor, Reason::GradientHeld);
  place->second = kept;
}

// _adjust_for_misaligned_lengths: what is too small is kept, and so is the tail of what is not.
void OptimizerSwapper::swap_out_gradients(std::size_t index, const std::vector<Gradient>& gradients) {
  Group& group = groups_[index];
  std::vector<Gradient> large;
  for (const Gradient& gradient : gradients) {
    if (!rules_.swaps(gradient.bytes)) {
      keep(group, gradient.offset, {gradient.bytes, Bytes(0), gradient.tensor});
      continue;
    }
    const Bytes tail(gradient.bytes.value() % rules_.unit.value());
    const Bytes whole = gradient.bytes - tail;
    large.push_back({gradient.offset, whole, gradient.tensor});
    if (tail == Bytes(0)) continue;
    DSPLAN_CHECK(!rules_.swaps(tail), "a tail is swapped");
    keep(group, gradient.offset + whole, {tail, whole, gradient.tensor});
  }
  for (const Gradient& gradient : large) gather_gradient(group, gradient);
}

void OptimizerSwapper::gather_gradient(Group& group, const Gradient& gradient) {
  if (gathering_.empty()) {
    gathering_ = take(free_.size());
    empty_ = gathering_;
  }
  const auto [place, fresh] = group.gradients.emplace(gradient.offset, Piece{gradient.bytes, kNoBuffer});
  if (fresh) group.gradient_offsets.push_back(gradient.offset);
  if (current_ && filled_ + gradient.bytes > largest_) {
    submit_gathered();
    if (empty_.empty()) empty_ = gathering_;  // All are waited for.
  }
  if (!current_) {
    current_ = empty_.back();
    empty_.pop_back();
    filled_ = Bytes(0);
  }
  if (fresh) place->second.file = make_file(gradient.bytes, "gradient in a file");
  emitter_.begin();
  emitter_.read(gradient.tensor, Bytes(0), gradient.bytes);
  emitter_.write(buffers_[*current_], filled_, gradient.bytes);
  emitter_.compute("copy gradient to host");
  gathered_.push_back({place->second.file, filled_, gradient.bytes});
  filled_ += gradient.bytes;
}

void OptimizerSwapper::submit_gathered() {
  for (const Gathered& one : std::exchange(gathered_, {})) {
    emitter_.begin();
    emitter_.read(buffers_[*current_], one.offset, one.bytes);
    emitter_.write(one.file);
    emitter_.compute("write to NVMe");
  }
  current_.reset();
}

void OptimizerSwapper::flush_gradients() {
  if (gathering_.empty()) return;
  submit_gathered();
  empty_.clear();
  give_back(gathering_);
}

}  // namespace dsplan
