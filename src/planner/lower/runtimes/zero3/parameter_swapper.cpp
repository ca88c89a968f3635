#include "planner/lower/runtimes/zero3/parameter_swapper.h"

#include "core/error.h"
#include "core/format.h"

namespace dsplan {

ParameterSwapper::ParameterSwapper(const Zero& zero, DType type, std::size_t parameters, Emitter& emitter)
    : rules_(zero),
      type_(type),
      count_(zero.offload_param.buffer_count),
      buffer_bytes_(rules_.aligned(storage(zero.offload_param.buffer_size, type))),
      eager_(emitter),
      files_(parameters) {}

// An ordinary tensor gives the size and the dtype of the one that is locked.
void ParameterSwapper::make_pool() {
  const Bytes bytes = buffer_bytes_ * count_;
  if (bytes == Bytes(0)) return;
  const Variable like = eager_.empty(bytes, type_,
                                     {Role::RuntimeBuffers, "swap buffers before they are locked",
                                      "swap_tensor/partitioned_param_swapper.py, _configure_aio", /*capacity=*/true},
                                     kNone, Space::Pageable);
  pool_ = eager_.empty(bytes, type_,
                       {Role::RuntimeBuffers, "swap buffers of parameters",
                        "swap_tensor/partitioned_param_swapper.py, _configure_aio", /*capacity=*/true},
                       kNone, Space::Locked);
  like.mark_scratch();
  eager_.zero(Part(like.id(), Bytes(0), Bytes(bytes_per_element(type_))), "make swap buffers");
  for (std::int64_t at = 0; at < count_; ++at) free_.push_back(at);
}

Part ParameterSwapper::take(ParameterId parameter, Bytes bytes) {
  File& of = at(parameter);
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
  File& of = at(parameter);
  free_.push_back(of.slot);
  of.slot = -1;
}

Part ParameterSwapper::buffer(ParameterId parameter) const {
  const File& of = at(parameter);
  return {pool_.id(), buffer_bytes_ * of.slot, of.bytes};
}

void ParameterSwapper::write(ParameterId parameter) {
  File& of = at(parameter);
  if (!of.file) {
    of.file = eager_.empty(rules_.aligned(of.bytes), type_,
                           {Role::Parameters, "parameter partition in a file",
                            "swap_tensor/partitioned_param_swapper.py, swap_out_and_release"},
                           parameter, Space::Nvme);
  }
  write_file(eager_, of.file, buffer(parameter));
}

void ParameterSwapper::read(ParameterId parameter) {
  const File& of = at(parameter);
  read_file(eager_, take(parameter, of.bytes), of.file);
}

// swap_into_buffer.
void ParameterSwapper::read_into(ParameterId parameter, const Part& to, bool pinned) {
  const File& of = at(parameter);
  if (pinned && to.bytes == rules_.aligned(to.bytes)) return read_file(eager_, to, of.file);
  const Part through = take(parameter, to.bytes);
  read_file(eager_, through, of.file);
  eager_.copy(to, through, "move partition to flat buffer");
  give_back(parameter);
}

void ParameterSwapper::reserve_for_updates(Bytes bytes) {
  updates_ = eager_.empty(bytes, type_,
                          {Role::RuntimeBuffers, "swap buffer of new parameters",
                           "swap_tensor/partitioned_param_swapper.py, reserve_partitioned_swap_space",
                           /*capacity=*/true},
                          kNone, Space::Locked);
  updates_.mark_scratch();  // Zeros, which nobody reads.
  eager_.zero(updates_, "make swap buffers");
}

void ParameterSwapper::write_updates(const std::vector<ParameterId>& parameters, const std::vector<Part>& from) {
  std::vector<Part> places;
  Bytes offset;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    places.emplace_back(updates_.id(), offset, at(parameters[index]).bytes);
    eager_.copy_across(places.back(), from[index], "cast to partitions");
    offset += rules_.aligned(places.back().bytes);
  }
  for (std::size_t index = 0; index < parameters.size(); ++index)
    write_file(eager_, at(parameters[index]).file, places[index]);
}

}  // namespace dsplan
