#include "planner/lower/runtimes/zero3/optimizer_swapper.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

// SwapBufferManager's buffers are for the largest sub-group, whether that is swapped or not.
Bytes largest_of(const std::vector<Bytes>& groups, const SwapRules& rules) {
  Bytes largest;
  for (const Bytes bytes : groups) largest = std::max(largest, rules.aligned(bytes));
  return largest;
}

}  // namespace

// What lies on the device is the backup optimizer's (stage3.py, partial offload).
Source maker_of_states(const Training& training) {
  const Offload& offload = training.zero.offload_optimizer;
  if (offload.device == OffloadDevice::None) return "deepspeed/ops/adam/fused_adam.py, FusedAdam.step";
  if (offload.ratio < 1 && training.deepspeed >= Version{0, 13, 3}) return "torch/optim/adam.py, AdamW.step";
  return "deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam.step";
}

OptimizerSwapper::OptimizerSwapper(const Training& training, const std::vector<Bytes>& groups, Emitter& emitter)
    : rules_(training.zero),
      type_(training.master_dtype),
      maker_of_states_(maker_of_states(training)),
      read_(training.zero.offload_optimizer.pipeline_read),
      write_(training.zero.offload_optimizer.pipeline_write),
      eager_(emitter),
      buffers_(type_, largest_of(groups, rules_),
               static_cast<std::size_t>(training.zero.offload_optimizer.buffer_count), emitter),
      gradients_(training, groups.size(), buffers_, emitter) {
  for (const Bytes bytes : groups) groups_.emplace_back().bytes = bytes;
}

Variable OptimizerSwapper::make_file(Bytes bytes, const What& what) {
  return eager_.empty(rules_.aligned(bytes), type_, what, kNone, Space::Nvme);
}

void OptimizerSwapper::make_state_file(Group& group, std::size_t buffer) {
  group.state_files.push_back(make_file(group.bytes, {Role::Optimizer, "optimizer state in a file",
                                                      "swap_tensor/optimizer_utils.py, add_state_tensors"}));
  write_file(eager_, group.state_files.back(), buffers_.part(buffer, group.bytes));
}

// initialize_parameters: as many at a time as there are buffers.
void OptimizerSwapper::initialise(const std::vector<Weights>& groups) {
  std::vector<std::size_t> all = buffers_.take_all();
  for (std::size_t first = 0; first < groups.size(); first += all.size()) {
    const std::size_t last = std::min(groups.size(), first + all.size());
    for (std::size_t at = first; at < last; ++at) {
      eager_.copy_across(buffers_.part(all[at - first], groups_[groups[at].group].bytes), groups[at].weights,
                         "cast to master");
    }
    for (std::size_t at = first; at < last; ++at) {
      Group& group = groups_[groups[at].group];
      group.file = make_file(group.bytes, {Role::Optimizer, "master weights in a file",
                                           "swap_tensor/optimizer_utils.py, _initialize_parameters"});
      write_file(eager_, group.file, buffers_.part(all[at - first], group.bytes));
    }
  }
  buffers_.give_back(all);
}

// _create_next_swappable_fp32_groups.
std::optional<std::size_t> OptimizerSwapper::next(std::size_t group) const {
  for (std::size_t at = group + 1; at < groups_.size(); ++at) {
    if (swaps(at)) return at;
  }
  return std::nullopt;
}

void OptimizerSwapper::swap_in(std::size_t group) {
  gradients_.flush();
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
  const bool graded = gradients_.has(index);
  group.buffers = buffers_.take(1 + group.state_files.size() + (graded ? 1 : 0));
  let_go(group.pageable);
  read_file(eager_, master(index), group.file);
  for (std::size_t at = 0; at < group.state_files.size(); ++at) {
    read_file(eager_, buffers_.part(group.buffers[at + 1], group.bytes), group.state_files[at]);
  }
  if (graded) gradients_.read(index, group.buffers.back());
}

Part OptimizerSwapper::master(std::size_t group) const {
  return buffers_.part(groups_[group].buffers.front(), groups_[group].bytes);
}

