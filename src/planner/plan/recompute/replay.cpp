#include "planner/plan/recompute/replay.h"

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace dsplan {
namespace {

struct HeldStage {
  bool output = false;              // On its own.
  bool tape = false;                // Saved, wholly or by an option.
  std::int32_t option = kNoOption;  // Of the tape.
  bool weights = false;
  bool ran = false;  // Forward, whatever it kept.
};

class Machine {
 public:
  explicit Machine(const Chain& chain)
      : chain_(chain), gathers_(chain.gathers()), held_(chain.stages.size() + 1), next_(last()) {
    held_[0].output = true;
    live_ = chain.input + stage(next_).gradient;
    result_.peak = live_;
  }

  ChainReplay run(const std::vector<ChainOperation>& operations) {
    for (std::size_t at = 0; at < operations.size(); ++at) {
      at_ = operations[at];
      ends_ = at + 1 < operations.size() && operations[at + 1] == ChainOperation{ChainStep::Backward, at_.stage};
      if (at_.stage < 1 || at_.stage > last()) {
        say("there is no such stage");
      } else {
        step();
      }
      if (!result_.fault.empty()) return result_;
    }
    if (next_ != 0) say(formatted("the backward of stage {} is missing", next_));
    return result_;
  }

 private:
  [[nodiscard]] std::int32_t last() const { return static_cast<std::int32_t>(chain_.stages.size()); }
  [[nodiscard]] const ChainStage& stage(std::int32_t i) const { return chain_.stages[static_cast<std::size_t>(i - 1)]; }
  [[nodiscard]] HeldStage& held(std::int32_t i) { return held_[static_cast<std::size_t>(i)]; }

  void say(const std::string& what) {
    if (result_.fault.empty()) result_.fault = formatted("{} {}: {}", name(at_.step), at_.stage, what);
  }

  void step() {
    switch (at_.step) {
      case ChainStep::ForwardNone:
      case ChainStep::ForwardKeepInput:
      case ChainStep::ForwardSave: return forward();
      case ChainStep::Backward: return backward();
      case ChainStep::Gather: return gather();
      case ChainStep::Release: return release();
    }
  }

  void gather() {
    if (held(at_.stage).weights) return say("its weights are gathered already");
    held(at_.stage).weights = true;
    spend(stage(at_.stage).gather_time, stage(at_.stage).gathered);
    live_ += stage(at_.stage).gathered;
  }

  void release() {
    if (!held(at_.stage).weights) return say("its weights are not gathered");
    held(at_.stage).weights = false;
    live_ -= stage(at_.stage).gathered;
  }

  void forward() {
    const std::int32_t i = at_.stage;
    HeldStage& mine = held(i);
    HeldStage& before = held(i - 1);
    const bool saves = at_.step == ChainStep::ForwardSave;
    if (!before.output && !before.tape) return say("its input is not there");
    if (mine.output || mine.tape) return say("its output is there already");
    if (gathers_ && !mine.weights) return say("its weights are not gathered");
    if (i > next_) return say("its backward is done");
    if (at_.option != kNoOption &&
        (!saves || at_.option < 0 || static_cast<std::size_t>(at_.option) >= stage(i).options.size())) {
      return say("there is no such option");
    }
    const Bytes made = saves ? tape(i, at_.option) : stage(i).output;
    const Bytes temporary =
        at_.option == kNoOption ? stage(i).forward_temporary : option(i, at_.option).forward_temporary;
    // A recomputation that ends here, as its backward comes next.
    const bool again = std::exchange(mine.ran, true);
    const bool spares = again && saves && ends_;
    spend(stage(i).forward_time - (spares ? stage(i).spared_time : Ticks(0)), made + temporary);
    live_ += made;
    (saves ? mine.tape : mine.output) = true;
    mine.option = at_.option;
    if (at_.step == ChainStep::ForwardNone) {
      if (i == 1 || !before.output) return say("it lets go of an input that is not its own to let go of");
      before.output = false;
      live_ -= stage(i - 1).output;
    }
    if (i == last() && !saves) {
      mine.output = false;
      live_ -= stage(i).output;
    }
  }

  void backward() {
    const std::int32_t i = at_.stage;
    HeldStage& mine = held(i);
    HeldStage& before = held(i - 1);
    if (i != next_) return say(formatted("it is the turn of stage {}", next_));
    if (!mine.tape) return say("what it reads was not saved");
    if (!before.output && !before.tape) return say("its input is not there");
    if (gathers_ && !mine.weights) return say("its weights are not gathered");
    const bool chosen = mine.option != kNoOption;
    const Bytes made = i == 1 ? chain_.input_gradient : stage(i - 1).gradient;
    const Bytes temporary = chosen ? option(i, mine.option).backward_temporary : stage(i).backward_temporary;
    spend(stage(i).backward_time + (chosen ? option(i, mine.option).time : Ticks(0)), made + temporary);
    live_ += made - stage(i).gradient - tape(i, mine.option);
    mine.tape = false;
    if (i > 1 && before.output) {
      before.output = false;
      live_ -= stage(i - 1).output;
    }
    --next_;
  }

  [[nodiscard]] const ChainOption& option(std::int32_t i, std::int32_t k) const {
    return stage(i).options[static_cast<std::size_t>(k)];
  }
  [[nodiscard]] Bytes tape(std::int32_t i, std::int32_t k) const {
    return k == kNoOption ? stage(i).saved : option(i, k).saved;
  }

  void spend(Ticks time, Bytes beside) {
    result_.time += time;
    result_.peak = std::max(result_.peak, live_ + beside);
  }

  const Chain& chain_;
  bool gathers_;
  std::vector<HeldStage> held_;  // By stage; 0 is the input.
  std::int32_t next_;            // Whose backward is next; 0: all are done.
  Bytes live_;
  ChainOperation at_;
  bool ends_ = false;
  ChainReplay result_;
};

}  // namespace

ChainReplay replay(const Chain& chain, const std::vector<ChainOperation>& operations) {
  return Machine(chain).run(operations);
}

}  // namespace dsplan
