#include "planner/lower/stage12_offload.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

// The 16-bit copy on the host through which weights travel back.
constexpr Version kCastsOnHost{0, 17, 0};
// Masters are pinned only if asked for.
constexpr Version kPinsMasterIfAsked{0, 18, 3};

}  // namespace

Stage12Offload::Stage12Offload(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : Stage12Runtime(job, model, rank, emitter), sums_(trained_.size(), kNoBuffer) {}

Stage12Offload::Fragment Stage12Offload::fragment_of(std::size_t parameter) const {
  const std::int64_t first = rank() * partition_;
  const std::int64_t from = std::max(offset_[parameter], first);
  const std::int64_t to = std::min(offset_[parameter] + trained_[parameter].elements, first + partition_);
  return {from - offset_[parameter], from - first, to - from};
}

BufferId Stage12Offload::zeros(Bytes bytes, DType type, Role role, Label label, BufferId* source) {
  const BufferId made = emitter_.allocate(bytes, type, role, label, kNone, false, Space::Pageable);
  if (!pins()) return made;
  emitter_.mark_scratch(made);
  const BufferId result = emitter_.allocate(bytes, type, role, label, kNone, false, Space::Pinned);
  emitter_.begin();
  emitter_.write(made);
  emitter_.compute("zeros on the host");
  if (source != nullptr) {
    *source = made;
  } else {
    emitter_.release(made, Reason::LastUse);
  }
  return result;
}

BufferId Stage12Offload::pinned(BufferId from, DType type, Role role, Label label) {
  const BufferId result = emitter_.allocate(emitter_.size(from), type, role, label, kNone, false, Space::Pinned);
  emitter_.begin();
  emitter_.read(from);
  emitter_.write(result);
  emitter_.compute("pin memory");
  emitter_.release(from, Reason::LastUse);
  return result;
}

void Stage12Offload::copy_to_host(BufferId from, BufferId to) {
  emitter_.begin();
  emitter_.read(from);
  emitter_.write(to);
  emitter_.compute("copy to host");
}

// The slice is cloned on the device and cast on the host: a copy that blocks converts where the host is
// (ATen/native/cuda/Copy.cu, copy_kernel_cuda), through a pageable tensor of the source's dtype.
void Stage12Offload::create_master() {
  const BufferId clone =
      emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Temporaries, "clone of the partition");
  emitter_.begin();
  emitter_.read(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
  emitter_.write(clone);
  emitter_.compute("clone partition");
  const DType wide = training().master_dtype;
  master_ = emitter_.allocate(in_master_dtype(partition_), wide, Role::Optimizer, "master weights", kNone, false,
                              Space::Pageable);
  if (wide == dtype()) {
    copy_to_host(clone, master_);
  } else {
    const BufferId narrow = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Temporaries,
                                              "copy between devices", kNone, false, Space::Pageable);
    copy_to_host(clone, narrow);
    emitter_.begin();
    emitter_.read(narrow);
    emitter_.write(master_);
    emitter_.compute("cast to master");
    emitter_.release(narrow, Reason::LastUse);
  }
  emitter_.release(clone, Reason::PythonFrame);
  if (pins() || training().deepspeed < kPinsMasterIfAsked) {
    master_ = pinned(master_, wide, Role::Optimizer, "master weights");
  }
  if (training().deepspeed >= kCastsOnHost) {
    staging_ = zeros(in_model_dtype(partition_), dtype(), Role::RuntimeBuffers, "16-bit parameters on the host",
                     &staging_source_);
  }
  create_scratch();
}

