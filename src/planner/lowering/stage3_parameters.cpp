// ZeRO-3: parameters are gathered for a module and let go of again.
#include "planner/lowering/stage3_runtime.h"

#include <utility>

#include "core/error.h"

namespace dsplan {

ParameterPlace Stage3Runtime::place(ParameterId parameter) const {
  const Piece& piece = pieces_[static_cast<std::size_t>(parameter)];
  DSPLAN_CHECK(piece.full != kNoBuffer, "a parameter is used while it is partitioned: " +
                                            model_.parameters[static_cast<std::size_t>(parameter)].name);
  return {piece.full, Bytes(0), in_model_dtype(piece.elements)};
}

void Stage3Runtime::enter(ModuleId module, Pass) {
  const auto at = static_cast<std::size_t>(module);
  if (own_[at].empty()) return;
  std::vector<ParameterId> missing;
  for (ParameterId parameter : own_[at]) {
    Piece& piece = pieces_[static_cast<std::size_t>(parameter)];
    if (!active_module_[at]) ++piece.users;
    if (piece.full == kNoBuffer) missing.push_back(parameter);
  }
  active_module_[at] = true;
  if (!missing.empty()) gather(missing);
}

void Stage3Runtime::exit(ModuleId module, Pass) {
  const auto at = static_cast<std::size_t>(module);
  if (!active_module_[at]) return;
  active_module_[at] = false;
  for (ParameterId parameter : own_[at]) {
    Piece& piece = pieces_[static_cast<std::size_t>(parameter)];
    if (--piece.users > 0 || (complete_ && piece.persistent)) continue;
    emitter_.release(std::exchange(piece.full, kNoBuffer), Reason::ModuleExit);
  }
}

// One collective per call. A single parameter is used in place; several are copied out of the flat buffer, which
// lives until the module that asked starts.
void Stage3Runtime::gather(const std::vector<ParameterId>& parameters) {
  std::int64_t aligned = 0;
  for (ParameterId id : parameters) {
    aligned = checked_add(aligned, checked_mul(pieces_[static_cast<std::size_t>(id)].part, world()));
  }
  const bool single = parameters.size() == 1;
  const BufferId flat =
      emitter_.allocate(in_model_dtype(aligned), dtype(), Role::RuntimeBuffers,
                        single ? "gathered parameter" : "gather buffer", single ? parameters[0] : kNone);
  emitter_.begin();
  for (ParameterId id : parameters) read_partition(pieces_[static_cast<std::size_t>(id)]);
  emitter_.write(flat);
  collective(Collective::AllGather, dtype(), in_model_dtype(aligned));
  if (single) {
    pieces_[static_cast<std::size_t>(parameters[0])].full = flat;
    return;
  }
  for (ParameterId id : parameters) {
    Piece& piece = pieces_[static_cast<std::size_t>(id)];
    piece.full =
        emitter_.allocate(in_model_dtype(piece.elements), dtype(), Role::RuntimeBuffers, "gathered parameter", id);
  }
  emitter_.begin();
  emitter_.read(flat);
  for (ParameterId id : parameters) emitter_.write(pieces_[static_cast<std::size_t>(id)].full);
  emitter_.compute("copy gathered parameters");
  emitter_.release(flat, Reason::LastUse);
}

void Stage3Runtime::read_partition(const Piece& piece) {
  if (piece.trained) {
    emitter_.read(flat_, in_model_dtype(piece.offset), in_model_dtype(piece.part));
  } else {
    emitter_.read(piece.own);
  }
}

void Stage3Runtime::release_full(Piece& piece) {
  if (piece.full != kNoBuffer) emitter_.release(std::exchange(piece.full, kNoBuffer), Reason::RuntimeBucket);
}

}  // namespace dsplan
