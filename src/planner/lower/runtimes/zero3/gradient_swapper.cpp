#include "planner/lower/runtimes/zero3/gradient_swapper.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

// Gradients that are too small for files stay in memory until their sub-group is written; before, until it was read
// (optimizer_utils.py, _retrieve_unswapped_grad_partitions).
constexpr Version kKeepsUntilWritten{0, 19, 8};

}  // namespace

GradientSwapper::GradientSwapper(const Training& training, std::size_t groups, SwapBuffers& buffers, Emitter& emitter)
    : rules_(training.zero),
      type_(training.master_dtype),
      drops_when_read_(training.deepspeed < kKeepsUntilWritten),
      buffers_(buffers),
      eager_(emitter),
      groups_(groups) {}

void GradientSwapper::collect(std::size_t group, Gradient gradient) {
  if (groups_[group].collected.empty()) collected_.push_back(group);
  groups_[group].collected.push_back(std::move(gradient));
}

void GradientSwapper::swap_out_collected() {
  for (const std::size_t group : collected_) swap_out(groups_[group]);
  for (const std::size_t group : collected_) {
    for (Gradient& gradient : groups_[group].collected) gradient.tensor.reset();
    groups_[group].collected.clear();
  }
  collected_.clear();
}

// _adjust_for_misaligned_lengths: what is too small is kept, and so is the tail of what is not.
void GradientSwapper::swap_out(Group& group) {
  std::vector<std::pair<Bytes, Part>> large;  // By offset in the sub-group.
  for (const Gradient& gradient : group.collected) {
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
  for (const auto& [offset, gradient] : large) gather(group, offset, gradient);
}

void GradientSwapper::keep(Group& group, Bytes offset, Kept kept) {
  Kept& place = group.kept[offset];
  place.tensor.reset(Reason::GradientHeld);
  place = std::move(kept);
}

void GradientSwapper::gather(Group& group, Bytes offset, const Part& gradient) {
  if (taken_.empty()) {
    taken_ = buffers_.take_all();
    empty_ = taken_;
  }
  const auto [place, fresh] = group.files.try_emplace(offset);
  if (fresh) group.offsets.push_back(offset);
  if (current_ && filled_ + gradient.bytes > buffers_.bytes()) {
    submit();
    if (empty_.empty()) empty_ = taken_;  // All are waited for.
  }
  if (!current_) {
    current_ = empty_.back();
    empty_.pop_back();
    filled_ = Bytes(0);
  }
  if (fresh) {
    place->second = {gradient.bytes, eager_.empty(rules_.aligned(gradient.bytes), type_,
                                                  {Role::Optimizer, "gradient in a file",
                                                   "swap_tensor/optimizer_utils.py, _swap_out_gradients"},
                                                  kNone, Space::Nvme)};
  }
  const Part to = buffers_.part(*current_, filled_, gradient.bytes);
  eager_.copy(to, gradient, "copy gradient to host");
  gathered_.push_back({place->second.file, to});
  filled_ += gradient.bytes;
}

void GradientSwapper::submit() {
  for (const Gathered& one : std::exchange(gathered_, {})) write_file(eager_, one.file, one.from);
  current_.reset();
}

void GradientSwapper::flush() {
  if (taken_.empty()) return;
  submit();
  empty_.clear();
  buffers_.give_back(taken_);
}

bool GradientSwapper::has(std::size_t group) const {
  return !groups_[group].files.empty() || !groups_[group].kept.empty();
}

void GradientSwapper::read(std::size_t index, std::size_t buffer) {
  Group& group = groups_[index];
  for (const Bytes offset : group.offsets) {
    const File& of = group.files.at(offset);
    read_file(eager_, buffers_.part(buffer, offset, of.bytes), of.file);
  }
  for (const auto& [offset, kept] : group.kept) {
    eager_.copy(buffers_.part(buffer, offset, kept.bytes), Part(kept.tensor.id(), kept.from, kept.bytes),
                "copy gradient to host");
  }
  if (!drops_when_read_) return;
  for (auto& [offset, kept] : group.kept) kept.tensor.reset(Reason::GradientHeld);
}

std::vector<Part> GradientSwapper::parts(std::size_t index, std::size_t buffer) const {
  const Group& group = groups_[index];
  std::vector<Part> parts;
  for (const auto& [offset, of] : group.files) parts.push_back(buffers_.part(buffer, offset, of.bytes));
  for (const auto& [offset, kept] : group.kept) parts.push_back(buffers_.part(buffer, offset, kept.bytes));
  return parts;
}

void GradientSwapper::release_kept(std::size_t group) {
  for (auto& [offset, kept] : groups_[group].kept) kept.tensor.reset(Reason::GradientHeld);
  groups_[group].kept.clear();
}

}  // namespace dsplan
