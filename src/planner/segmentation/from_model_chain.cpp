// The layers of a model as a chain of stages.
//
// Sizes are such that the chain's ledger adds up to the tape's: `saved` is what a layer keeps, with the storage of its
// input where it keeps that (the chain would have its output there, which is as large), and temporaries are what the
// tape had beyond. Where a stored layer is followed by a checkpoint the chain lacks one hidden state: the argument.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "model/catalogue.h"
#include "planner/segmentation/from_model.h"

namespace dsplan {
namespace {

// Ticks are nanoseconds.
constexpr int kDigits = 9;

// A byte that is moved takes as long as so many operations: rates of current devices, near enough to say which part of
// a layer's time an operator takes.
constexpr std::int64_t kOperationsPerByte = 300;

Ticks ticks(double seconds) {
  DSPLAN_CHECK(seconds >= 0 && seconds < 1e6, "a time of a layer");
  return Ticks(std::llround(seconds * 1e9));
}

Bytes beyond(Bytes whole, Bytes part) { return std::max(whole - part, Bytes(0)); }

// Which results are worth keeping, as context functions for torch.utils.checkpoint in people's code keep them.
struct Selection {
  const char* name;
  std::array<Op, 4> ops;
  std::size_t count;
};
constexpr std::array<Selection, 3> kSelections = {{
    {"attention", {Op::Attention}, 1},
    {"products", {Op::Linear, Op::Matmul, Op::Mm, Op::Bmm}, 4},
    {"products and attention", {Op::Linear, Op::Matmul, Op::Mm, Op::Attention}, 4},
}};

// Of one region, by operator: the part of its forward time.
class Weights {
 public:
  explicit Weights(const Graph& graph) {
    std::int32_t region = kNone;
    parts_.resize(graph.regions.size());
    totals_.resize(graph.regions.size());
    for (const Instruction& instruction : graph.program) {
      if (instruction.kind == Instruction::Kind::RegionBegins) region = instruction.id;
      if (instruction.kind == Instruction::Kind::RegionEnds) region = kNone;
      if (instruction.kind != Instruction::Kind::Run || region == kNone) continue;
      const Node& node = graph.node(instruction.id);
      const double weight = static_cast<double>(forward_flops(graph, node)) +
                            static_cast<double>(forward_bytes(graph, node).value()) * kOperationsPerByte;
      const auto at = static_cast<std::size_t>(region);
      totals_[at] += weight;
      parts_[at][static_cast<std::size_t>(node.op)] += weight;
    }
  }

  [[nodiscard]] double share(std::size_t region, const std::vector<Op>& ops) const {
    double sum = 0;
    for (Op op : ops) sum += parts_[region][static_cast<std::size_t>(op)];
    return totals_[region] > 0 ? sum / totals_[region] : 0;
  }

 private:
  std::vector<std::array<double, kOps>> parts_;
  std::vector<double> totals_;
};

Bytes kept_by(const ActivationBytes& a, std::size_t region, const std::vector<Op>& ops) {
  Bytes sum;
  for (const ActivationBytes::Kept& one : a.kept[static_cast<std::size_t>(a.kind[region])]) {
    if (std::find(ops.begin(), ops.end(), one.op) != ops.end()) sum += one.bytes;
  }
  return sum;
}

// Those of the selection that the region has.
std::vector<Op> present(const ActivationBytes& a, std::size_t region, const Selection& selection) {
  std::vector<Op> ops;
  for (const ActivationBytes::Kept& one : a.kept[static_cast<std::size_t>(a.kind[region])]) {
    const auto end = selection.ops.begin() + static_cast<std::ptrdiff_t>(selection.count);
    if (std::find(selection.ops.begin(), end, one.op) != end) ops.push_back(one.op);
  }
  return ops;
}

void add_options(const ActivationBytes& a, const Weights& weights, std::size_t region, Bytes gradients, Bytes hidden,
                 ChainStage& stage) {
  for (const Selection& selection : kSelections) {
    const std::vector<Op> ops = present(a, region, selection);
    const Bytes kept = kept_by(a, region, ops);
    // One that keeps as much as storing everything does gains nothing.
    if (ops.empty() || kept + hidden >= stage.saved) continue;
    ChainOption option;
    option.name = selection.name;
    option.saved = kept + hidden;
    option.time =
        Ticks(std::llround(static_cast<double>(stage.forward_time.value()) * (1 - weights.share(region, ops))));
    option.backward_temporary = beyond(a.recomputed_backward[region], option.saved + gradients);
    stage.options.push_back(option);
  }
}

}  // namespace

Chain chain_of(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
               const GraphTimes& times) {
  DSPLAN_CHECK(job.training.checkpoint.modules.empty(), "regions are modules, not layers");
  DSPLAN_CHECK(times.regions.size() == graph.regions.size() && !graph.regions.empty(), "a time for each layer");
  const ActivationBytes a = activation_bytes(model, job, graph, recipes);
  const Weights weights(graph);
  Chain chain;
  chain.name = model.name;
  chain.digits = kDigits;
  const Bytes hidden = graph.bytes(graph.regions.front().arguments.front());
  chain.input = a.early + hidden;
  chain.input_gradient = hidden;
  const bool selective = job.training.checkpoint.kind == CheckpointKind::NonReentrant;
  for (std::size_t at = 0; at < graph.regions.size(); ++at) {
    ChainStage stage;
    stage.output = stage.gradient = hidden;
    stage.saved = std::max(a.stored[at], hidden);
    const PartTime& time = times.regions[at];
    stage.forward_time = ticks(time.forward + time.forward_collectives);
    stage.backward_time = ticks(time.backward + time.backward_collectives);
    const Bytes gradients = hidden * 2;
    const Bytes stored = beyond(a.stored_backward[at], stage.saved + gradients);
    const Bytes again = beyond(a.checkpointed_backward[at], a.checkpointed[at] + stage.saved + gradients);
    stage.backward_temporary = std::max(stored, again);
    stage.forward_temporary = beyond(a.stored_forward[at], stage.saved + hidden);
    if (selective) add_options(a, weights, at, gradients, hidden, stage);
    chain.stages.push_back(std::move(stage));
  }
  // Head and loss are one stage that is always stored: what it takes for a moment is all that matters.
  ChainStage last;
  last.output = last.gradient = Bytes(4);
  last.saved = Bytes(4);
  last.forward_time = ticks(times.after.forward + times.after.forward_collectives);
  last.backward_time = ticks(times.after.backward + times.after.backward_collectives);
  last.backward_temporary = beyond(a.head, hidden + Bytes(8));
  chain.stages.push_back(std::move(last));
  return chain;
}

}  // namespace dsplan
