// A runtime for tests: parameters stay where they are, and the order in which gradients complete is written down.
#pragma once

#include <string>
#include <vector>

#include "planner/lower/autograd/recipes.h"
#include "planner/lower/autograd/tape.h"
#include "planner/lower/emitter.h"

class Recorder final : public dsplan::TrainingRuntime {
 public:
  Recorder(const dsplan::ModelSpec& model, dsplan::Emitter& emitter) : model_(model), emitter_(emitter) {}
  void initialise(const std::vector<dsplan::BufferId>& /*buffers*/) override {
    for (const dsplan::Parameter& p : model_.parameters) {
      buffers_.push_back(emitter_.allocate(dsplan::storage(p.shape.elements(), dsplan::DType::BFloat16),
                                           dsplan::DType::BFloat16, {dsplan::Role::Parameters, "parameter"}));
      emitter_.begin();
      emitter_.write(buffers_.back());
      emitter_.compute(dsplan::Body::LoadParameter, "load");
    }
  }
  [[nodiscard]] dsplan::ParameterPlace place(dsplan::ParameterId id) const override {
    const dsplan::BufferId buffer = buffers_[static_cast<std::size_t>(id)];
    return {buffer, dsplan::Bytes(0), emitter_.size(buffer)};
  }
  void gradient_ready(dsplan::ParameterId id, dsplan::BufferId gradient) override {
    order.push_back(model_.parameter_at(id).name);
    emitter_.release(gradient, dsplan::Reason::GradientHeld);
  }
  void step(bool) override {}

  std::vector<std::string> order;

 private:
  const dsplan::ModelSpec& model_;
  dsplan::Emitter& emitter_;
  std::vector<dsplan::BufferId> buffers_;
};

// The names of `model`'s parameters in the order in which one backward pass of `graph` completes their gradients.
inline std::vector<std::string> ready_order(const dsplan::ModelSpec& model, const dsplan::Graph& graph,
                                            const dsplan::Checkpointing& checkpointing) {
  const dsplan::RecipeBook recipes(graph);
  dsplan::Emitter emitter(4096);
  Recorder recorder(model, emitter);
  recorder.initialise({});
  std::vector<dsplan::BufferId> buffers;
  for (const dsplan::ModelBuffer& b : model.buffers) {
    buffers.push_back(emitter.allocate(dsplan::storage(b.shape.elements(), b.dtype), b.dtype,
                                       {dsplan::Role::ModuleBuffers, "buffer"}));
  }
  const dsplan::GraphFacts facts(model, graph, recipes);
  dsplan::Tape tape(facts, checkpointing, emitter, recorder, buffers, {});
  tape.make_batch();
  tape.forward();
  tape.backward();
  return recorder.order;
}
