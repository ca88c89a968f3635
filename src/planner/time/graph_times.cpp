#include "planner/time/graph_times.h"

#include <algorithm>

#include "planner/time/node_cost.h"

namespace dsplan {
namespace {

PartTime part_of(const NodeCost& cost, const Rates& rates) {
  PartTime part;
  part.PassTimes::add(cost);
  part.forward = std::max(cost.forward, cost.forward_calls * rates.launch());
  part.backward = std::max(cost.backward, cost.backward_calls * rates.launch());
  part.forward_launch = part.forward - cost.forward;
  part.backward_launch = part.backward - cost.backward;
  return part;
}

// A stretch of the program: its nodes in order.
struct Stretch {
  std::int32_t region = kNone;
  std::uint32_t begin = 0;  // Into Walker::nodes_.
  std::uint32_t end = 0;
};

class Walker {
 public:
  Walker(const Graph& graph, const Rates& rates)
      : graph_(graph), rates_(rates), seen_(graph.tensors.size(), 0), used_(graph.storages.size(), kNone) {}

  GraphTimes run() {
    GraphTimes times;
    times.regions.resize(graph_.regions.size());
    times.tails.resize(graph_.regions.size());
    times.region_parameters.resize(graph_.regions.size());
    times.operators.resize(graph_.regions.size());
    collect();
    NodeCost before;
    NodeCost after;
    const Stretch* last = nullptr;
    bool begun = graph_.regions.empty();
    for (const Stretch& stretch : stretches_) {
      if (stretch.region == kNone) {
        (begun ? after : before) += cost_of(stretch);
        count_parameters(stretch, begun ? times.after_parameters : times.before_parameters);
        continue;
      }
      begun = true;
      const auto at = static_cast<std::size_t>(stretch.region);
      if (last != nullptr && alike(*last, stretch)) {
        const auto from = static_cast<std::size_t>(last->region);
        times.regions[at] = times.regions[from];
        times.tails[at] = times.tails[from];
        times.region_parameters[at] = times.region_parameters[from];
        times.operators[at] = times.operators[from];
      } else {
        times.regions[at] = part_of(cost_of(stretch), rates_);
        times.tails[at] = tail_of(stretch, times.regions[at]);
        count_parameters(stretch, times.region_parameters[at]);
        times.operators[at] = times.by_operator.size();
        times.by_operator.push_back(operators_of(stretch));
      }
      last = &stretch;
    }
    times.before = part_of(before, rates_);
    times.after = part_of(after, rates_);
    return times;
  }

 private:
  void collect() {
    nodes_.reserve(graph_.nodes.size());
    Stretch current;
    const auto close = [&](std::int32_t next) {
      current.end = static_cast<std::uint32_t>(nodes_.size());
      if (current.end > current.begin || current.region != kNone) stretches_.push_back(current);
      current.begin = current.end;
      current.region = next;
    };
    for (const Instruction& instruction : graph_.program) {
      switch (instruction.kind) {
        case Instruction::Kind::Run: nodes_.push_back(instruction.node()); break;
        case Instruction::Kind::RegionBegins: close(instruction.region()); break;
        case Instruction::Kind::RegionEnds: close(kNone); break;
        default: break;
      }
    }
    close(kNone);
  }

  [[nodiscard]] const Node& node(std::uint32_t at) const { return graph_.node(nodes_[at]); }

  // Tensors that several nodes differentiate: their gradients are added up, one kernel for each beyond the first.
  void add_gradients(const Node& node, NodeCost& cost) {
    if (!node.requires_grad) return;
    for (const TensorId id : graph_.in(node)) {
      const Tensor& tensor = graph_.tensor(id);
      if (!tensor.requires_grad || graph_.storage_of(id).parameter != kNone) continue;
      if (seen_[id]++ == 0) continue;
      cost.backward += rates_.memory(graph_.bytes(id) * 3);
      cost.backward_calls += 1;
    }
  }

  NodeCost cost_of(const Stretch& stretch) {
    NodeCost sum;
    for (std::uint32_t at = stretch.begin; at < stretch.end; ++at) {
      sum += node_cost(graph_, node(at), rates_);
      add_gradients(node(at), sum);
    }
    return sum;
  }

  [[nodiscard]] std::vector<GraphTimes::OperatorTime> operators_of(const Stretch& stretch) const {
    std::vector<GraphTimes::OperatorTime> list;
    for (std::uint32_t at = stretch.begin; at < stretch.end; ++at) {
      const PartTime whole = part_of(node_cost(graph_, node(at), rates_), rates_);
      PartTime forward;
      forward.forward = whole.forward;
      forward.forward_launch = whole.forward_launch;
      forward.forward_collectives = whole.forward_collectives;
      forward.forward_flops = whole.forward_flops;
      const auto known = std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.op == node(at).op; });
      if (known != list.end()) {
        known->part += forward;
      } else {
        list.push_back({node(at).op, forward});
      }
    }
    return list;
  }

