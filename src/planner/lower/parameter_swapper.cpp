#include "planner/lower/parameter_swapper.h"

#include "core/error.h"
#include "core/format.h"

namespace dsplan {

ParameterSwapper::ParameterSwapper(const Zero& zero, DType type, std::size_t parameters, Emitter& emitter)
    : rules_(zero),
      type_(type),
      count_(zero.offload_param.buffer_count),
      buffer_bytes_(rules_.aligned(storage(zero.offload_param.buffer_size, type))),
      emitter_(emitter),
      files_(parameters) {}

// An ordinary tensor gives the size and the dtype of the one that is locked.
void ParameterSwapper::make_pool() {
  const Bytes bytes = buffer_bytes_ * count_;
  if (bytes == Bytes(0)) return;
  const BufferId like = emitter_.allocate(bytes, type_, Role::RuntimeBuffers, "swap buffers before they are locked",
                                          kNone, true, Space::Pageable);
  pool_ =
      emitter_.allocate(bytes, type_, Role::RuntimeBuffers, "swap buffers of parameters", kNone, true, Space::Locked);
  emitter_.mark_scratch(like);
  emitter_.begin();
  emitter_.write(like, Bytes(0), Bytes(bytes_per_element(type_)));
  emitter_.compute("make swap buffers");
  emitter_.release(like, Reason::LastUse);
  for (std::int64_t at = 0; at < count_; ++at) free_.push_back(at);
}

BufferRange ParameterSwapper::take(ParameterId parameter, Bytes bytes) {
  File& of = files_[static_cast<std::size_t>(parameter)];
  if (of.slot >= 0) {
    throw Refusal("offload_param",
                  "the coordinator reads one partition ahead for two of its uses, and DeepSpeed asserts that a "
                  "parameter has one swap buffer",
                  "it happens where a parameter is used twice in a row and is less than twice as large as what is in "
                  "flight; a smaller stage3_prefetch_bucket_size puts less in flight");
  }
  if (free_.empty()) {
    throw Refusal("offload_param.buffer_count",
                  formatted("{} swap buffers are too few: another partition is to be read", count_),
                  "DeepSpeed asserts that there is a buffer for each partition in flight or in use; give more");
  }
  of.bytes = bytes;
  of.slot = free_.back();
  free_.pop_back();
  return buffer(parameter);
}

void ParameterSwapper::give_back(ParameterId parameter) {
  File& of = files_[static_cast<std::size_t>(parameter)];
  free_.push_back(of.slot);
  of.slot = -1;
}

BufferRange ParameterSwapper::buffer(ParameterId parameter) const {
  const File& of = files_[static_cast<std::size_t>(parameter)];
  return {pool_, buffer_bytes_ * of.slot, of.bytes, type_};
}

void ParameterSwapper::copy_from_file(const File& of, const BufferRange& to) {
  emitter_.begin();
  emitter_.read(of.buffer);
  emitter_.write(to.buffer, to.offset, to.bytes);
  emitter_.compute("read from NVMe");
}

void ParameterSwapper::copy_to_file(const File& of, BufferId from, Bytes offset) {
  emitter_.begin();
  emitter_.read(from, offset, of.bytes);
  emitter_.write(of.buffer);
  emitter_.compute("write to NVMe");
}

void ParameterSwapper::write(ParameterId parameter) {
  File& of = files_[static_cast<std::size_t>(parameter)];
  if (of.buffer == kNoBuffer) {
    of.buffer = emitter_.allocate(rules_.aligned(of.bytes), type_, Role::Parameters, "parameter partition in a file",
                                  parameter, false, Space::Nvme);
  }
  const BufferRange from = buffer(parameter);
  copy_to_file(of, from.buffer, from.offset);
}

void ParameterSwapper::read(ParameterId parameter) {
  const File& of = files_[static_cast<std::size_t>(parameter)];
  copy_from_file(of, take(parameter, of.bytes));
}

// swap_into_buffer.
void ParameterSwapper::read_into(ParameterId parameter, const BufferRange& to, bool pinned) {
  const File& of = files_[static_cast<std::size_t>(parameter)];
  if (pinned && to.bytes == rules_.aligned(to.bytes)) return copy_from_file(of, to);
  const BufferRange through = take(parameter, to.bytes);
  copy_from_file(of, through);
  emitter_.begin();
  emitter_.read(through.buffer, through.offset, through.bytes);
  emitter_.write(to.buffer, to.offset, to.bytes);
  emitter_.compute("move partition to flat buffer");
  give_back(parameter);
}

void ParameterSwapper::reserve_for_updates(Bytes bytes) {
  updates_ = emitter_.allocate(bytes, type_, Role::RuntimeBuffers, "swap buffer of new parameters", kNone, true,
                               Space::Locked);
  emitter_.mark_scratch(updates_);  // Zeros, which nobody reads.
  emitter_.begin();
  emitter_.write(updates_);
  emitter_.compute("make swap buffers");
}

}  // namespace dsplan
