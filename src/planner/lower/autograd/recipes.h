// The recipes of a whole graph, compiled once into flat arrays: the walk over a step reads each of them several times
// (forward, recomputation, backward, every micro-batch), and must not allocate.
#pragma once

#include <span>
#include <vector>

#include "core/graph.h"
#include "core/training.h"
#include "model/catalogue/catalogue.h"

namespace dsplan {

class RecipeBook {
 public:
  // At Level::Dispatch the temporaries that only a kernel sees (Visibility::Kernel) are never made.
  explicit RecipeBook(const Graph& graph, Level level = Level::Kernel, const CatalogueOptions& options = {});

  struct Entry {
    std::uint32_t slots = 0;
    std::uint32_t forward = 0;
    std::uint32_t backward = 0;
    std::uint32_t saved = 0;
    bool saves_after_kernel = false;
    bool in_place = false;
    bool alias = false;
    bool passes_part = false;
    bool passes_own = false;
    bool leaves_reversed = false;
    bool leaves_first = false;
    std::uint64_t passes = 0;
    std::uint64_t hands_out = 0;
    std::uint64_t overwrites = 0;
    std::uint64_t seen_through_view = 0;
    std::uint64_t holds = 0;
    std::uint64_t comes_empty = 0;
    std::uint64_t not_whole = 0;
    std::uint64_t shared_outputs = 0;
  };

  [[nodiscard]] const Entry& entry(NodeId node) const { return entries_[node]; }
  [[nodiscard]] std::span<const Slot> slots(NodeId node) const { return range(slots_, &Entry::slots, node); }
  [[nodiscard]] std::span<const RecipeStep> forward(NodeId node) const {
    return range(forward_, &Entry::forward, node);
  }
  [[nodiscard]] std::span<const RecipeStep> backward(NodeId node) const {
    return range(backward_, &Entry::backward, node);
  }
  [[nodiscard]] std::span<const Saved> saved(NodeId node) const { return range(saved_, &Entry::saved, node); }
  // Index of the node's first saved tensor among all saved tensors of the graph.
  [[nodiscard]] std::size_t saved_index(NodeId node) const { return entry(node).saved; }
  [[nodiscard]] std::size_t saved_count() const { return saved_.size(); }
  // What operators of the graph take and nobody can say beforehand, each once.
  [[nodiscard]] const std::vector<const char*>& unknown() const { return unknown_; }

 private:
  template <class T>
  [[nodiscard]] std::span<const T> range(const std::vector<T>& pool, std::uint32_t Entry::*field, NodeId node) const {
    const std::uint32_t begin = entries_[node].*field;
    const std::uint32_t end = entries_[NodeId(node.number() + 1)].*field;
    return {pool.data() + begin, static_cast<std::size_t>(end - begin)};
  }

  Indexed<NodeId, Entry> entries_;  // One more than nodes: the last holds the ends.
  std::vector<Slot> slots_;
  std::vector<RecipeStep> forward_;
  std::vector<RecipeStep> backward_;
  std::vector<Saved> saved_;
  std::vector<const char*> unknown_;
};

}  // namespace dsplan
