// Graphs of a few operators, written by hand, for tests of the executor's kernels: every operator that runs, with the
// shapes and layouts that its kernels tell apart.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"

namespace small_graphs {

using namespace dsplan;  // NOLINT: the nouns of graphs.

// A graph of a few operators, written by hand.
struct Small {
  Graph graph;
  DType floats = DType::Float64;  // Of what is not said to be of another dtype.
  std::vector<TensorId> trained;
  TensorId result = kNone;

  TensorId tensor(const Shape& shape, DType dtype, bool requires_grad, NodeId producer, StorageId storage = kNone) {
    if (storage == kNone) {
      storage = graph.storages.push({dsplan::storage(shape.elements(), dtype), kNone, kNone});
    }
    return graph.tensors.push({shape, dtype, storage, requires_grad, producer});
  }
  TensorId input(const Shape& shape, bool requires_grad = true, std::optional<DType> dtype = std::nullopt) {
    const TensorId id = tensor(shape, dtype.value_or(floats), requires_grad, kNone);
    if (requires_grad) trained.push_back(id);
    return id;
  }
  // One more operator; `tweak` sets what else the node says.
  TensorId add(Op op, const std::vector<TensorId>& inputs, const Shape& shape,
               const std::function<void(Node&)>& tweak = {}, std::optional<DType> dtype = std::nullopt) {
    return add_many(op, inputs, {shape}, tweak, dtype)[0];
  }
  std::vector<TensorId> add_many(Op op, const std::vector<TensorId>& inputs, const std::vector<Shape>& shapes,
                                 const std::function<void(Node&)>& tweak = {},
                                 std::optional<DType> dtype = std::nullopt) {
    Node node;
    node.op = op;
    node.input_count = static_cast<std::uint16_t>(inputs.size());
    node.first_operand = static_cast<std::uint32_t>(graph.operands.size());
    for (TensorId id : inputs) {
      graph.operands.push_back(id);
      node.requires_grad = node.requires_grad || graph.tensor(id).requires_grad;
    }
    if (tweak) tweak(node);
    const NodeId id = graph.nodes.next();
    std::vector<TensorId> outputs;
    const bool view = op == Op::View || op == Op::Slice || op == Op::Split || op == Op::Expand || node.in_place;
    for (const Shape& shape : shapes) {
      outputs.push_back(tensor(shape, dtype.value_or(floats), node.requires_grad, id,
                               view ? graph.tensor(inputs[0]).storage : kNone));
      graph.operands.push_back(outputs.back());
      ++node.output_count;
    }
    graph.nodes.push(node);
    graph.program.push_back({Instruction::Kind::Run, id});
    return outputs;
  }
  TensorId view(TensorId x, const Shape& shape, std::initializer_list<ViewStep> steps, Op op = Op::View,
                bool copied = false) {
    const auto first = static_cast<std::uint32_t>(graph.view_steps.size());
    graph.view_steps.insert(graph.view_steps.end(), steps);
    return add(op, {x}, shape, [&](Node& node) {
      node.first_step = first;
      node.step_count = static_cast<std::uint32_t>(steps.size());
      node.gradient_copied = copied;
    });
  }
};

inline double wave(std::int64_t i, double which) { return std::sin(1.3 * static_cast<double>(i) + 0.7 * which + 0.1); }

inline std::vector<double> waves(const Graph& graph, TensorId id, double which) {
  std::vector<double> values(static_cast<std::size_t>(graph.tensor(id).shape.elements().value()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = wave(static_cast<std::int64_t>(i), which);
  return values;
}

struct Case {
  std::string name;
  std::function<void(Small&)> build;  // Sets `result`.
  // Integers of an input that is not trained, by their place among all tensors.
  std::map<TensorId, std::vector<double>> fixed = {};
  double shift = 0;  // Added to every input, to keep away from where a function has no derivative.
};

inline void number(Node& node, double value) { node.number = value; }

inline Case unary(const char* name, Op op, double value = 0, double shift = 0) {
  return {name,
          [=](Small& s) {
            const TensorId x = s.input({2, 3, 4});
            // Through a swap, so that the operand is strided.
            const TensorId turned = s.view(x, {2, 4, 3}, {step_swap(1, 2)});
            s.result = s.add(op, {turned}, {2, 4, 3}, [=](Node& node) { number(node, value); });
          },
          {},
          shift};
}

inline Case binary(const char* name, Op op, Shape a, Shape b, Shape out, double shift = 0) {
  return {name, [=](Small& s) { s.result = s.add(op, {s.input(a), s.input(b)}, out); }, {}, shift};
}

inline std::vector<Case> elementwise_cases() {
  return {
      unary("mul_scalar", Op::MulScalar, 0.7),
      unary("div_scalar", Op::DivScalar, 0.7),
      unary("add_scalar", Op::AddScalar, 0.7),
      unary("pow 3", Op::PowScalar, 3),
      unary("pow 2", Op::PowScalar, 2),
      unary("pow 1.5", Op::PowScalar, 1.5, 2),
      unary("neg", Op::Neg),
      unary("abs", Op::Abs, 0, 2),
      unary("exp", Op::Exp),
      unary("log", Op::Log, 0, 2),
      unary("sqrt", Op::Sqrt, 0, 2),
      unary("rsqrt", Op::Rsqrt, 0, 2),
      unary("reciprocal", Op::Reciprocal, 0, 2),
      unary("sin", Op::Sin),
      unary("cos", Op::Cos),
      unary("tanh", Op::Tanh),
      unary("sigmoid", Op::Sigmoid),
      unary("relu", Op::Relu, 0, 2),
      unary("silu", Op::Silu),
      unary("gelu", Op::Gelu, 0),
      unary("gelu tanh", Op::Gelu, 1),
      unary("gelu in steps", Op::Gelu, 2),
      unary("dropout", Op::Dropout, 0.4),
      unary("softmax", Op::Softmax),
      unary("log_softmax", Op::LogSoftmax),
      unary("to", Op::Cast),
      binary("add", Op::Add, {2, 3}, {2, 3}, {2, 3}),
      binary("add broadcast", Op::Add, {2, 3, 4}, {3, 1}, {2, 3, 4}),
      binary("sub", Op::Sub, {2, 3}, {2, 3}, {2, 3}),
      binary("sub broadcast", Op::Sub, {4}, {3, 4}, {3, 4}),
      binary("mul", Op::Mul, {2, 3}, {2, 3}, {2, 3}),
      binary("mul broadcast", Op::Mul, {2, 1, 4}, {3, 1}, {2, 3, 4}),
      binary("div", Op::Div, {2, 3}, {2, 3}, {2, 3}, 3),
      binary("div broadcast", Op::Div, {2, 3, 4}, {4}, {2, 3, 4}, 3),
  };
}

// A table whose gradient lies otherwise, slopes of biases, and what is filled in place.
inline std::vector<Case> filling_cases() {
  std::vector<Case> cases;
  cases.push_back({"embedding whose gradient lies otherwise",
                   [](Small& s) {
                     const TensorId ids = s.input({2, 3}, false, DType::Int64);
                     const TensorId rows = s.add(Op::Embedding, {s.input({5, 4}), ids}, {2, 3, 4},
                                                 [](Node& node) { node.by_head = true; });
                     s.result = s.view(rows, {4, 2, 3}, {step_swap(1, 2), step_swap(0, 1)});
                   },
                   {{TensorId(0), {1, 3, 1, 0, 4, 1}}}});
  cases.push_back({"powers of two tensors", [](Small& s) {
                     const TensorId base = s.add(Op::Arange, {}, {}, [](Node& node) {
                       node.filled = true;
                       node.number = 0.25;
                     });
                     const TensorId powers = s.add(
                         Op::Arange, {}, {3},
                         [](Node& node) {
                           node.number = 1;
                           node.scale = 2;
                         },
                         DType::Int32);
                     const TensorId slopes = s.add(Op::PowScalar, {base, powers}, {3});
                     s.result = s.add(Op::Mul, {s.input({2, 3}), slopes}, {2, 3});
                   }});
  cases.push_back({"a number where it is masked, in place",
                   [](Small& s) {
                     const TensorId mask = s.input({2, 3}, false, DType::Bool);
                     const TensorId x = s.add(Op::MulScalar, {s.input({2, 3})}, {2, 3}, [](Node& n) { number(n, 3); });
                     s.result = s.add(Op::MaskedFillInPlace, {x, mask}, {2, 3}, [](Node& node) {
                       node.in_place = true;
                       node.number = 7;
                     });
                   },
                   {{TensorId(0), {0, 1, 0, 0, 1, 1}}}});
  return cases;
}

inline std::vector<Case> shaping_cases() {
  std::vector<Case> cases = filling_cases();
  cases.push_back({"mean", [](Small& s) { s.result = s.add(Op::MeanLast, {s.input({2, 3, 4})}, {2, 3, 1}); }});
  cases.push_back({"sum", [](Small& s) { s.result = s.add(Op::SumDim, {s.input({2, 3})}, {}); }});
  cases.push_back({"contiguous", [](Small& s) {
                     const TensorId turned = s.view(s.input({2, 3}), {3, 2}, {step_swap(0, 1)});
                     s.result = s.add(Op::Contiguous, {turned}, {3, 2});
                   }});
  cases.push_back(
      {"cat", [](Small& s) {
         s.result = s.add(Op::Cat, {s.input({2, 3}), s.input({2, 2})}, {2, 5}, [](Node& node) { node.axis = 1; });
       }});
  cases.push_back({"slice", [](Small& s) {
                     const TensorId part = s.view(s.input({3, 5}), {3, 2}, {step_narrow(1, 2, 2)}, Op::Slice);
                     s.result = s.add(Op::MulScalar, {part}, {3, 2}, [](Node& node) { number(node, 2); });
                   }});
  cases.push_back({"split", [](Small& s) {
                     const auto parts =
                         s.add_many(Op::Split, {s.input({2, 6})}, {{2, 3}, {2, 3}}, [](Node& node) { node.axis = 1; });
                     s.result = s.add(Op::Mul, {parts[0], parts[1]}, {2, 3});
                   }});
  cases.push_back({"pad", [](Small& s) {
                     s.result = s.add(Op::Pad, {s.input({2, 3})}, {2, 5}, [](Node& node) { number(node, -3); });
                   }});
  cases.push_back({"tril", [](Small& s) { s.result = s.add(Op::Tril, {s.input({2, 3, 3})}, {2, 3, 3}); }});
  cases.push_back({"repeated heads", [](Small& s) {
                     const TensorId x = s.input({2, 2, 3, 2});
                     const TensorId all =
                         s.view(x, {2, 6, 3, 2},
                                {step_reshape({2, 2, 1, 3, 2}), step_repeat(2, 3), step_reshape({2, 6, 3, 2})},
                                Op::View, true);
                     s.result = s.add(Op::Contiguous, {all}, {2, 6, 3, 2});
                   }});
  cases.push_back({"heads copied back", [](Small& s) {
                     const TensorId heads = s.view(s.input({2, 3, 8}), {2, 4, 3, 2},
                                                   {step_reshape({2, 3, 4, 2}), step_swap(1, 2)}, Op::View, true);
                     s.result = s.add(Op::Tanh, {heads}, {2, 4, 3, 2});
                   }});
  cases.push_back({"embedding",
                   [](Small& s) {
                     const TensorId ids = s.input({2, 3}, false, DType::Int64);
                     s.result = s.add(Op::Embedding, {s.input({5, 4}), ids}, {2, 3, 4});
                   },
                   {{TensorId(0), {1, 3, 1, 0, 4, 1}}}});
  cases.push_back({"safe softmax", [](Small& s) {
                     s.result = s.add(Op::Softmax, {s.input({2, 3})}, {2, 3}, [](Node& node) { node.safe = true; });
                   }});
  cases.push_back({"add in place", [](Small& s) {
                     const TensorId x = s.add(Op::MulScalar, {s.input({2, 3})}, {2, 3}, [](Node& n) { number(n, 2); });
                     s.result = s.add(Op::Add, {x, s.input({3}, false)}, {2, 3}, [](Node& n) { n.in_place = true; });
                   }});
  return cases;
}

// Nodes' numbers; what works in place; and indices, which are inputs of their own.
inline std::function<void(Node&)> with(double value) {
  return [=](Node& node) { number(node, value); };
}
inline std::function<void(Node&)> in_place(double value, std::int8_t axis) {
  return [=](Node& node) {
    node.in_place = true;
    node.number = value;
    node.axis = axis;
  };
}
inline TensorId ids(Small& s, const Shape& shape) { return s.input(shape, false, DType::Int64); }

// What repeats elements, and sums between other dimensions.
inline std::vector<Case> spreading_cases() {
  std::vector<Case> cases;
  cases.push_back({"expand", [](Small& s) {
                     const TensorId wide = s.add(Op::Expand, {s.input({2, 1, 3})}, {2, 4, 3});
                     s.result = s.add(Op::Mul, {wide, s.input({2, 4, 3})}, {2, 4, 3});
                   }});
  cases.push_back(
      {"stack", [](Small& s) {
         s.result = s.add(Op::Stack, {s.input({2, 3}), s.input({2, 3})}, {2, 3, 2}, [](Node& node) { node.axis = 2; });
       }});
  cases.push_back({"stack in front", [](Small& s) {
                     s.result = s.add(Op::Stack, {s.input({2, 3}), s.input({2, 3})}, {2, 2, 3});
                   }});
  cases.push_back({"repeat_interleave", [](Small& s) {
                     const TensorId twice = s.add(Op::RepeatInterleave, {s.input({2, 3}, false)}, {2, 6});
                     s.result = s.add(Op::Mul, {s.input({2, 6}), twice}, {2, 6});
                   }});
  cases.push_back({"sum over a dimension between others", [=](Small& s) {
                     s.result = s.add(Op::SumDim, {s.input({2, 2, 3})}, {2, 3}, with(1));
                   }});
  return cases;
}

// What picks by indices.
inline std::vector<Case> picking_cases() {
  std::vector<Case> cases;
  cases.push_back({"rows by their indices, divided",
                   [=](Small& s) {
                     const TensorId at = ids(s, {6});
                     const TensorId rows = s.add(Op::FloorDivScalar, {at}, {6}, with(2), DType::Int64);
                     s.result = s.add(Op::Index, {s.input({4, 3}), rows}, {6, 3});
                   },
                   {{TensorId(0), {0, 1, 7, 2, 3, 6}}}});
  cases.push_back({"elements by two indices",
                   [=](Small& s) {
                     const TensorId rows = ids(s, {3});
                     const TensorId columns = ids(s, {3});
                     s.result = s.add(Op::Index, {s.input({2, 4, 3}), rows, columns}, {3, 3});
                   },
                   {{TensorId(0), {0, 1, 0}}, {TensorId(1), {2, 2, 2}}}});
  cases.push_back({"each row's columns",
                   [=](Small& s) {
                     const TensorId rows = ids(s, {2});
                     const TensorId columns = ids(s, {3});
                     s.result = s.add(Op::Index, {s.input({2, 4}), rows, columns}, {2, 1, 1, 3});
                   },
                   {{TensorId(0), {1, 0}}, {TensorId(1), {3, 1, 1}}}});
  cases.push_back({"along one dimension, from its end",
                   [=](Small& s) {
                     const TensorId at = ids(s, {3});
                     const TensorId turned = s.view(s.input({2, 3, 4}), {2, 4, 3}, {step_swap(1, 2)});
                     s.result = s.add(Op::Index, {turned, at}, {2, 3, 3}, [](Node& node) { node.axis = 1; });
                   },
                   {{TensorId(0), {-1, 0, 3}}}});
  cases.push_back({"gather",
                   [=](Small& s) {
                     const TensorId at = ids(s, {2, 4});
                     s.result = s.add(Op::Gather, {s.input({2, 3}), at}, {2, 4});
                   },
                   {{TensorId(0), {2, 0, 0, 1, 1, 1, 2, 0}}}});
  return cases;
}

// What is put into a part, or to indices.
inline std::vector<Case> placing_cases() {
  std::vector<Case> cases;
  cases.push_back({"scatter a number",
                   [=](Small& s) {
                     const TensorId at = ids(s, {2, 2});
                     const TensorId x = s.add(Op::MulScalar, {s.input({2, 4})}, {2, 4}, with(3));
                     s.result = s.add(Op::Scatter, {x, at}, {2, 4}, in_place(1, 1));
                   },
                   {{TensorId(0), {2, 0, 3, 1}}}});
  cases.push_back({"scatter a source",
                   [=](Small& s) {
                     const TensorId at = ids(s, {2, 2});
                     const TensorId x = s.add(Op::MulScalar, {s.input({2, 4})}, {2, 4}, with(3));
                     s.result = s.add(Op::Scatter, {x, at, s.input({2, 2})}, {2, 4}, in_place(0, 1));
                   },
                   {{TensorId(0), {2, 0, 3, 1}}}});
  cases.push_back({"copied into", [=](Small& s) {
                     const TensorId whole = s.add(Op::MulScalar, {s.input({2, 5})}, {2, 5}, with(3));
                     s.result = s.add(Op::CopyInto, {whole, s.input({2, 3})}, {2, 5}, in_place(1, 1));
                   }});
  cases.push_back({"copied into what has no gradient", [=](Small& s) {
                     const TensorId whole = s.add(Op::MulScalar, {s.input({2, 5}, false)}, {2, 5}, with(3));
                     s.result = s.add(Op::CopyInto, {whole, s.input({2, 3})}, {2, 5}, in_place(1, 1));
                   }});
  cases.push_back({"complex numbers", [=](Small& s) {
                     const TensorId angles = s.input({3, 2}, false, DType::Float32);
                     const TensorId turns = s.add(Op::Polar, {angles}, {3, 2, 2}, {}, DType::Float32);
                     const TensorId wide = s.add(Op::Cast, {turns}, {3, 2, 2});
                     s.result = s.add(Op::ComplexMul, {s.input({2, 3, 2, 2}), wide}, {2, 3, 2, 2});
                   }});
  return cases;
}

// What orders and counts; where a result has no gradient, it picks from something that has.
inline std::vector<Case> ordering_cases() {
  std::vector<Case> cases;
  const auto selection = [](const char* name, Op op, Shape made) {
    return Case{name, [=](Small& s) {
                  const TensorId x = s.input({3, 4});
                  s.result = s.add_many(op, {x}, {made}, {})[0];
                  Node& node = s.graph.nodes.back();  // The indices are the second output.
                  s.graph.operands.push_back(s.tensor(made, DType::Int64, false, s.graph.tensor(s.result).producer));
                  ++node.output_count;
                }};
  };
  cases.push_back(selection("topk", Op::TopK, {3, 2}));
  cases.push_back(selection("max", Op::Max, {3}));
  cases.push_back(
      {"groups of rows",
       [=](Small& s) {
         const TensorId experts = ids(s, {5});
         const TensorId bins = s.add(Op::Cast, {experts}, {5}, {}, DType::Int32);
         const TensorId counts = s.add(Op::Histogram, {bins}, {4}, {}, DType::Int32);
         const TensorId ends = s.add(Op::CumSum, {counts}, {4}, {}, DType::Int32);
         const TensorId rows = s.add(Op::GroupedMatmul, {s.input({5, 3}), s.input({4, 2, 3}), ends}, {5, 2});
         s.result = s.add(Op::GroupedMatmul, {rows, s.input({4, 2, 3}), ends}, {5, 3}, with(1));
       },
       {{TensorId(0), {0, 0, 1, 3, 3}}}});
  cases.push_back({"sorted, and back in order",
                   [=](Small& s) {
                     const TensorId keys = ids(s, {5});
                     const TensorId sorted = s.add_many(Op::Sort, {keys}, {{5}, {5}}, {}, DType::Int64)[1];
                     const TensorId range = s.add(Op::Arange, {}, {5}, {}, DType::Int64);
                     const TensorId inverse = s.add(Op::IndexPut, {sorted, range}, {5}, {}, DType::Int64);
                     s.result = s.add(Op::Index, {s.input({5, 2}), inverse}, {5, 2});
                   },
                   {{TensorId(0), {3, 1, 3, 0, 1}}}});
  return cases;
}

// What chooses: by a condition, a mask or bounds.
inline std::vector<Case> choosing_cases() {
  const auto flags = [](Small& s, Shape shape) { return s.input(shape, false, DType::Bool); };
  const auto bounded = [](const char* name, std::uint8_t bounds) {
    return Case{name, [=](Small& s) {
                  s.result = s.add(Op::Clamp, {s.input({3, 4})}, {3, 4}, [=](Node& node) {
                    number(node, 0.45);
                    node.bounds = bounds;
                  });
                }};
  };
  return {
      bounded("clamp", Node::kBothBounds),
      bounded("clamp from below", Node::kLowerBound),
      bounded("clamp from above", Node::kUpperBound),
      {"where",
       [=](Small& s) {
         const TensorId condition = flags(s, {2, 3});
         s.result = s.add(Op::Where, {condition, s.input({2, 3}), s.input({2, 3})}, {2, 3});
       },
       {{TensorId(0), {0, 1, 1, 0, 1, 0}}}},
      {"where of integers, and the least",
       [=](Small& s) {
         const TensorId condition = flags(s, {4});
         const TensorId a = s.input({4}, false, DType::Int64);
         const TensorId b = s.input({4}, false, DType::Int64);
         const TensorId chosen = s.add(Op::Where, {condition, a, b}, {4}, {}, DType::Int64);
         const TensorId least = s.add(Op::Minimum, {chosen, b}, {4}, {}, DType::Int64);
         s.result = s.add(Op::Index, {s.input({5, 2}), least}, {4, 2});
       },
       {{TensorId(0), {0, 1, 1, 0}}, {TensorId(1), {4, 3, 0, 1}}, {TensorId(2), {2, 1, 2, 3}}}},
      {"masked_fill by a number",
       [=](Small& s) {
         const TensorId mask = flags(s, {3, 1});
         s.result = s.add(Op::MaskedFill, {s.input({3, 4}), mask}, {3, 4}, [](Node& node) { number(node, -3); });
       },
       {{TensorId(0), {0, 1, 0}}}},
      {"flags that are not",
       [=](Small& s) {
         const TensorId none = s.add(Op::Equal, {flags(s, {3})}, {3}, {}, DType::Bool);
         s.result = s.add(Op::MaskedFill, {s.input({3}), none}, {3});
       },
       {{TensorId(0), {0, 1, 0}}}},
      {"div in place",
       [](Small& s) {
         const TensorId x = s.add(Op::MulScalar, {s.input({2, 3})}, {2, 3}, [](Node& node) { number(node, 3); });
         s.result = s.add(Op::Div, {x, s.input({2, 1})}, {2, 3}, [](Node& node) { node.in_place = true; });
       },
       {},
       3},
  };
}

inline Case linear(const char* name, Product product, bool bias) {
  return {name, [=](Small& s) {
            const TensorId x = s.input({2, 3, 4});
            const TensorId weight = s.input(product == Product::Direct ? Shape{4, 5} : Shape{5, 4});
            std::vector<TensorId> inputs{x, weight};
            if (bias) inputs.push_back(s.input({5}));
            s.result = s.add(Op::Linear, inputs, {2, 3, 5}, [=](Node& node) { node.product = product; });
          }};
}

inline Case attention(const char* name, AttentionKernel kernel, std::int64_t kv_heads, double dropout,
                      std::int64_t tokens) {
  return {name, [=](Small& s) {
            const TensorId q = s.view(s.input({2, tokens, 4, 2}), {2, 4, tokens, 2}, {step_swap(1, 2)});
            const TensorId k = s.input({2, kv_heads, tokens, 2});
            const TensorId v = s.input({2, kv_heads, tokens, 2});
            s.result = s.add(Op::Attention, {q, k, v}, {2, 4, tokens, 2}, [=](Node& node) {
              node.attention = kernel;
              node.number = dropout;
            });
          }};
}

// Of three columns, padded to eight as flash wants them; what comes back is a part of its output.
inline Case padded_attention(const char* name, std::int64_t kv_heads) {
  return {name, [=](Small& s) {
            const auto padded = [&](std::int64_t heads) {
              return s.add(Op::Pad, {s.input({2, heads, 3, 3})}, {2, heads, 3, 8});
            };
            const TensorId q = padded(4);
            const TensorId k = padded(kv_heads);
            const TensorId v = padded(kv_heads);
            const TensorId whole = s.add(Op::Attention, {q, k, v}, {2, 4, 3, 8}, [](Node& node) {
              node.attention = AttentionKernel::Flash;
              node.by_head = true;
              node.padding = 5;
            });
            s.result = s.view(whole, {2, 4, 3, 3}, {step_narrow(3, 0, 3)}, Op::Slice);
          }};
}

inline Case loss(const char* name, Reduction reduction) {
  return {name,
          [=](Small& s) {
            const TensorId labels = s.input({4}, false, DType::Int64);
            const TensorId rows = s.add(Op::LogSoftmax, {s.input({4, 5})}, {4, 5});
            s.result = s.add(Op::NllLoss, {rows, labels}, {}, [=](Node& node) { node.reduction = reduction; });
          },
          {{TensorId(0), {2, -100, 4, 0}}}};
}

// baddbmm, bmm, and a convolution of patches side by side.
inline std::vector<Case> product_cases() {
  const auto stacked = [](double factor) {
    return [=](Small& s) {
      const TensorId turned = s.view(s.input({2, 5, 4}), {2, 4, 5}, {step_swap(1, 2)});
      s.result = s.add(Op::Bmm, {s.input({2, 3, 4}), turned, s.input({2, 1, 5}, false)}, {2, 3, 5},
                       [=](Node& node) { number(node, factor); });
    };
  };
  std::vector<Case> cases;
  cases.push_back({"baddbmm", stacked(0.5)});
  cases.push_back({"baddbmm of a factor of one", stacked(1)});
  cases.push_back({"baddbmm of what one factor has no gradient", [](Small& s) {
                     s.result =
                         s.add(Op::Bmm, {s.input({2, 3, 4}, false), s.input({2, 4, 5}), s.input({2, 1, 5}, false)},
                               {2, 3, 5}, [](Node& node) { number(node, 0.5); });
                   }});
  cases.push_back({"bmm", [](Small& s) {
                     s.result = s.add(Op::Bmm, {s.input({2, 3, 4}), s.input({2, 4, 5})}, {2, 3, 5},
                                      [](Node& node) { number(node, 1); });
                   }});
  cases.push_back({"convolution of patches", [](Small& s) {
                     const TensorId made = s.add(
                         Op::Conv2d, {s.input({2, 3, 4, 6}, false), s.input({5, 3, 2, 3}), s.input({5})}, {2, 5, 2, 2});
                     s.result = s.view(made, {2, 4, 5}, {step_reshape({2, 5, 4}), step_swap(1, 2)});
                   }});
  return cases;
}

inline std::vector<Case> large_cases() {
  std::vector<Case> cases = product_cases();
  cases.push_back(linear("linear", Product::Transposed, false));
  cases.push_back(linear("linear with bias", Product::Transposed, true));
  cases.push_back(linear("conv1d", Product::Direct, true));
  cases.push_back(linear("stage-3 linear", Product::Function, true));
  cases.push_back({"linear of what does not lie as rows", [](Small& s) {
                     const TensorId x = s.view(s.input({3, 2, 4}), {2, 3, 4}, {step_swap(0, 1)});
                     s.result = s.add(Op::Linear, {x, s.input({5, 4})}, {2, 3, 5});
                   }});
  cases.push_back({"matmul", [](Small& s) {
                     const TensorId turned = s.view(s.input({2, 2, 5, 4}), {2, 2, 4, 5}, {step_swap(2, 3)});
                     s.result = s.add(Op::Matmul, {s.input({2, 2, 3, 4}), turned}, {2, 2, 3, 5});
                   }});
  cases.push_back({"layer_norm", [](Small& s) {
                     s.result = s.add(Op::LayerNorm, {s.input({2, 2, 5}), s.input({5}), s.input({5})}, {2, 2, 5},
                                      [](Node& node) { number(node, 1e-5); });
                   }});
  cases.push_back(attention("flash attention", AttentionKernel::Flash, 4, 0, 3));
  cases.push_back(attention("flash attention, grouped, dropped", AttentionKernel::Flash, 2, 0.3, 3));
  cases.push_back(attention("memory-efficient attention", AttentionKernel::MemoryEfficient, 4, 0.3, 3));
  cases.push_back(attention("flash attention of two blocks", AttentionKernel::Flash, 2, 0, 66));
  cases.push_back(padded_attention("padded flash attention", 4));
  cases.push_back(padded_attention("padded flash attention, grouped", 2));
  cases.push_back(loss("mean loss", Reduction::Mean));
  cases.push_back(loss("summed loss", Reduction::Sum));
  return cases;
}

// Of one rank of several that share a vocabulary: words 4 to 8, and targets on both sides of them.
inline std::vector<Case> parallel_cases() {
  const auto loss = [](bool in_place) {
    return [=](Small& s) {
      const TensorId targets = s.input({2, 3}, false, DType::Int64);
      const TensorId leaf = s.input({2, 3, 5}, true, in_place ? std::optional(DType::Float32) : std::nullopt);
      const TensorId logits = s.add(
          Op::MulScalar, {leaf}, {2, 3, 5}, [](Node& node) { number(node, 3); },
          in_place ? std::optional(DType::Float32) : std::nullopt);
      s.result = s.add_many(
          Op::ParallelCrossEntropy, {logits, targets}, {{2, 3, 5}, {2, 3}},
          [=](Node& node) {
            node.in_place = in_place;
            node.number = 4;
          },
          DType::Float32)[1];
    };
  };
  return {
      {"embedding with padding",  // Whose gradient is none of the function.
       [](Small& s) {
         const TensorId ids = s.input({2, 3}, false, DType::Int64);
         s.result = s.add(Op::Embedding, {s.input({5, 4}), ids}, {2, 3, 4}, [](Node& node) { number(node, 2); });
       },
       {{TensorId(0), {1, 3, 1, 0, 4, 1}}}},
      {"words below",
       [](Small& s) {
         s.result = s.add(
             Op::Less, {s.input({6}, false, DType::Int64)}, {6}, [](Node& n) { n.number = 4; }, DType::Bool);
       },
       {{TensorId(0), {3, 4, 5, 0, 8, 9}}}},
      {"words above",
       [](Small& s) {
         s.result = s.add(
             Op::GreaterEqual, {s.input({6}, false, DType::Int64)}, {6}, [](Node& n) { n.number = 4; }, DType::Bool);
       },
       {{TensorId(0), {3, 4, 5, 0, 8, 9}}}},
      {"masked rows",
       [](Small& s) {
         const TensorId mask = s.input({2, 3}, false, DType::Bool);
         const TensorId x = s.add(Op::MulScalar, {s.input({2, 3, 4})}, {2, 3, 4}, [](Node& node) { number(node, 3); });
         s.result = s.add(Op::MaskedFillInPlace, {x, mask}, {2, 3, 4}, [](Node& node) { node.in_place = true; });
       },
       {{TensorId(0), {0, 1, 0, 0, 1, 1}}}},
      {"words counted from a rank's first, 0 for others'",
       [](Small& s) {
         const TensorId ids = s.input({5}, false, DType::Int64);
         const TensorId mask = s.input({5}, false, DType::Bool);
         const TensorId local = s.add(
             Op::SubScalar, {ids}, {5}, [](Node& n) { number(n, 16777217); }, DType::Int64);
         s.result = s.add(
             Op::MaskedFillInPlace, {local, mask}, {5}, [](Node& n) { n.in_place = true; }, DType::Int64);
       },
       {{TensorId(0), {16777217, 16777219, 3, 33554433, 16777218}}, {TensorId(1), {0, 0, 1, 0, 1}}}},
      {"either",
       [](Small& s) {
         const TensorId a = s.input({4}, false, DType::Bool);
         s.result = s.add(Op::BitwiseOr, {a, s.input({4}, false, DType::Bool)}, {4}, {}, DType::Bool);
       },
       {{TensorId(0), {0, 0, 1, 1}}, {TensorId(1), {0, 1, 0, 1}}}},
      {"a product with what is narrower, and broadcast",
       [](Small& s) {
         const TensorId wide = s.input({2, 3, 4}, true, DType::Float32);
         const TensorId narrow = s.input({4}, true, DType::BFloat16);
         s.result = s.add(Op::Mul, {wide, narrow}, {2, 3, 4}, {}, DType::Float32);
       }},
      {"loss over a rank's words", loss(false), {{TensorId(0), {3, 4, 8, 9, 6, 0}}}},
      {"the same in place", loss(true), {{TensorId(0), {3, 4, 8, 9, 6, 0}}}},
  };
}

}  // namespace small_graphs
