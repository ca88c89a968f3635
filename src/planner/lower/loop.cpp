#include "planner/lower/loop.h"

#include <utility>

#include "planner/lower/runtimes/runtime_base.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

DType made_in(const ModelBuffer& buffer, const Training& training) {
  const bool follows = buffer.follows_model_dtype || (training.cast_model && is_floating(buffer.dtype));
  if (is_fsdp(training.runtime) && follows) return training.loaded_dtype();
  return buffer_dtype(buffer, training);
}

}  // namespace

// If the model is made in the host's memory, all of it is; its buffers are moved, the parameters will be.
std::vector<BufferId> Loop::init() {
  emitter_.at(Pass::Setup);
  emitter_.mark(Moment::StretchBegins, Stretch::Init);
  std::vector<BufferId> buffers(model_.buffers.size(), kNoBuffer);
  const auto of = [&](ModuleId module, std::string_view end, const auto& act) {
    for (std::size_t at = 0; at < buffers.size(); ++at) {
      const ModelBuffer& buffer = model_.buffers[at];
      if (buffer.module == module && std::string_view(buffer.name).ends_with(end)) act(at);
    }
  };
  const BuffersOf make_of([&](ModuleId module, std::string_view end) {
    of(module, end, [&](std::size_t at) {
      const bool later = model_.buffers[at].by_length && job_.training.fsdp.cpu_offload;  // to_empty on the host.
      if (buffers[at] == kNoBuffer && !later) buffers[at] = make_buffer(model_.buffers[at], Space::Device);
    });
  });
  const Training& training = job_.training;
  const bool cut = training.under_zero_init();  // As they are made.
  const bool said = is_fsdp(training.runtime) || training.model_init == ModelInit::Host || cut;
  const ModelInit where = said ? training.model_init : ModelInit::Device;
  const bool on_host = where == ModelInit::Host || where == ModelInit::Rank0;
  if (on_host) {
    for (std::size_t at = 0; at < buffers.size(); ++at) buffers[at] = make_buffer(model_.buffers[at], Space::Pageable);
  }
  const BuffersOf move_of([&](ModuleId module, std::string_view end) {
    of(module, end, [&](std::size_t at) {
      if (buffers[at] == kNoBuffer) return;
      buffers[at] = move_to_device(emitter_, buffers[at], {Role::ModuleBuffers, "buffer"});
    });
  });
  const auto record = [&] {
    if (Recording* recording = emitter_.recording()) recording->module_buffers(buffers);
  };
  if (on_host) {
    record();
    runtime_.build(where, move_of);
  } else {
    runtime_.build(where, make_of);
    record();
  }
  if (model_.code == ModelCode::Torchtitan) init_weights(model_, job_, rank_, emitter_, buffers);
  runtime_.initialise(buffers);
  emitter_.mark(Moment::StretchEnds, Stretch::Init);
  return buffers;
}

void Loop::run(std::int64_t steps, const TapeOf& tape_of) {
  const std::int64_t predicted = job_.training.steps();
  train_step(Stretch::FirstStep, tape_of);
  for (std::int64_t k = 2; k < predicted; ++k) train_step(Stretch::MiddleStep, tape_of);
  train_step(Stretch::SecondStep, tape_of);
  for (std::int64_t k = predicted; k < steps; ++k) train_step(Stretch::MiddleStep, tape_of);
  if (runtime_.saves()) save();
}

void Loop::train_step(Stretch stretch, const TapeOf& tape_of) {
  stretch_ = stretch;
  emitter_.mark(Moment::StretchBegins, stretch);
  if (is_torchtitan()) {
    if (held_ != nullptr) held_->drop_batch();
    titan_.begin();
  }
  for (micro_batch_ = 0; micro_batch_ < job_.training.grad_accum; ++micro_batch_) {
    Tape& tape = tape_of(batches_++);
    if (hooks != nullptr) hooks->enter();
    make_batch(tape);
    forward(tape);
    backward(tape);
    if (hooks != nullptr) hooks->exit();
    print("Engine before step");  // engine.step() is called for every micro-batch, and does nothing before the last.
    if (!is_boundary()) print("Engine after step");
  }
  step();
  if (is_torchtitan()) titan_.end(stretch == Stretch::FirstStep);
  emitter_.mark(Moment::StretchEnds, stretch);
}

