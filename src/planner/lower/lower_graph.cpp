#include "planner/lower/lower_graph.h"

#include "planner/lower/autograd/tape.h"
#include "planner/lower/eager.h"

namespace dsplan {
namespace {

// Keeps the tensors of the file and their gradients. The first gradient of a leaf becomes `.grad`; what else comes is
// added to it.
class GraphRuntime final : public TrainingRuntime {
 public:
  GraphRuntime(const BuiltOpGraph& built, Emitter& emitter)
      : built_(built), emitter_(emitter), leaves_(built.model.parameters.size(), kNoBuffer), gradients_(leaves_) {}

  void initialise(const std::vector<BufferId>& /*buffers*/) override {
    for (const Tensor& tensor : built_.graph.tensors) {
      if (tensor.producer != kNone) continue;
      const Storage& storage = built_.graph.storages[tensor.storage];
      const Role role = tensor.requires_grad ? Role::Parameters : Role::Inputs;
      Variable made = Eager(emitter_).empty(storage.bytes, tensor.dtype, {role, "tensor"}, storage.parameter);
      Work(emitter_).write(made).run(Body::LoadParameter, "make tensor");
      leaves_[static_cast<std::size_t>(storage.parameter)] = made.hand_over();
    }
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId buffer = leaves_[static_cast<std::size_t>(parameter)];
    return {buffer, Bytes(0), emitter_.size(buffer)};
  }

  [[nodiscard]] bool holds_gradient(ParameterId parameter) const override {
    return gradients_[static_cast<std::size_t>(parameter)] != kNoBuffer;
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    accumulate_gradient(emitter_, gradients_[static_cast<std::size_t>(parameter)], gradient);
  }

  void step(bool) override {}

 private:
  const BuiltOpGraph& built_;
  Emitter& emitter_;
  std::vector<BufferId> leaves_;  // By ParameterId, as are the gradients.
  std::vector<BufferId> gradients_;
};

// What is made of the outputs before they are let go of: one number, on the host.
Variable make_seed(Emitter& emitter, Tape& tape) {
  Variable seed =
      Eager(emitter).empty(Bytes(4), DType::Float32, {Role::Temporaries, "seed of backward"}, kNone, Space::Pageable);
  emitter.mark_scratch(seed.id());
  Work look(emitter);
  tape.read_outputs();
  look.write(seed).run(Body::Nothing, "read the outputs");
  return seed;
}

}  // namespace

Schedule lower_graph(const BuiltOpGraph& built, const RecipeBook& recipes, bool keep_outputs) {
  Emitter emitter(built.graph.nodes.size() * 12 + built.model.parameters.size() * 4 + 64);
  emitter.at(Pass::Setup);
  emitter.mark(Moment::StretchBegins, Stretch::Init);
  GraphRuntime runtime(built, emitter);
  runtime.initialise({});
  emitter.mark(Moment::StretchEnds, Stretch::Init);

  const GraphFacts facts(built.model, built.graph, recipes);
  Tape tape(facts, built.checkpoint, emitter, runtime, {}, {});
  DeepSpeedCheckpoints deepspeed(built.checkpoint.deepspeed, true, 1, emitter);
  tape.attach(deepspeed);
  emitter.at(Pass::Forward);
  emitter.mark(Moment::StretchBegins, Stretch::FirstStep);
  emitter.mark(Moment::ForwardBegins, Stretch::FirstStep);
  tape.forward();
  emitter.at(Pass::Forward);
  emitter.mark(Moment::ForwardEnds, Stretch::FirstStep);
  Variable seed = make_seed(emitter, tape);
  if (!keep_outputs) tape.drop_outputs();
  emitter.at(Pass::Backward);
  emitter.mark(Moment::BackwardBegins, Stretch::FirstStep);
  if (built.has_gradient) {
    tape.backward_from(seed.hand_over());
  } else {
    seed.reset(Reason::Loop);
  }
  emitter.mark(Moment::BackwardEnds, Stretch::FirstStep);
  emitter.mark(Moment::StretchEnds, Stretch::FirstStep);
  return emitter.finish();
}

}  // namespace dsplan