// As large as the largest parameter: one on the host, which nobody uses, and one on the device.
void Stage12Offload::create_scratch() {
  std::int64_t largest = 0;
  for (const Leaf& leaf : trained_) largest = std::max(largest, leaf.elements);
  const Bytes bytes = in_model_dtype(largest);
  const BufferId idle = zeros(bytes, dtype(), Role::RuntimeBuffers, "gradient scratch of the host");
  scratch_ = emitter_.allocate(bytes, dtype(), Role::RuntimeBuffers, "gradient scratch of the device");
  for (BufferId buffer : {idle, scratch_}) {
    emitter_.mark_scratch(buffer);
    emitter_.begin();
    emitter_.write(buffer);
    emitter_.compute("zero scratch");
  }
}

// The gradient stays; what no parameter fills of it stays zero.
void Stage12Offload::create_gradients() {
  gradient_ = zeros(in_master_dtype(partition_), training().master_dtype, Role::Gradients, "gradient on the host");
  if (padding() > 0) {
    emitter_.begin();
    emitter_.write(gradient_, in_master_dtype(partition_ - padding()), in_master_dtype(padding()));
    emitter_.compute("zero padding");
  }
  if (staging_source_ != kNoBuffer) emitter_.release(std::exchange(staging_source_, kNoBuffer), Reason::PythonFrame);
}

void Stage12Offload::backward_begins(bool boundary) {
  if (zero().stage == 2) ++micro_batch_;
  Stage12Runtime::backward_begins(boundary);
}

// Since 0.19.8 a gradient larger than the bucket is cloned, so that nothing else uses its storage while it is copied
// (reduce_independent_p_g_buckets_and_remove_grads).
BufferId Stage12Offload::own_storage(std::size_t parameter, BufferId gradient) {
  if (training().deepspeed < kSumsOfPartition) return gradient;
  const BufferId clone = emitter_.allocate(in_model_dtype(trained_[parameter].elements), staged_, Role::RuntimeBuffers,
                                           "clone of a large gradient");
  emitter_.begin();
  emitter_.read(gradient);
  emitter_.write(clone);
  emitter_.compute("clone gradient");
  emitter_.release(gradient, Reason::GradientHeld);
  return clone;
}

// Between boundaries `.grad` of this rank's parameters is cleared with all others, when the backward ends.
void Stage12Offload::let_go(std::size_t parameter, BufferId gradient) {
  if (kept_offset_[parameter] >= 0 && !boundary_) {
    late_.push_back(gradient);
  } else {
    Stage12Runtime::let_go(parameter, gradient);
  }
}

// copy_grads_in_partition. Sums in fp32 are the partition's on the device, and travel at the boundary.
void Stage12Offload::keep(std::size_t parameter, BufferId from, std::int64_t offset) {
  if (kept_offset_[parameter] < 0) return;
  const Fragment fragment = fragment_of(parameter);
  if (sums_partition_) {
    if (!boundary_) return;
    const DType type = training().grad_accum_dtype;
    const Piece sums{accumulated_, storage(Elements(fragment.target), type), storage(Elements(fragment.count), type)};
    take_norm(sums, parameter);
    scan(sums);
    take(sums, type, fragment);
    return;
  }
  const Piece whole{from, staged(offset), staged(trained_[parameter].elements)};
  const Piece piece{from, staged(offset + fragment.source), staged(fragment.count)};
  if (sums_on_host()) accumulate_on_host(parameter, whole, piece);
  if (!boundary_) return;
  take_norm(piece, parameter);
  scan(whole);
  take(piece, staged_, fragment);
}

// Until #7981 (0.19.0) wherever micro-batches are accumulated, under ZeRO-1 too.
bool Stage12Offload::sums_on_host() const {
  if (training().deepspeed < kSumsWhereNeeded) return training().grad_accum > 1;
  return zero().stage == 2 && (micro_batch_ > 0 || !boundary_);
}