void Loop::make_batch(Tape& tape) {
  emitter_.at(Pass::Forward);
  mark(Moment::MicroBatchBegins);
  if (is_torchtitan() && counts_tokens(job_.training) && micro_batch_ > 0) titan_.keep_ids(held_->take_batch());
  tape.make_batch();
  if (held_ != nullptr && held_ != &tape) held_->drop_batch();
  held_ = &tape;
}

void Loop::forward(Tape& tape) {
  print("Engine before forward");
  runtime_.forward_begins();
  mark(Moment::ForwardBegins);
  if (before_first_forward) std::exchange(before_first_forward, nullptr)();
  tape.forward();
  runtime_.forward_returns(true);
  if (holds_loss(job_.training.loop)) outputs_ = tape.outputs();
  if (is_torchtitan()) titan_.forward_returns(tape.outputs());
  mark(Moment::ForwardEnds);
}

void Loop::backward(Tape& tape) {
  emitter_.at(Pass::Backward);
  mark(Moment::BackwardBegins);
  std::vector<Variable> scaled = scale_loss(tape.loss());
  print("Engine before backward");
  runtime_.backward_begins(is_boundary());
  tape.backward();
  emitter_.at(Pass::Backward);
  runtime_.backward_ends(is_boundary());  // A framework's backward() reduces before it returns to the loop.
  print("Engine after backward");
  for (Variable& loss : scaled) loss.reset();
  if (is_torchtitan()) titan_.backward_returns();
  tape.drop_loss(outputs_);
  // AxolotlDPOTrainer.training_step: torch.cuda.empty_cache() after each.
  if (job_.training.loss == Loss::DpoRows || job_.training.loss == Loss::IpoRows) emitter_.empty_cache();
  mark(Moment::BackwardEnds);
}

void Loop::step() {
  emitter_.at(Pass::Step);
  emitter_.mark(Moment::StepBegins, stretch_);
  runtime_.step(stretch_ == Stretch::FirstStep);  // And zero_grad.
  print("Engine after step");
  emitter_.mark(Moment::StepEnds, stretch_);
}

void Loop::save() {
  emitter_.at(Pass::Save);
  emitter_.mark(Moment::StretchBegins, Stretch::Save);
  runtime_.save();
  emitter_.mark(Moment::StretchEnds, Stretch::Save);
}

// Whole on every rank. kNoBuffer where this transformers has none.
BufferId Loop::make_buffer(const ModelBuffer& buffer, Space space) {
  if (!buffer_exists(buffer, job_.training.transformers)) return kNoBuffer;
  const DType dtype = made_in(buffer, job_.training);
  Variable table = Eager(emitter_).empty(storage(shape_of(buffer, job_.training).elements(), dtype), dtype,
                                         {Role::ModuleBuffers, "buffer"}, kNone, space);
  Work(emitter_).write(table).run(Body::LoadBuffer, "load buffer");
  return table.hand_over();
}

// engine.backward: the loss by the number of micro-batches, and under ZeRO times the loss scale, whatever the two are;
// BF16_Optimizer has no loss scale. Both stay until it returns.
std::vector<Variable> Loop::scale_loss(BufferId loss) {
  std::vector<Variable> made;
  if (job_.training.runtime != Runtime::DeepSpeed) return made;
  Eager eager(emitter_);
  made.push_back(
      eager.clone(loss, {Role::Temporaries, "loss by micro-batches", "engine.py, backward"}, "loss by micro-batches"));
  if (job_.training.zero.stage > 0 && !uses_bf16_optimizer(job_.training)) {
    made.push_back(
        eager.clone(made.back(), {Role::Temporaries, "scaled loss", "fp16/loss_scaler.py, scale_loss"}, "scaled loss"));
  }
  emitter_.mark_scratch(made.back().id());
  return made;
}

// Where DeepSpeed's engine calls see_memory_usage.
void Loop::print(const char* text) {
  if (job_.training.runtime == Runtime::DeepSpeed) emitter_.print(text);
}

}  // namespace dsplan
