// What each operator makes, from what it is given: the executor's own rules, made without looking at any prediction.
// They are the measuring side of the comparison between the catalogue and reality; this room does not include model/.
//
// An operator is three things: what it makes in forward and in backward, in order, with shape, strides and dtype
// (here); how views of it look (here); and the kernels, behind Backend::launch, which write exactly what was made and
// check that it is as large as they need.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/kernel_scratch.h"
#include "core/program.h"
#include "exec/backend.h"
#include "exec/operators/layout.h"

namespace dsplan::exec {

// One call of an operator, as its rules see it. Shapes only: no data.
struct Call {
  const Graph& graph;
  const Node& node;
  std::span<const Described> inputs;  // Of the forward: dtype and layout of each input, views as they are.
  // Backward only: gradients of the outputs, absent where none came; then what was saved, in the order of saving.
  std::span<const std::optional<Described>> gradients = {};
  std::span<const Described> saved = {};
  DeviceThreads device = {};  // Program::device.
};

// What an operator makes: it fills its buffer from the beginning, in this layout. `part` is the kernel that writes it.
// Temporaries are numbered in the order in which one call (forward or backward) makes them.
struct Made {
  SlotKind kind = SlotKind::Output;
  std::uint8_t index = 0;
  std::uint8_t part = 0;
  Described what;
};

// What backward needs of the forward, in the order of saving.
struct Kept {
  enum class Kind : std::uint8_t { Input, Output, Extra };
  Kind kind = Kind::Input;
  std::uint8_t index = 0;
  friend bool operator==(const Kept&, const Kept&) = default;
};

// Why this operator cannot be run here, as it stands; nullopt: it can.
[[nodiscard]] std::optional<std::string> cannot_run(const Graph& graph, const Node& node);

[[nodiscard]] std::vector<Kept> keeps(const Graph& graph, const Node& node);

// What the forward makes, in the order in which it makes it: outputs, by-products, temporaries. The output of an
// operator that works in place is not made: it is input 0.
[[nodiscard]] std::vector<Made> forward_makes(const Call& call);
// What the backward makes: gradients of the inputs that require one, temporaries.
[[nodiscard]] std::vector<Made> backward_makes(const Call& call);

// What autograd makes besides: the sum of two gradients of one tensor (unless it lies in the first one's buffer), and
// what it clones for a leaf.
[[nodiscard]] Described sum_of_gradients(const Described& first, const Described& second);
[[nodiscard]] Described clone_of_gradient(const Described& gradient);

// A view in forward, or what works in place: the outputs, sharing the storage of input 0. Offsets are in elements from
// the input's first. A view with other dimensions than the graph's is one that has to be copied next: its elements
// stand in the graph's order (exec/operators/views.h).
[[nodiscard]] std::vector<Viewed> forward_view(const Call& call);
// The gradient of input `input` where it is (a part of, or a view of) the incoming gradient `gradient`.
[[nodiscard]] Viewed backward_view(const Call& call, std::size_t input, const Described& gradient);

// The operator's attributes as kernels take them: dsplan_launch::integers and ::numbers, at the places that
// exec/attributes.h names.
struct Attributes {
  std::vector<std::int64_t> integers;
  std::vector<double> numbers;
};
[[nodiscard]] Attributes attributes_of(const Graph& graph, const Node& node, const DeviceThreads& device = {});

}  // namespace dsplan::exec