// async_accumulate_grad_in_cpu_via_gpu: what the host has comes into the scratch and is added, and the sum goes back;
// at the boundary nobody reads what went back, nor what is not `own`.
void Stage12Offload::accumulate_on_host(std::size_t parameter, const Piece& gradient, const Piece& own) {
  BufferId& sum = sums_[parameter];
  const bool is_new = sum == kNoBuffer;
  if (is_new) sum = zeros(gradient.bytes, dtype(), Role::Gradients, "sum of a gradient on the host");
  const bool added_in_vain = training().deepspeed < kSumsWhereNeeded && !boundary_;
  if (micro_batch_ > 0 && !is_new && !added_in_vain) {
    emitter_.begin();
    emitter_.read(sum);
    emitter_.write(scratch_, Bytes(0), gradient.bytes);
    emitter_.compute("copy to device");
    const Piece& added = boundary_ ? own : gradient;
    emitter_.begin();
    emitter_.read(scratch_, added.offset - gradient.offset, added.bytes);
    emitter_.read(added.buffer, added.offset, added.bytes);
    emitter_.write(added.buffer, added.offset, added.bytes);
    emitter_.compute("add gradients");
  }
  // Until #7967 (0.19.0) the sum went back with the first micro-batch alone, and then under ZeRO-1 at the boundary too.
  const bool goes_back = training().deepspeed < kSumsWhereNeeded ? micro_batch_ <= 0 : !boundary_;
  if (!goes_back) return;
  if (boundary_) emitter_.mark_scratch(sum);
  emitter_.begin();
  emitter_.read(gradient.buffer, gradient.offset, gradient.bytes);
  emitter_.write(sum);
  emitter_.compute("copy to host");
}

// set_norm_for_param_grad_in_gpu: the scalar is kept until the step.
void Stage12Offload::take_norm(const Piece& piece, std::size_t parameter) {
  const Bytes bytes = piece.bytes * (8 / bytes_per_element(sums_partition_ ? training().grad_accum_dtype : staged_));
  const BufferId wide = emitter_.allocate(bytes, DType::Float64, Role::RuntimeBuffers, "gradient in fp64");
  emitter_.begin();
  emitter_.read(piece.buffer, piece.offset, piece.bytes);
  emitter_.write(wide);
  emitter_.compute("cast gradient");
  norms_.push_back(emitter_.allocate(Bytes(8), DType::Float64, Role::Temporaries, "gradient norm"));
  emitter_.begin();
  emitter_.read(wide);
  emitter_.write(norms_.back());
  emitter_.as(Body::SquareSum);
  record_squares(trained_[parameter].id);
  emitter_.compute("gradient norm");
  emitter_.release(wide, Reason::LastUse);
}

// update_offload_overflow_tracker looks at every gradient, in any dtype; before #8325 through an fp32 copy, two masks,
// their union and its fp32 form.
void Stage12Offload::scan(const Piece& gradient) {
  if (training().deepspeed >= kScanWithoutCopies) return;
  const std::int64_t width = bytes_per_element(sums_partition_ ? training().grad_accum_dtype : staged_);
  const std::int64_t each = width == 4 ? 7 : 11;
  const BufferId masks = emitter_.allocate(Bytes(checked_mul(gradient.bytes.value() / width, each)), DType::UInt8,
                                           Role::Temporaries, "overflow scan");
  emitter_.mark_scratch(masks);
  emitter_.begin();
  emitter_.read(gradient.buffer, gradient.offset, gradient.bytes);
  emitter_.write(masks);
  emitter_.compute("overflow scan");
  emitter_.release(masks, Reason::LastUse);
}

// async_inplace_copy_grad_to_fp32_buffer_from_gpu: cast on the device, then copied.
void Stage12Offload::take(const Piece& piece, DType type, const Fragment& fragment) {
  const DType wide = training().master_dtype;
  const Bytes target = in_master_dtype(fragment.target);
  const Bytes bytes = in_master_dtype(fragment.count);
  BufferId cast = kNoBuffer;
  if (type != wide) {
    cast = emitter_.allocate(bytes, wide, Role::RuntimeBuffers, "gradient on its way to the host");
    emitter_.begin();
    emitter_.read(piece.buffer, piece.offset, piece.bytes);
    emitter_.write(cast);
    emitter_.compute("cast gradient");
  }
  emitter_.begin();
  if (cast != kNoBuffer) {
    emitter_.read(cast);
  } else {
    emitter_.read(piece.buffer, piece.offset, piece.bytes);
  }
  emitter_.write(gradient_, target, bytes);
  emitter_.compute("copy to host");
  if (cast != kNoBuffer) emitter_.release(cast, Reason::LastUse);
}

