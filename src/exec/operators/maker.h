// How an operator's rule writes what it makes; for src/exec/operators only.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "exec/operators/operators.h"

namespace dsplan::exec {

// Statistics and sums are kept in this type.
[[nodiscard]] constexpr DType accumulating(DType dtype) {
  return dtype == DType::Float64 ? DType::Float64 : DType::Float32;
}
[[nodiscard]] constexpr bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

class Maker {
 public:
  explicit Maker(const Call& call) : call_(call) {}

  [[nodiscard]] const Node& node() const { return call_.node; }
  [[nodiscard]] bool has(std::size_t i) const { return i < call_.inputs.size(); }
  [[nodiscard]] const Described& in(std::size_t i) const { return call_.inputs[i]; }
  [[nodiscard]] std::int64_t dim(std::size_t i, std::size_t d) const { return call_.inputs[i].layout.dims[d]; }
  // What the graph says of an output; only for what inputs do not determine.
  [[nodiscard]] const Tensor& told(std::size_t i = 0) const {
    return call_.graph.tensor(call_.graph.output(call_.node, i));
  }
  [[nodiscard]] bool needs(std::size_t i) const {
    return call_.node.requires_grad && call_.graph.tensor(call_.graph.input(call_.node, i)).requires_grad;
  }
  // The gradient of output i, which must have come.
  [[nodiscard]] const Described& gradient_of(std::size_t i = 0) const;
  [[nodiscard]] const Call& call() const { return call_; }

  void output(std::size_t i, Described what) { add(SlotKind::Output, i, what); }
  void extra(std::size_t i, Described what) { add(SlotKind::Extra, i, what); }
  void gradient(std::size_t i, Described what) { add(SlotKind::Gradient, i, what); }
  void temporary(Described what) { add(SlotKind::Temporary, temporaries_++, what); }
  // The gradient of input i is the sum of what came over the dimensions that it lacks, by one kernel; a GPU's divides
  // the work over blocks that meet in memory of their own.
  void summed_gradient(std::size_t i);
  // Everything made from here on is written by the next kernel.
  void next() { ++part_; }

  [[nodiscard]] std::vector<Made> take() { return std::move(made_); }

 private:
  void add(SlotKind kind, std::size_t index, const Described& what) {
    made_.push_back({kind, static_cast<std::uint8_t>(index), part_, what});
  }

  const Call& call_;
  std::vector<Made> made_;
  std::uint8_t part_ = 0;
  std::size_t temporaries_ = 0;
};

// What the kernel of such a sum needs besides.
void reduced(Maker& m, const ReducedTensor& tensor);

// The by-product that is a clone of input 0.
inline constexpr std::uint8_t kClone = 15;

// Rules of operators that make, or keep, nothing.
inline void no_gradient(Maker&) {}
inline void makes_nothing(Maker&) {}
[[nodiscard]] inline std::vector<Kept> nothing(const Graph&, const Node&) { return {}; }

[[nodiscard]] inline Described dense(DType dtype, std::initializer_list<std::int64_t> dims) {
  return {dtype, contiguous(std::span(dims.begin(), dims.size()))};
}

// "node 17 (view)", for errors.
[[nodiscard]] std::string place_of(const Graph& graph, const Node& node);

namespace rules {

// What one operator makes in forward and in backward, and what it keeps in between.
struct Rules {
  void (*forward)(Maker&) = nullptr;  // nullptr: cannot be run.
  void (*backward)(Maker&) = nullptr;
  std::vector<Kept> (*kept)(const Graph&, const Node&) = nullptr;
};

[[nodiscard]] Rules elementwise(Op op);
[[nodiscard]] Rules products(Op op);
[[nodiscard]] Rules others(Op op);
[[nodiscard]] Rules selection(Op op);
[[nodiscard]] Rules parallel(Op op);

}  // namespace rules
}  // namespace dsplan::exec
