#include "planner/lower/optimizer_swapper.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {

// Gradients that are too small for files stay in memory until their sub-group is written; before, until it was read
// (optimizer_utils.py, _retrieve_unswapped_grad_partitions).
constexpr Version kKeepsUntilWritten{0, 19, 8};

// What lies on the device is the backup optimizer's (stage3.py, partial offload).
Source maker_of_states(const Training& training) {
  const Offload& offload = training.zero.offload_optimizer;
  if (offload.device == OffloadDevice::None) return "deepspeed/ops/adam/fused_adam.py, FusedAdam.step";
  if (offload.ratio < 1 && training.deepspeed >= Version{0, 13, 3}) return "torch/optim/adam.py, AdamW.step";
  return "deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam.step";
}

SwapRules::SwapRules(const Zero& zero)
    : least(std::max<std::int64_t>(1LL << 20, zero.aio_block_size)),
      unit(checked_mul(1024, zero.aio_intra_op_parallelism)) {}

OptimizerSwapper::OptimizerSwapper(const Training& training, const std::vector<Bytes>& groups, Emitter& emitter)
    : rules_(training.zero),
      type_(training.master_dtype),
      maker_of_states_(maker_of_states(training)),
      read_(training.zero.offload_optimizer.pipeline_read),
      write_(training.zero.offload_optimizer.pipeline_write),
      drops_when_read_(training.deepspeed < kKeepsUntilWritten),
      eager_(emitter),
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
    buffers_.push_back(eager_.empty(
        largest_, type_,
        {Role::RuntimeBuffers, "swap buffer", "swap_tensor/utils.py, SwapBufferManager.__init__", /*capacity=*/true},
        kNone, Space::Locked));
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

Variable OptimizerSwapper::make_file(Bytes bytes, Label label, Source source) {
  return eager_.empty(rules_.aligned(bytes), type_, {Role::Optimizer, label, source}, kNone, Space::Nvme);
}

void OptimizerSwapper::make_state_file(Group& group, std::size_t buffer) {
  group.state_files.push_back(
      make_file(group.bytes, "optimizer state in a file", "swap_tensor/optimizer_utils.py, add_state_tensors"));
  write_file(group.state_files.back(), part(buffer, group.bytes));
}

// A file is read whole, and written up to its aligned end.
void OptimizerSwapper::read_file(const Part& to, const Variable& file) {
  eager_.work().read(file).write(to).run(Body::FileRead, "read from NVMe");
}

void OptimizerSwapper::write_file(const Part& file, const Part& from) {
  eager_.work().read(from).write(file).run(Body::FileWrite, "write to NVMe");
}

// initialize_parameters: as many at a time as there are buffers.
void OptimizerSwapper::initialise(const std::vector<Weights>& groups) {
  std::vector<std::size_t> all = take(free_.size());
  for (std::size_t first = 0; first < groups.size(); first += all.size()) {
    const std::size_t last = std::min(groups.size(), first + all.size());
    for (std::size_t at = first; at < last; ++at) {
      eager_.copy_across(part(all[at - first], groups_[groups[at].group].bytes), groups[at].weights, "cast to master");
    }
    for (std::size_t at = first; at < last; ++at) {
      Group& group = groups_[groups[at].group];
      group.file =
          make_file(group.bytes, "master weights in a file", "swap_tensor/optimizer_utils.py, _initialize_parameters");
      write_file(group.file, part(all[at - first], group.bytes));
    }
  }
  give_back(all);
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
  let_go(group.pageable);
  read_file(part(group.buffers.front(), group.bytes), group.file);
  for (std::size_t at = 0; at < group.state_files.size(); ++at) {
    read_file(part(group.buffers[at + 1], group.bytes), group.state_files[at]);
  }
  if (graded) read_gradients(group, group.buffers.back());
}

void OptimizerSwapper::read_gradients(Group& group, std::size_t into) {
  const BufferId buffer = buffers_[into].id();
  for (const Bytes offset : group.gradient_offsets) {
    const Piece& piece = group.gradients.at(offset);
    read_file(Part(buffer, offset, piece.bytes), piece.file);
  }
  for (const auto& [offset, kept] : group.kept) {
    eager_.copy(Part(buffer, offset, kept.bytes), Part(kept.tensor.id(), kept.from, kept.bytes),
                "copy gradient to host");
  }
  if (!drops_when_read_) return;
  for (auto& [offset, kept] : group.kept) kept.tensor.reset(Reason::GradientHeld);
}

Part OptimizerSwapper::master(std::size_t group) const {
  return part(groups_[group].buffers.front(), groups_[group].bytes);
}

// DeepSpeedCPUAdam.step, on what was read; the gradient where there is one, padding left out.
void OptimizerSwapper::update(std::size_t index, const std::vector<StateTensor>& states) {
  Group& group = groups_[index];
  if (group.states == 0 && !states.empty()) create_states(group, states);
  std::vector<Part> targets = {master(index)};
  for (const Variable& state : group.pageable) targets.emplace_back(state.id(), Bytes(0), eager_.bytes_of(state));
  for (std::size_t at = 1; at <= group.state_files.size(); ++at) {
    targets.push_back(part(group.buffers[at], group.bytes));
  }
  Work update = eager_.work().read(targets);
  const BufferId gradients = buffers_[group.buffers.back()].id();
  for (const auto& [offset, piece] : group.gradients) update.read(Part(gradients, offset, piece.bytes));
  for (const auto& [offset, kept] : group.kept) update.read(Part(gradients, offset, kept.bytes));
  for (const Part& target : targets) update.write(target);
  update.really_reads(gradients_in_order(group)).states(group.states);
  update.run(Body::Update, "optimizer update on the host");
}