void Stage12Offload::step(bool first) {
  if (trained_.empty()) return;
  micro_batch_ = -1;
  print("In step before checking overflow");
  if (scans()) control_all_reduce(Bytes(1), "overflow flag", {{{gradient_, Bytes(0), emitter_.size(gradient_)}}});
  print("Before norm calculation");
  share_norm();
  print("After norm before optimizer");
  update(first);
  print("After optimizer before all-gather");
  if (accumulated_ != kNoBuffer) {
    if (padding() > 0) emitter_.mark_scratch(accumulated_);  // The zeros behind its last fragment stay unread.
    emitter_.release(std::exchange(accumulated_, kNoBuffer), Reason::GradientHeld);
  }
  for (BufferId norm : norms_) emitter_.release(norm, Reason::PythonFrame);  // reset_cpu_buffers.
  norms_.clear();
  gather_parameters();
  print("After zero_optimizer step");
  drop_late();  // zero_grad.
}

// complete_grad_norm_calculation_for_cpu_offload: the sum of squares is made on the host; the norm stays there.
void Stage12Offload::share_norm() {
  const BufferId norm = emitter_.allocate(Bytes(4), DType::Float32, Role::Temporaries, "gradient norm");
  emitter_.mark_scratch(norm);
  emitter_.begin();
  read_all(norms_);
  emitter_.write(norm);
  if (emitter_.recording() != nullptr) emitter_.recording()->reads({});  // Squares have been added up already.
  emitter_.compute("gradient norm");
  share_control(norm, Group::DataParallel);
  share_control(norm, Group::TensorParallel);
  emitter_.release(norm, Reason::PythonFrame);
}

// On the host; its state is never pinned (ops/adam/cpu_adam.py, ops/lion/cpu_lion.py).
void Stage12Offload::update(bool first) {
  if (first) {
    for (const StateTensor& tensor :
         optimizer_state(training().optimizer, Shape{partition_}, training().master_dtype, false)) {
      state_.push_back(
          emitter_.allocate(tensor.bytes, tensor.dtype, Role::Optimizer, tensor.label, kNone, false, Space::Pageable));
    }
    if (!state_.empty()) {
      emitter_.begin();
      write_all(state_);
      emitter_.compute("create optimizer state");
    }
  }
  emitter_.begin();
  emitter_.read(master_);
  emitter_.read(gradient_);
  read_all(state_);
  emitter_.write(master_);
  write_all(state_);
  emitter_.states_of_update(state_.size());
  emitter_.compute("optimizer update");
  if (training().deepspeed < kCastsOnHost) return bring_master();
  emitter_.begin();
  emitter_.read(master_);
  emitter_.write(staging_);
  emitter_.compute("copy master to 16 bit");
  emitter_.begin();
  emitter_.read(staging_);
  emitter_.write(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
  emitter_.compute("copy to device");
}

// Until #7309 the device had the master itself for a moment.
void Stage12Offload::bring_master() {
  const DType wide = training().master_dtype;
  const BufferId here =
      emitter_.allocate(in_master_dtype(partition_), wide, Role::RuntimeBuffers, "master weights on the device");
  emitter_.begin();
  emitter_.read(master_);
  emitter_.write(here);
  emitter_.compute("copy to device");
  emitter_.begin();
  emitter_.read(here);
  emitter_.write(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
  emitter_.compute("copy master to parameters");
  emitter_.release(here, Reason::LastUse);
}

}  // namespace dsplan
