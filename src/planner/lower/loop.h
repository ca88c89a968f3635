// The training loop whose memory dsplan predicts. It reads like the script that it stands for:
//
//   model, optimizer = build()              init
//   for batch in loader:                    make_batch: the next batch is there before the one before it goes
//       loss = model(**batch).loss          forward: the loss is kept, all other outputs die
//       engine.backward(loss); del loss     backward: the graph dies with the loss
//       engine.step(); zero_grad()          step: after the last micro-batch of a step
//   engine.save_checkpoint(...)             save
//
// What a line does to memory is decided elsewhere: `tape.h` says what autograd makes, keeps and lets go of between the
// batch and the gradients; `runtime.h` says what PyTorch's or DeepSpeed's engine does with parameters, gradients and
// optimizer states around it. The loop says when, and holds nothing but the batch and the loss.
//
// Each line writes into one schedule (emitter.h), between two marks, so that readers know where they are
// (core/schedule.h, Moment). A schedule has stretches: init, the first step, the second step; with a list of sequence
// lengths as many middle steps between the two as the list asks for; and save, where saving takes memory of its own.
#pragma once

#include <functional>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "planner/lower/autograd/tape.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"
#include "planner/lower/torchtitan_step.h"

namespace dsplan {

class Loop {
 public:
  // All references must outlive the loop.
  Loop(const ModelSpec& model, const Job& job, std::int64_t rank, Emitter& emitter, TrainingRuntime& runtime)
      : model_(model), job_(job), rank_(rank), emitter_(emitter), runtime_(runtime), titan_(emitter, job) {}

  // Everything that is there before the first batch. Returns the model's own buffers on the device, by index into
  // ModelSpec::buffers; kNoBuffer where this transformers has none.
  [[nodiscard]] std::vector<BufferId> init();

  // As the model is called for the first time: the batch is there already.
  std::function<void()> before_first_forward;

  // Around each micro-batch, as a Trainer's training_step; null: none.
  OffloadActivations* hooks = nullptr;

  // The tape of a micro-batch, counted from the first step's first: its batch, and its graph at the batch's length.
  using TapeOf = std::function<Tape&(std::int64_t)>;
  // All `steps` >= Training::steps(), then save. The step that is predicted, the second, is the last of those that
  // Training::steps() asks for. Those behind it are middle steps, so that it is also the one that is measured: under
  // ZeRO-3 without accumulation the second step compares the trace that the first recorded, and a third has nothing to
  // compare.
  void run(std::int64_t steps, const TapeOf& tape_of);

 private:
  void train_step(Stretch stretch, const TapeOf& tape_of);
  [[nodiscard]] bool is_torchtitan() const { return job_.training.loop == LoopKind::Torchtitan; }
  void make_batch(Tape& tape);
  void forward(Tape& tape);
  void backward(Tape& tape);
  void step();
  void save();

  [[nodiscard]] BufferId make_buffer(const ModelBuffer& buffer, Space space);
  [[nodiscard]] std::vector<Variable> scale_loss(BufferId loss);
  [[nodiscard]] bool is_boundary() const { return micro_batch_ + 1 == job_.training.grad_accum; }
  void mark(Moment moment) { emitter_.mark(moment, stretch_, static_cast<std::int32_t>(micro_batch_)); }
  void print(const char* text);

  const ModelSpec& model_;
  const Job& job_;
  std::int64_t rank_;  // Among the data-parallel ones.
  Emitter& emitter_;
  TrainingRuntime& runtime_;
  Stretch stretch_ = Stretch::Init;  // Under way.
  std::int64_t micro_batch_ = 0;     // Of the step under way.
  std::int64_t batches_ = 0;         // Made so far.
  Tape* held_ = nullptr;             // Whose batch is there.
  Variables outputs_;                // Of the latest forward, where the loop has a variable for them.
  TorchtitanStep titan_;             // What the variables of torchtitan's train_step hold.
};

}  // namespace dsplan
