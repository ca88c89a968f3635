// The names of an op-graph: which there are, who makes them, how long they live, and which tensor each stands for. A
// Python variable for each name; two names may stand for one tensor object (an in-place operator returns its input).
// For src/model/op_graphs/op_graph*.cpp.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "core/op_graph.h"
#include "model/op_graphs/op_graph_writer.h"

namespace dsplan {

class OpGraphNames {
 public:
  // Adds faults for names that are defined twice, and for outputs of a checkpoint or a custom function that are not
  // made inside it.
  OpGraphNames(const OpGraph& file, Diagnostics& diagnostics);

  // A name now stands for `tensor`; for the tensor object of another name if `same_as` is one.
  void define(const std::string& name, TensorId tensor, StorageId storage, const std::string* same_as = nullptr);
  // Its operator was refused: who reads it is given up without a fault of its own.
  void define_unknown(const std::string& name);

  struct Found {
    TensorId tensor = kNone;
    bool unknown = false;
  };
  // Faults where the name is not there, has not been made yet, or is hidden inside something.
  // `reader`: the top-level operator that reads it.
  [[nodiscard]] Found look_up(const OpGraphName& name, std::size_t reader);
  [[nodiscard]] bool exists(const std::string& name) const { return places_.contains(name); }
  [[nodiscard]] bool visible(const std::string& name) const { return objects_of_.contains(name); }

  // The tensor object has been written in place: all its names stand for `tensor` now. Returns the tensor before.
  TensorId rewrite(const std::string& name, TensorId tensor);
  // The variable dies; the tensor to let go of, if it was the object's last name, else kNone.
  [[nodiscard]] TensorId forget(const std::string& name);
  // Whether another live tensor lies in the storage of this one.
  [[nodiscard]] bool shared(const std::string& name) const;

  [[nodiscard]] std::string nearest_to(const std::string& name) const;

 private:
  struct Place {
    std::size_t offset = 0;
    std::size_t top = 0;  // Index of the top-level operator that makes it.
    bool leaf = false;
  };
  struct Object {
    TensorId tensor = kNone;
    StorageId storage = kNone;
    int names = 0;
    bool unknown = false;
  };

  using Names = std::unordered_set<std::string_view>;
  void declare(const OpGraphName& name, std::size_t top, bool leaf, Names& level);
  void declare_ops(const std::vector<OpGraphOp>& ops, std::size_t top, bool outermost, Names& level);
  void declare_returned(const OpGraphOp& op, const Names& inside, Names& level);
  [[nodiscard]] bool needs(std::size_t op, std::size_t other) const;

  const OpGraph& file_;
  Diagnostics& diagnostics_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<std::string, std::size_t> objects_of_;
  std::vector<Object> objects_;
  std::unordered_map<StorageId, int> lying_in_;  // Live objects by storage.
};

// All names that an operator reads, those inside of it included.
void collect_reads(const OpGraphOp& op, std::vector<const OpGraphName*>& into);

}  // namespace dsplan