// DeepSpeedCPUAdam.step, on what was read; the gradient where there is one, padding left out.
void OptimizerSwapper::update(std::size_t index, const std::vector<StateTensor>& states) {
  Group& group = groups_[index];
  if (group.states == 0 && !states.empty()) create_states(group, states);
  std::vector<Part> targets = {master(index)};
  for (const Variable& state : group.pageable) targets.emplace_back(state.id(), Bytes(0), eager_.bytes_of(state));
  for (std::size_t at = 1; at <= group.state_files.size(); ++at) {
    targets.push_back(buffers_.part(group.buffers[at], group.bytes));
  }
  const std::vector<Part> gradients = gradients_.parts(index, group.buffers.back());
  Work update = eager_.work().read(targets).read(gradients);
  for (const Part& target : targets) update.write(target);
  update.really_reads(in_order(gradients, group.bytes)).states(group.states);
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
std::vector<ByteRange> OptimizerSwapper::in_order(std::vector<Part> gradients, Bytes bytes) {
  std::sort(gradients.begin(), gradients.end(), [](const Part& a, const Part& b) { return a.offset < b.offset; });
  std::vector<ByteRange> reads;
  Bytes end;
  for (const Part& gradient : gradients) {
    if (gradient.offset > end) reads.push_back({kNoBuffer, Bytes(0), gradient.offset - end});
    reads.push_back({gradient.buffer, gradient.offset, gradient.bytes});
    end = gradient.offset + gradient.bytes;
  }
  if (bytes > end) reads.push_back({kNoBuffer, Bytes(0), bytes - end});
  return reads;
}

void OptimizerSwapper::swap_out(std::size_t index) {
  Group& group = groups_[index];
  if (pipelines()) {
    buffers_.give_back(written_);  // _complete_swap_out.
    gradients_.release_kept(index);
  }
  write_states(group);
  if (!pipelines()) {
    let_go(group.pageable);
    buffers_.give_back(group.buffers);
    return gradients_.release_kept(index);
  }
  written_ = std::exchange(group.buffers, {});
  if (!write_ || !next(index)) buffers_.give_back(written_);
}

void OptimizerSwapper::write_back(Group& group) {
  write_file(eager_, group.file, buffers_.part(group.buffers.front(), group.bytes));
  for (std::size_t at = 0; at < group.state_files.size(); ++at) {
    write_file(eager_, group.state_files[at], buffers_.part(group.buffers[at + 1], group.bytes));
  }
}

// What was read goes back to its files; what the first step made passes through buffers that are free. The plain
// swapper takes all of those, and writes what was read before them; the pipelined one takes as many as it needs, and
// writes everything together.
void OptimizerSwapper::write_states(Group& group) {
  const bool made = !group.pageable.empty() && group.state_files.empty();
  if (!made) return write_back(group);
  if (!pipelines()) {
    write_back(group);
    return write_new_states(group);
  }
  const std::vector<std::size_t> taken = buffers_.take(group.pageable.size());
  for (std::size_t at = 0; at < taken.size(); ++at) {
    eager_.copy(buffers_.part(taken[at], group.bytes), group.pageable[at], "copy state to swap buffer");
  }
  write_back(group);
  for (const std::size_t buffer : taken) make_state_file(group, buffer);
  group.buffers.insert(group.buffers.end(), taken.begin(), taken.end());
}

// _swap_out_unpinned_tensors: as many at a time as there are buffers.
void OptimizerSwapper::write_new_states(Group& group) {
  const std::vector<std::size_t> taken = buffers_.take_all();
  for (std::size_t first = 0; first < group.pageable.size(); first += taken.size()) {
    const std::size_t last = std::min(group.pageable.size(), first + taken.size());
    for (std::size_t at = first; at < last; ++at) {
      eager_.copy(buffers_.part(taken[at - first], group.bytes), group.pageable[at], "copy state to swap buffer");
    }
    for (std::size_t at = first; at < last; ++at) make_state_file(group, taken[at - first]);
  }
  group.buffers.insert(group.buffers.end(), taken.begin(), taken.end());
}

}  // namespace dsplan
