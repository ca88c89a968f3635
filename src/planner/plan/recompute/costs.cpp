#include "planner/plan/recompute/costs.h"

#include <algorithm>

namespace dsplan::detail {

ChainCosts::ChainCosts(const Chain& chain)
    : input(chain.input.value()),
      seed(chain.stages.back().gradient.value()),
      gathers(chain.gathers()),
      spares(chain.spares()) {
  std::int64_t before = chain.input_gradient.value();
  stages.reserve(chain.stages.size());
  for (const ChainStage& stage : chain.stages) {
    StageCost cost;
    cost.output = stage.output.value();
    cost.saved = stage.saved.value();
    cost.gradient = stage.gradient.value();
    cost.gradient_before = before;
    cost.forward_temporary = stage.forward_temporary.value();
    cost.backward_temporary = stage.backward_temporary.value();
    cost.gathered = stage.gathered.value();
    cost.forward_time = stage.forward_time.value();
    cost.gather_time = stage.gather_time.value();
    cost.spared_time = stage.spared_time.value();
    const auto add = [&](Bytes saved, Bytes forward, Bytes backward, Ticks time, std::int32_t option) {
      const std::int64_t need =
          saved.value() + cost.gathered + std::max(seed + forward.value(), cost.gradient + before + backward.value());
      cost.stores.push_back({saved.value(), backward.value(), need, time.value(), option});
    };
    add(stage.saved, stage.forward_temporary, stage.backward_temporary, Ticks(0), kNoOption);
    for (std::size_t k = 0; k < stage.options.size(); ++k) {
      const ChainOption& option = stage.options[k];
      add(option.saved, option.forward_temporary, option.backward_temporary, option.time, static_cast<std::int32_t>(k));
    }
    before = cost.gradient;
    stages.push_back(std::move(cost));
  }
}

void Recomputed::extend(std::size_t last) {
  const StageCost& stage = costs_->stages[last];
  const std::int64_t reads = last == first_ ? 0 : costs_->stages[last - 1].output;
  first_pass_ = std::max(first_pass_, costs_->seed + reads + stage.output + stage.forward_temporary + stage.gathered);
  tapes_ += stage.saved;
  weights_ += stage.gathered;
  again_ = std::max(again_, tapes_ + stage.gathered + stage.forward_temporary);
  again_held_ = std::max(again_held_, tapes_ + weights_ + stage.forward_temporary);
  const std::int64_t gradients = stage.gradient + stage.gradient_before;
  backward_ = std::max(backward_, tapes_ + stage.gathered + gradients + stage.backward_temporary);
  backward_held_ = std::max(backward_held_, tapes_ + weights_ + gradients + stage.backward_temporary);
  // The weights of the last stage serve its recomputation and its backward in one go, those of the others do not.
  regathered_ += last_gather_;
  last_gather_ = stage.gather_time;
  forward_ += stage.forward_time;
  spared_ = stage.spared_time;
  gradient_ = stage.gradient;
}

std::int64_t Recomputed::need(bool held) const {
  const std::int64_t again = (held ? again_held_ : again_) + gradient_;
  return std::max({first_pass_, again, held ? backward_held_ : backward_});
}

namespace {

using Mode = ChainSegment::Mode;

class Writer {
 public:
  explicit Writer(const Chain& chain) : gathers_(chain.gathers()) {}

  // One forward or backward with its weights, gathered for it alone unless they are there or are to stay.
  void run(ChainStep step, std::int32_t stage, std::int32_t option = kNoOption, bool is_gathered = false,
           bool stays = false) {
    if (gathers_ && !is_gathered) operations_.push_back({ChainStep::Gather, stage, kNoOption});
    operations_.push_back({step, stage, option});
    if (gathers_ && !stays) operations_.push_back({ChainStep::Release, stage, kNoOption});
  }

  void forward(const ChainSegment& segment) {
    for (std::int32_t stage = segment.first; stage <= segment.last; ++stage) {
      const bool saves = segment.mode == Mode::Store;
      const ChainStep without = stage == segment.first ? ChainStep::ForwardKeepInput : ChainStep::ForwardNone;
      run(saves ? ChainStep::ForwardSave : without, stage, saves ? segment.option : kNoOption);
    }
  }

  void backward(const ChainSegment& segment) {
    const bool again = segment.mode != Mode::Store;
    const bool held = segment.mode == Mode::RecomputeHeld;
    for (std::int32_t stage = segment.first; again && stage <= segment.last; ++stage) {
      run(ChainStep::ForwardSave, stage, kNoOption, false, held || stage == segment.last);
    }
    for (std::int32_t stage = segment.last; stage >= segment.first; --stage) {
      run(ChainStep::Backward, stage, kNoOption, again && (held || stage == segment.last));
    }
  }

  [[nodiscard]] std::vector<ChainOperation> take() { return std::move(operations_); }

 private:
  bool gathers_;
  std::vector<ChainOperation> operations_;
};

}  // namespace

std::vector<ChainOperation> operations_of(const Chain& chain, const std::vector<ChainSegment>& segments) {
  Writer writer(chain);
  for (const ChainSegment& segment : segments) writer.forward(segment);
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) writer.backward(*segment);
  return writer.take();
}

std::vector<ChainSegment> merged(const std::vector<ChainSegment>& segments) {
  std::vector<ChainSegment> result;
  const auto whole = [](const ChainSegment& one) { return one.mode == Mode::Store && one.option == kNoOption; };
  for (const ChainSegment& segment : segments) {
    if (!result.empty() && whole(result.back()) && whole(segment)) {
      result.back().last = segment.last;
    } else {
      result.push_back(segment);
    }
  }
  return result;
}

}  // namespace dsplan::detail
