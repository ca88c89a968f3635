// Walks a graph as eager code would, with exec's operators alone: forward, then backward from the loss. Without kernels
// it follows sizes and layouts; with them it computes. The catalogue says only what a gradient passes through.
#pragma once

#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/format.h"
#include "core/graph.h"
#include "exec/host/kernels.h"
#include "exec/operators/operators.h"
#include "model/catalogue/catalogue.h"

namespace walking {

using dsplan::Graph;
using dsplan::Indexed;
using dsplan::Node;
using dsplan::NodeId;
using dsplan::SlotKind;
using dsplan::TensorId;
using dsplan::exec::Described;
using dsplan::exec::Made;

// What carries out kernels; a test may put something else between.
inline int (*launcher)(const dsplan_launch&) = dsplan::exec::host::launch;

// A tensor: where it lies in a storage that may be shared; without kernels there is none.
struct Held {
  Described what;
  std::shared_ptr<std::vector<unsigned char>> storage;
  std::int64_t offset = 0;  // In elements.
};

struct Made1 {
  SlotKind kind;
  std::uint8_t index;
  Held held;
};

class Walk {
 public:
  explicit Walk(const Graph& graph, bool computes = false) : graph_(graph), computes_(computes) {
    values_.resize(graph.tensors.size());
    gradients_.resize(graph.tensors.size());
    extras_.resize(graph.nodes.size());
    for (const TensorId id : graph.tensors.ids()) {
      const dsplan::Tensor& tensor = graph.tensors[id];
      const bool placed = tensor.producer == dsplan::kNone || graph.node(tensor.producer).op == dsplan::Op::Input;
      if (placed) values_[id] = fresh({tensor.dtype, dsplan::exec::contiguous(tensor.shape)});
    }
  }

  void forward() {
    for (const dsplan::Instruction& at : graph_.program) {
      if (at.kind == dsplan::Instruction::Kind::Run) run_forward(at.node());
    }
  }
  void backward() { backward_from(graph_.loss); }
  void backward_from(TensorId output);

  [[nodiscard]] Held& value(TensorId id) { return *values_[id]; }
  [[nodiscard]] const std::optional<Held>& gradient(TensorId id) const { return gradients_[id]; }
  [[nodiscard]] const std::vector<std::string>& faults() const { return faults_; }
  [[nodiscard]] std::size_t compared() const { return compared_; }
  [[nodiscard]] Held fresh(const Described& what) const;
  // In logical order.
  void set_values(TensorId id, const std::vector<double>& values) { write(value(id), values); }
  void set_gradient(TensorId id, const std::vector<double>& values);
  [[nodiscard]] std::vector<double> values(TensorId id) { return read(value(id)); }
  [[nodiscard]] std::vector<double> gradient_values(TensorId id) const { return read(*gradient(id)); }
  static void write(const Held& held, const std::vector<double>& values);
  [[nodiscard]] static std::vector<double> read(const Held& held);
  std::uint64_t seed = 1;
  // What the catalogue says of a node; a test may say something else to see that it is noticed.
  void (*tamper)(dsplan::Recipe&, const Node&) = nullptr;

 private:
  [[nodiscard]] std::vector<Described> inputs_of(const Node& node);
  void run_forward(NodeId id);
  void run_backward(NodeId id);
  void compare(const Node& node, const char* pass, const std::vector<Made>& makes, const dsplan::Recipe& recipe,
               const std::vector<dsplan::RecipeStep>& steps);
  void launch_parts(const Node& node, dsplan::Body body, const std::vector<Held>& inputs, std::vector<Made1>& made,
                    const std::vector<Made>& makes, const std::vector<dsplan::RecipeStep>& steps);
  void accumulate(TensorId tensor, Held gradient);
  [[nodiscard]] std::string place(const Node& node) const {
    return dsplan::formatted("node {} ({})", &node - graph_.nodes.data(), dsplan::name(node.op));
  }
  [[nodiscard]] dsplan::Recipe recipe_for(const Node& node) const {
    dsplan::Recipe recipe;
    dsplan::recipe_of(graph_, node, recipe);
    if (tamper != nullptr) tamper(recipe, node);
    return recipe;
  }

  const Graph& graph_;
  bool computes_;
  Indexed<TensorId, std::optional<Held>> values_;
  Indexed<TensorId, std::optional<Held>> gradients_;
  Indexed<NodeId, std::map<std::uint8_t, Held>> extras_;
  std::vector<std::string> faults_;
  std::size_t compared_ = 0;
};

}  // namespace walking
