// What an op-graph takes above its own tensors, in requested bytes (interface.md, "Op-graph").
#pragma once

#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

class AboveInputsMeter : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit> {
 public:
  explicit AboveInputsMeter(const Schedule& schedule) : schedule_(schedule) {}

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Mark& event);

  // All four; whoever knows that there is no gradient takes the last two away.
  [[nodiscard]] const AboveInputs& figures() const { return figures_; }
  [[nodiscard]] Bytes inputs() const { return inputs_; }

 private:
  const Schedule& schedule_;
  AboveInputs figures_;
  Bytes inputs_;
  Bytes now_;
  Bytes* peak_ = nullptr;  // Of the pass under way.
};

}  // namespace dsplan
