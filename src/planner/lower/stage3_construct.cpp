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
    std::vector<std::pair<Leaf, BufferId>> whole;
  };
  std::vector<Open> open;
  tied_.reserve(model_.parameters.size() - leaves_.size());
  const auto close = [&] {
    for (const auto& [leaf, whole] : open.back().whole) {
      cut(leaf, is_tied(leaf) ? tied_.emplace_back() : piece(leaf.id), whole);
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
      open.back().whole.emplace_back(leaf, load_whole(leaf, "whole parameter"));
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
  for (const Leaf& leaf : leaves_) cut(leaf, piece(leaf.id), whole[static_cast<std::size_t>(leaf.id)]);
}

void Stage3Runtime::cut(const Leaf& leaf, Piece& of, BufferId whole) {
  of.elements = leaf.elements;
  of.part = div_ceil(Elements(leaf.elements), world()).value();
  broadcast(whole);
  if (inside() > 1) {
    of.full = whole;
    make_secondary(of);
    of.full = kNoBuffer;
  }
  const bool swaps = files_ && files_->swaps(in_model_dtype(of.part));
  if (swaps && !is_tied(leaf)) return partition_into_file(of, whole);
  // A tied tensor's file, which nobody reads, is left out.
  if (swaps) return emitter_.release(whole, Reason::PythonFrame);
  if (parameters_away()) {
    of.own = make_on_host(in_model_dtype(of.part), dtype(), Role::Parameters, "parameter partition",
                          zero().offload_param.pin_memory, leaf.id);
  } else {
    of.own = emitter_.allocate(in_model_dtype(of.part), dtype(), Role::Parameters, "parameter partition", leaf.id);
  }
  emitter_.begin();
  emitter_.read(whole);
  emitter_.write(of.own);
  if (emitter_.recording() != nullptr) {
    const std::int64_t from = std::min(of.elements, checked_mul(of.part, rank()));
    const Bytes real = in_model_dtype(std::min(of.part, of.elements - from));
    emitter_.recording()->reads({{whole, in_model_dtype(from), real}});
  }
  emitter_.compute("partition parameter");
  emitter_.release(whole, Reason::LastUse);
}

// The parameter that was tied away holds functions that hold it, so that its partition ends when Python collects
// garbage: at the latest where partitions are moved into one buffer (zero/utils.py, defragment).
void Stage3Runtime::drop_tied() {
  for (Piece& of : tied_) {
    for (const BufferId buffer : {of.own, of.secondary}) {
      if (buffer == kNoBuffer) continue;
      emitter_.mark_scratch(buffer);
      emitter_.release(buffer, Reason::PythonFrame);
    }
  }
  tied_.clear();
}

// torch.distributed.barrier on a communicator of GPUs makes one byte on the device and holds it, in a static variable,
// until the next barrier (torch/csrc/distributed/c10d/ProcessGroup.hpp).
void Stage3Runtime::pass_barrier() {
  const BufferId before = std::exchange(
      barrier_, emitter_.allocate(Bytes(1), DType::UInt8, Role::Temporaries, "tensor of a barrier", kNone));
  emitter_.mark_scratch(barrier_);
  emitter_.begin();
  emitter_.write(barrier_);
  emitter_.compute("barrier");
  if (before != kNoBuffer) emitter_.release(before, Reason::PythonFrame);
}

}  // namespace dsplan
