// ZeRO-3: how the model comes into partitions. Built under zero.Init it is cut module by module as it is made
// (partition_parameters.py, _post_init_method); otherwise it is given to the engine whole (engine.py,
// _configure_distributed_model), and the optimizer's wrapper cuts it (parameter_offload.py,
// _convert_to_zero_parameters).
#include <algorithm>
#include <utility>

#include "planner/lower/stage3_runtime.h"

namespace dsplan {

void Stage3Runtime::construct() {
  if (training().under_zero_init()) {
    build_in_pieces();
    print_model_given();
    print("DeepSpeed Engine: After configure distributed model");
    begin_wrapper();
  } else {
    cut_whole_model();
  }
  print("DeepSpeedZeRoOffload initialize [end]");
  if (trained_.empty()) drop_tied();
}

// A module's own parameters are whole until its constructor returns, then each is broadcast and cut in its turn. A tied
// tensor is made, and cut, before it is tied.
void Stage3Runtime::build_in_pieces() {
  std::vector<std::vector<ParameterId>> own(model_.modules.size());
  for (std::size_t at = 0; at < model_.parameters.size(); ++at) {
    own[static_cast<std::size_t>(model_.parameters[at].module)].push_back(static_cast<ParameterId>(at));
  }
  struct Open {
    ModuleId module;
    std::vector<std::pair<Leaf, Variable>> whole;
  };
  std::vector<Open> open;
  tied_.reserve(model_.parameters.size() - leaves_.size());
  const auto close = [&] {
    for (auto& [leaf, whole] : open.back().whole) {
      cut(leaf, is_tied(leaf) ? tied_.emplace_back() : piece(leaf.id), std::move(whole));
    }
    open.pop_back();
  };
  for (std::size_t at = 0; at < own.size(); ++at) {
    const ModuleId parent = model_.modules[at].parent;
    while (!open.empty() && open.back().module != parent) close();
    open.push_back({static_cast<ModuleId>(at), {}});
    for (const ParameterId id : own[at]) {
      const Parameter& parameter = model_.parameters[static_cast<std::size_t>(id)];
      const Leaf leaf{id, parameter.shape.elements().value(), true, training().dtype_of(parameter)};
      open.back().whole.emplace_back(leaf, Variable(emitter_, load_whole(leaf, "whole parameter")));
    }
  }
  while (!open.empty()) close();
}

void Stage3Runtime::begin_wrapper() {
  if (!trained_.empty() && !optimizer_away()) make_overflow_buffer();
  if (!trained_.empty()) print("Stage 3 initialize beginning");
  print("DeepSpeedZeRoOffload initialize [begin]");
}

// The engine broadcasts the model as it does below ZeRO-3, and the wrapper each parameter once more.
void Stage3Runtime::cut_whole_model() {
  const std::vector<BufferId> whole = load_model("whole parameter");
  begin_wrapper();
  for (const Leaf& leaf : leaves_)
    cut(leaf, piece(leaf.id), Variable(emitter_, whole[static_cast<std::size_t>(leaf.id)]));
}

// partition: this rank's part, zeros behind the parameter's end.
void Stage3Runtime::cut(const Leaf& leaf, Piece& of, Variable whole) {
  of.elements = leaf.elements;
  of.part = div_ceil(Elements(leaf.elements), world()).value();
  broadcast(whole.id());
  if (inside() > 1) make_secondary(of, whole);
  const bool swaps = files_ && files_->swaps(in_model_dtype(of.part));
  if (swaps && !is_tied(leaf)) return partition_into_file(of, std::move(whole));
  if (swaps) return;  // A tied tensor's file, which nobody reads, is left out.
  const What what{Role::Parameters, "parameter partition", "zero/partition_parameters.py, _partition_param"};
  of.own = parameters_away()
               ? make_on_host(in_model_dtype(of.part), dtype(), what, zero().offload_param.pin_memory, leaf.id)
               : eager_.empty(in_model_dtype(of.part), dtype(), what, leaf.id);
  cut_into(of.own, of, whole);
}

void Stage3Runtime::cut_into(const Part& partition, const Piece& of, const Variable& whole) {
  const Real mine = real(of);
  eager_.work()
      .read(whole)
      .write(partition)
      .really_reads({{whole.id(), in_model_dtype(mine.from), in_model_dtype(mine.elements)}})
      .run(Body::Copy, "partition parameter");
}

Stage3Runtime::Real Stage3Runtime::real(const Piece& of) const {
  const std::int64_t from = std::min(of.elements, checked_mul(of.part, rank()));
  return {from, std::min(of.part, of.elements - from)};
}

// The parameter that was tied away holds functions that hold it, so that its partition ends when Python collects
// garbage: at the latest where partitions are moved into one buffer (zero/utils.py, defragment).
void Stage3Runtime::drop_tied() {
  for (Piece& of : tied_) {
    for (Variable* variable : {&of.own, &of.secondary}) {
      if (!*variable) continue;
      variable->mark_scratch();
      variable->reset();
    }
  }
  tied_.clear();
}

// torch.distributed.barrier on a communicator of GPUs makes one byte on the device and holds it, in a static variable,
// until the next barrier (torch/csrc/distributed/c10d/ProcessGroup.hpp).
void Stage3Runtime::pass_barrier() {
  Variable tensor =
      eager_.empty(Bytes(1), DType::UInt8,
                   {Role::Temporaries, "tensor of a barrier", "torch/csrc/distributed/c10d/ProcessGroup.hpp, barrier"});
  tensor.mark_scratch();
  eager_.zero(tensor, "barrier");
  barrier_ = std::move(tensor);
}

}  // namespace dsplan