void OptimizerSwapper::create_states(Group& group, const std::vector<StateTensor>& states) {
  for (const StateTensor& state : states) {
    group.pageable.push_back(eager_.empty(state.bytes, state.dtype, {Role::Optimizer, state.label, maker_of_states_},
                                          kNone, Space::Pageable));
  }
  group.states = states.size();
  eager_.work().write(group.pageable).run(Body::Clear, "create optimizer state");
}

// For an executor: gradients one after another, with zeros where there is only padding.
std::vector<ByteRange> OptimizerSwapper::gradients_in_order(const Group& group) const {
  std::map<Bytes, Bytes> gradients;
  for (const auto& [offset, piece] : group.gradients) gradients.emplace(offset, piece.bytes);
  for (const auto& [offset, kept] : group.kept) gradients.emplace(offset, kept.bytes);
  std::vector<ByteRange> reads;
  Bytes end;
  for (const auto& [offset, bytes] : gradients) {
    if (offset > end) reads.push_back({kNoBuffer, Bytes(0), offset - end});
    reads.push_back({buffers_[group.buffers.back()].id(), offset, bytes});
    end = offset + bytes;
  }
  if (group.bytes > end) reads.push_back({kNoBuffer, Bytes(0), group.bytes - end});
  return reads;
}

void OptimizerSwapper::swap_out(std::size_t index) {
  Group& group = groups_[index];
  if (pipelines()) {
    complete_write();
    release_kept(group);
  }
  write_states(group);
  if (!pipelines()) {
    let_go(group.pageable);
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
    write_file(group.file, part(group.buffers.front(), group.bytes));
    for (std::size_t at = 0; at < group.state_files.size(); ++at) {
      write_file(group.state_files[at], part(group.buffers[at + 1], group.bytes));
    }
  };
  if (!made) return write_back();
  if (!pipelines()) {
    write_back();
    return write_new_states(group);
  }
  const std::vector<std::size_t> taken = take(group.pageable.size());
  for (std::size_t at = 0; at < taken.size(); ++at) {
    eager_.copy(part(taken[at], group.bytes), group.pageable[at], "copy state to swap buffer");
  }
  write_back();
  for (const std::size_t buffer : taken) make_state_file(group, buffer);
  group.buffers.insert(group.buffers.end(), taken.begin(), taken.end());
}

// _swap_out_unpinned_tensors: as many at a time as there are buffers.
void OptimizerSwapper::write_new_states(Group& group) {
  const std::vector<std::size_t> taken = take(free_.size());
  for (std::size_t first = 0; first < group.pageable.size(); first += taken.size()) {
    const std::size_t last = std::min(group.pageable.size(), first + taken.size());
    for (std::size_t at = first; at < last; ++at) {
      eager_.copy(part(taken[at - first], group.bytes), group.pageable[at], "copy state to swap buffer");
    }
    for (std::size_t at = first; at < last; ++at) make_state_file(group, taken[at - first]);
  }
  group.buffers.insert(group.buffers.end(), taken.begin(), taken.end());
}

void OptimizerSwapper::release_kept(Group& group) {
  for (auto& [offset, kept] : group.kept) kept.tensor.reset(Reason::GradientHeld);
  group.kept.clear();
}

void OptimizerSwapper::keep(Group& group, Bytes offset, Kept kept) {
  Kept& place = group.kept[offset];
  place.tensor.reset(Reason::GradientHeld);
  place = std::move(kept);
}

// _adjust_for_misaligned_lengths: what is too small is kept, and so is the tail of what is not.
void OptimizerSwapper::swap_out_gradients(std::size_t index, const std::vector<Gradient>& gradients) {
  Group& group = groups_[index];
  std::vector<std::pair<Bytes, Part>> large;  // By offset in the sub-group.
  for (const Gradient& gradient : gradients) {
    if (!rules_.swaps(gradient.bytes)) {
      keep(group, gradient.offset, {gradient.bytes, Bytes(0), gradient.tensor.share()});
      continue;
    }
    const Bytes tail(gradient.bytes.value() % rules_.unit.value());
    const Bytes whole = gradient.bytes - tail;
    large.emplace_back(gradient.offset, Part(gradient.tensor.id(), Bytes(0), whole));
    if (tail == Bytes(0)) continue;
    DSPLAN_CHECK(!rules_.swaps(tail), "a tail is swapped");
    keep(group, gradient.offset + whole, {tail, whole, gradient.tensor.share()});
  }
  for (const auto& [offset, gradient] : large) gather_gradient(group, offset, gradient);
}

void OptimizerSwapper::gather_gradient(Group& group, Bytes offset, const Part& gradient) {
  if (gathering_.empty()) {
    gathering_ = take(free_.size());
    empty_ = gathering_;
  }
  const auto [place, fresh] = group.gradients.try_emplace(offset);
  if (fresh) group.gradient_offsets.push_back(offset);
  if (current_ && filled_ + gradient.bytes > largest_) {
    submit_gathered();
    if (empty_.empty()) empty_ = gathering_;  // All are waited for.
  }
  if (!current_) {
    current_ = empty_.back();
    empty_.pop_back();
    filled_ = Bytes(0);
  }
  if (fresh) {
    place->second = {gradient.bytes, make_file(gradient.bytes, "gradient in a file",
                                               "swap_tensor/optimizer_utils.py, _swap_out_gradients")};
  }
  eager_.copy(Part(buffers_[*current_].id(), filled_, gradient.bytes), gradient, "copy gradient to host");
  gathered_.push_back({place->second.file, filled_, gradient.bytes});
  filled_ += gradient.bytes;
}

void OptimizerSwapper::submit_gathered() {
  for (const Gathered& one : std::exchange(gathered_, {})) {
    write_file(one.file, Part(buffers_[*current_].id(), one.offset, one.bytes));
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
