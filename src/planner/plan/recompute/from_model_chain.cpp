// The layers of a model as a chain of stages.
//
// Sizes are such that the chain's ledger adds up to the tape's: `saved` is what a layer keeps, with the storage of its
// input where it keeps that (the chain would have its output there, which is as large), and temporaries are what the
// tape had beyond. Where a stored layer is followed by a checkpoint the chain lacks one hidden state: the argument.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "core/error.h"
#include "model/catalogue/catalogue.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/time/rates.h"

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

Bytes excess_of(Bytes whole, Bytes part) { return std::max(whole - part, Bytes(0)); }

// Which results are worth keeping, as context functions for torch.utils.checkpoint in people's code keep them.
struct Selection {
  std::array<Op, 5> ops;
  std::size_t count;
};
constexpr std::array<Selection, 3> kSelections = {{
    {{Op::Attention}, 1},
    {{Op::Linear, Op::Matmul, Op::Mm, Op::Bmm}, 4},
    {{Op::Linear, Op::Matmul, Op::Mm, Op::Bmm, Op::Attention}, 5},
}};

// Near enough where no rates are known.
double work_of(const Graph& graph, const Node& node) {
  return static_cast<double>(forward_flops(graph, node)) +
         static_cast<double>(forward_bytes(graph, node).value()) * kOperationsPerByte;
}

// Which part of a region's forward time its operators take, looked up once for each kind of region.
class Shares {
 public:
  Shares(const Graph& graph, const Job& job, const ActivationBytes& a) : parts_(a.kept.size()), totals_(a.kept.size()) {
    std::optional<Rates> rates;
    if (Rates::missing(job).empty()) rates = Rates::of(job);
    std::size_t kind = 0;
    bool inside = false;
    for (const Instruction& instruction : graph.program) {
      if (instruction.kind == Instruction::Kind::RegionBegins) {
        // Of fewer layers the last one stands for the last.
        const auto region = static_cast<std::size_t>(instruction.region());
        const bool last = region + 1 == graph.regions.size();
        kind = static_cast<std::size_t>(last ? a.kind.back() : a.kind[region]);
        inside = totals_[kind] == 0;
      } else if (instruction.kind == Instruction::Kind::RegionEnds) {
        inside = false;
      } else if (instruction.kind == Instruction::Kind::Run && inside) {
        const Node& node = graph.node(instruction.node());
        const double work = rates ? node_time(graph, node, job.training, *rates).forward : work_of(graph, node);
        totals_[kind] += work;
        parts_[kind][static_cast<std::size_t>(node.op)] += work;
      }
    }
  }

  [[nodiscard]] double of(std::size_t kind, const std::vector<Op>& ops) const {
    double sum = 0;
    for (Op op : ops) sum += parts_[kind][static_cast<std::size_t>(op)];
    return totals_[kind] > 0 ? sum / totals_[kind] : 0;
  }

 private:
  std::vector<std::array<double, kOps>> parts_;
  std::vector<double> totals_;
};

void add_options(const ActivationBytes& a, const Shares& shares, std::size_t region, Bytes hidden, ChainStage& stage) {
  const auto kind = static_cast<std::size_t>(a.kind[region]);
  for (const Selection& selection : kSelections) {
    const auto wanted = std::span(selection.ops).first(selection.count);
    std::vector<Op> ops;
    Bytes kept;
    ChainOption option;
    for (const ActivationBytes::Kept& one : a.kept[kind]) {
      if (std::find(wanted.begin(), wanted.end(), one.op) == wanted.end()) continue;
      if (!ops.empty()) option.name += "+";
      option.name += name(one.op);
      ops.push_back(one.op);
      kept += one.bytes;
    }
    const auto known = [&](const ChainOption& other) { return other.name == option.name; };
    const bool again = std::any_of(stage.options.begin(), stage.options.end(), known);
    // One that keeps as much as storing everything does gains nothing.
    if (ops.empty() || again || kept + hidden >= stage.saved) continue;
    option.saved = kept + hidden;
    option.time = Ticks(std::llround(static_cast<double>(stage.forward_time.value()) * (1 - shares.of(kind, ops))));
    option.backward_temporary = excess_of(a.recomputed_backward[region], option.saved + hidden * 2);
    stage.options.push_back(std::move(option));
  }
}

}  // namespace

Chain chain_of(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
               const GraphTimes& times) {
  return chain_of(model, job, graph, activation_bytes(model, job, graph, recipes), times);
}

Chain chain_of(const ModelSpec& model, const Job& job, const Graph& graph, const ActivationBytes& a,
               const GraphTimes& times) {
  DSPLAN_CHECK(job.training.checkpoint.modules.empty(), "regions are modules, not layers");
  DSPLAN_CHECK(times.regions.size() == a.stored.size() && !graph.regions.empty(), "a time for each layer");
  const Shares shares(graph, job, a);
  Chain chain;
  chain.name = model.name;
  chain.digits = kDigits;
  const Region& first = graph.regions.front();  // Some classes call their layers with keywords alone (llama4's tower).
  const Bytes hidden = graph.bytes(first.arguments.empty() ? first.keywords.front() : first.arguments.front());
  chain.input = a.early + hidden;
  chain.input_gradient = hidden;
  const bool early = job.training.checkpoint.kind == CheckpointKind::NonReentrant;
  const bool selective = early && job.parallelism.tp == 1;  // Sums over ranks are in place: what is kept would change.
  for (std::size_t at = 0; at < a.stored.size(); ++at) {
    ChainStage stage;
    stage.output = stage.gradient = hidden;
    stage.saved = std::max(a.stored[at], hidden);
    const PartTime& time = times.regions[at];
    stage.forward_time = ticks(time.forward + time.forward_collectives);
    if (early && at < times.tails.size())
      stage.spared_time = std::min(ticks(times.tails[at].forward), stage.forward_time);
    stage.backward_time = ticks(time.backward + time.backward_collectives);
    const Bytes gradients = hidden * 2;
    const Bytes stored = excess_of(a.stored_backward[at], stage.saved + gradients);
    const Bytes again = excess_of(a.checkpointed_backward[at], a.checkpointed[at] + stage.saved + gradients);
    stage.backward_temporary = std::max(stored, again);
    stage.forward_temporary = excess_of(a.stored_forward[at], stage.saved + hidden);
    if (selective) add_options(a, shares, at, hidden, stage);
    chain.stages.push_back(std::move(stage));
  }
  // Head and loss are one stage that is always stored: what it takes for a moment is all that matters.
  ChainStage last;
  last.output = last.gradient = Bytes(4);
  last.saved = Bytes(4);
  last.forward_time = ticks(times.after.forward + times.after.forward_collectives);
  last.backward_time = ticks(times.after.backward + times.after.backward_collectives);
  last.backward_temporary = excess_of(a.head, hidden + Bytes(8));
  chain.stages.push_back(std::move(last));
  return chain;
}

}  // namespace dsplan
