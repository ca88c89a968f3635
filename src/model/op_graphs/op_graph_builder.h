// Walks an op-graph's operators in program order. For src/model/op_graphs/op_graph*.cpp.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "model/op_graphs/op_graph.h"
#include "model/op_graphs/op_graph_call.h"
#include "model/op_graphs/op_graph_names.h"

namespace dsplan {

class OpGraphBuilder {
 public:
  explicit OpGraphBuilder(const OpGraph& file);
  [[nodiscard]] BuiltOpGraph build();

 private:
  using Returned = std::unordered_set<std::string_view>;
  // What stands between an operator and the top level.
  enum class Inside : std::uint8_t { Nothing, Checkpoint, Custom };
  // A region that is checkpointed, and where it stands in the file.
  struct Checkpoint {
    std::size_t offset = 0;
    NodeId first = kNone;  // Nodes [first, end).
    NodeId end = kNone;
  };

  void fault(std::size_t offset, std::string message, std::string hint = {});
  void fault(const OpGraphName& name, std::string message, std::string hint = {}) {
    fault(name.offset, std::move(message), std::move(hint));
  }

  void read_leaves();
  void check_hold();
  // Runs the operators of one level; names die after their last reader, except those that are `returned`.
  void run_ops(const std::vector<OpGraphOp>& ops, const Returned& returned);
  [[nodiscard]] std::vector<std::vector<std::string>> deaths_of(const std::vector<OpGraphOp>& ops,
                                                                const Returned& returned) const;
  void forget(const std::string& name);
  void run_op(const OpGraphOp& op);
  void run_operator(const OpGraphOp& op);
  void define_unknown(const OpGraphOp& op);
  // The tensors of names, all of them looked up so that all faults are seen; false where one is unknown.
  [[nodiscard]] bool look_up(const std::vector<OpGraphName>& names, Tensors& tensors);
  [[nodiscard]] bool may_run(const OpGraphOp& op, const OpGraphRow& row);
  void check_in_place(OpCall& call);
  void check_in_place_result(OpCall& call, TensorId made);
  void bind(OpCall& call, const Tensors& made);
  void place_nodes(std::size_t offset);
  ModuleId add_module(const std::string& path, const std::string& type);

  // op_graph_regions.cpp
  void run_checkpoint(const OpGraphOp& op);
  void run_plain(const OpGraphOp& op, bool with_gradients);
  [[nodiscard]] bool captures(const OpGraphOp& op, std::vector<TensorId>& keywords);
  void begin_region(Tensors arguments, Tensors keywords);
  void end_region(const OpGraphOp& op, std::size_t offset, NodeId first);
  void check_reentrant_outputs(const OpGraphOp& op, const Tensors& arguments, const std::vector<OpGraphName>& outputs);
  [[nodiscard]] std::vector<Op> kept_operators(const OpGraphOp& op);
  void check_kept(const OpGraphOp& op, NodeId first, const std::vector<Op>& kept);
  void run_sequential(const OpGraphOp& op);
  [[nodiscard]] bool check_sequential(const OpGraphOp& op);
  void run_segment(const OpGraphOp& op, std::size_t first, std::size_t end, bool checkpointed);
  void run_custom(const OpGraphOp& op);
  void return_from_custom(const OpGraphOp& op, Tensors inputs, NodeId first);

  // op_graph_lifetimes.cpp
  void finish();
  [[nodiscard]] Indexed<NodeId, bool> wanted_nodes();
  void forget_nodes(const Indexed<NodeId, bool>& wanted);
  void check_saved(const Indexed<NodeId, bool>& wanted);
  void check_checkpoints(const Indexed<NodeId, bool>& wanted);
  void check_gradients();

  const OpGraph& file_;
  Diagnostics diagnostics_;
  BuiltOpGraph built_;
  OpGraphNames names_;
  OpGraphWriter w_;
  std::size_t top_ = 0;  // The top-level operator under way.
  Inside inside_ = Inside::Nothing;
  Indexed<NodeId, std::size_t> places_;  // Where its operator stands in the file.
  std::vector<Checkpoint> checkpoints_;
  std::size_t first_reentrant_ = std::string::npos;  // Place of the first reentrant region.
};

}  // namespace dsplan