  // The end of a region behind the last tensor that is saved: a linear saves its input before it runs.
  PartTime tail_of(const Stretch& stretch, const PartTime& whole) {
    NodeCost cost;
    for (std::uint32_t at = stretch.end; at > stretch.begin; --at) {
      const Node& last = node(at - 1);
      const bool passes = last.op == Op::Add || last.op == Op::AllReduce || last.op == Op::View;
      if (!passes && last.op != Op::Linear) break;
      const NodeCost one = node_cost(graph_, last, rates_);
      cost.forward += one.forward;
      cost.forward_calls += one.forward_calls;
      cost.forward_collectives += one.forward_collectives;
      cost.forward_flops += one.forward_flops;
      if (!passes) break;
    }
    PartTime tail = part_of(cost, rates_);
    // Of a stretch that waits for the host, leaving out a part saves no more than its share.
    tail.forward = std::min(tail.forward, whole.forward);
    tail.forward_launch = std::min(tail.forward_launch, whole.forward_launch);
    return tail;
  }

  void count_parameters(const Stretch& stretch, PartParameters& into) {
    ModuleId last = kNone;
    for (std::uint32_t at = stretch.begin; at < stretch.end; ++at) {
      for (const TensorId id : graph_.in(node(at))) {
        const Tensor& tensor = graph_.tensor(id);
        if (graph_.storage_of(id).parameter == kNone || tensor.producer != kNone) continue;
        std::int64_t& used = used_[tensor.storage];
        if (used == stretch.begin) continue;  // Twice in one part is once.
        const bool again = used != kNone;
        used = stretch.begin;
        add_size({tensor.shape.elements(), 1, tensor.requires_grad, again}, into);
        into.tensors += 1;
        if (node(at).module != last) into.modules += 1;
        last = node(at).module;
      }
    }
  }

  static void add_size(const SizeCount& one, PartParameters& into) {
    for (SizeCount& there : into.sizes) {
      if (there.elements != one.elements || there.trained != one.trained || there.again != one.again) continue;
      there.count += one.count;
      return;
    }
    into.sizes.push_back(one);
  }

  [[nodiscard]] bool alike(TensorId a, TensorId b) const {
    if (a == b) return true;
    const Tensor& first = graph_.tensor(a);
    const Tensor& second = graph_.tensor(b);
    return first.dtype == second.dtype && first.requires_grad == second.requires_grad && first.shape == second.shape;
  }

  // Node for node the same operators on the same shapes.
  [[nodiscard]] bool alike(const Stretch& a, const Stretch& b) const {
    if (a.end - a.begin != b.end - b.begin) return false;
    for (std::uint32_t at = 0; at < a.end - a.begin; ++at) {
      const Node& first = node(a.begin + at);
      const Node& second = node(b.begin + at);
      if (first.op != second.op || first.requires_grad != second.requires_grad ||
          first.full_attention != second.full_attention || first.input_count != second.input_count ||
          first.output_count != second.output_count || first.gradient_copied != second.gradient_copied) {
        return false;
      }
      const std::size_t operands = first.input_count + std::size_t{first.output_count};
      for (std::size_t i = 0; i < operands; ++i) {
        if (!alike(graph_.operands[first.first_operand + i], graph_.operands[second.first_operand + i])) return false;
      }
    }
    return true;
  }

  const Graph& graph_;
  const Rates& rates_;
  std::vector<NodeId> nodes_;
  std::vector<Stretch> stretches_;
  Indexed<TensorId, std::uint8_t> seen_;   // Nodes before that differentiate it.
  Indexed<StorageId, std::int64_t> used_;  // Of a parameter: where the stretch begins that used it last.
};

}  // namespace

PartTime& PartTime::operator+=(const PartTime& other) {
  PassTimes::add(other);
  forward_launch += other.forward_launch;
  backward_launch += other.backward_launch;
  return *this;
}

PartTime& PartTime::operator*=(double factor) {
  for (double* figure : {&forward, &backward, &forward_launch, &backward_launch, &forward_collectives,
                         &backward_collectives, &forward_flops, &backward_flops}) {
    *figure *= factor;
  }
  return *this;
}

void GraphTimes::add(const GraphTimes& other) {
  before += other.before;
  after += other.after;
  for (std::size_t at = 0; at < regions.size(); ++at) {
    regions[at] += other.regions[at];
    tails[at] += other.tails[at];
  }
  for (std::size_t kind = 0; kind < by_operator.size(); ++kind) {
    for (std::size_t at = 0; at < by_operator[kind].size(); ++at) {
      by_operator[kind][at].part += other.by_operator[kind][at].part;
    }
  }
}

void GraphTimes::scale(double factor) {
  before *= factor;
  after *= factor;
  for (PartTime& part : regions) part *= factor;
  for (PartTime& part : tails) part *= factor;
  for (std::vector<OperatorTime>& list : by_operator) {
    for (OperatorTime& one : list) one.part *= factor;
  }
}

PartTime node_time(const Graph& graph, const Node& node, const Training& /*training*/, const Rates& rates) {
  return part_of(node_cost(graph, node, rates), rates);
}

GraphTimes graph_times(const Graph& graph, const Training& /*training*/, const Rates& rates) {
  return Walker(graph, rates).run();
}

}  // namespace dsplan
