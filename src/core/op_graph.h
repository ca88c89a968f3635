// An op-graph as its file says it: a small computation of named tensors and operators (interface.md, "Op-graph").
// io/op_graph.h reads it, model/op_graphs/op_graph.h judges it and makes a Graph of it. Everything that may be wrong keeps
// its byte offset in the document, so that each fault points at its place.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/model.h"
#include "core/units.h"

namespace dsplan {

// A name, where it stands.
struct OpGraphName {
  std::string text;
  std::size_t offset = 0;
};

struct OpGraphDType {
  std::string_view name;
  DType dtype;
};
// PyTorch's names of dtypes and their aliases, and dsplan's short ones.
inline constexpr std::array kOpGraphDTypes = {
    OpGraphDType{"float16", DType::Float16}, OpGraphDType{"bfloat16", DType::BFloat16},
    OpGraphDType{"float32", DType::Float32}, OpGraphDType{"float64", DType::Float64},
    OpGraphDType{"int64", DType::Int64},     OpGraphDType{"int32", DType::Int32},
    OpGraphDType{"int8", DType::Int8},       OpGraphDType{"uint8", DType::UInt8},
    OpGraphDType{"bool", DType::Bool},       OpGraphDType{"half", DType::Float16},
    OpGraphDType{"float", DType::Float32},   OpGraphDType{"double", DType::Float64},
    OpGraphDType{"long", DType::Int64},      OpGraphDType{"int", DType::Int32},
    OpGraphDType{"fp16", DType::Float16},    OpGraphDType{"bf16", DType::BFloat16},
    OpGraphDType{"fp32", DType::Float32},    OpGraphDType{"fp64", DType::Float64},
};

struct OpGraphTensor {
  OpGraphName name;
  Shape shape;
  DType dtype = DType::Float32;
  bool requires_grad = false;
};

struct OpGraphOp {
  enum class Kind : std::uint8_t { Operator, Checkpoint, CheckpointSequential, Custom };
  Kind kind = Kind::Operator;
  OpGraphName op;  // PyTorch's name.
  std::vector<OpGraphName> inputs;
  std::vector<OpGraphName> outputs;
  bool in_place = false;
  bool no_grad = false;
  std::vector<Member> attributes;  // Operator only: every key that is not one of the above, in file order.

  // Checkpoint, Custom: the ops inside. CheckpointSequential: those of each function.
  std::vector<OpGraphOp> ops;
  std::vector<std::vector<OpGraphOp>> functions;
  // Checkpoint, CheckpointSequential.
  bool reentrant = false;
  bool preserve_rng_state = true;
  std::int64_t segments = 0;       // CheckpointSequential.
  std::vector<OpGraphName> kept;   // Checkpoint, "save": operators whose results a selective checkpoint keeps.
  std::vector<OpGraphName> saves;  // Custom: what its forward saves.
};

// "hold": {"t": 4}.
struct OpGraphHold {
  OpGraphName tensor;
  std::int64_t until = 0;  // Index of an operator of the top level; the tensor is let go of after it.
};

struct OpGraph {
  Document document;  // For messages.
  std::string name;
  std::string source;
  std::vector<OpGraphTensor> tensors;
  std::vector<OpGraphOp> ops;
  std::vector<OpGraphName> outputs;
  std::vector<OpGraphHold> hold;
  bool keep_outputs = false;
  std::vector<OpGraphName> autograd_grad;  // Leaves of torch.autograd.grad instead of backward().
  // The seed experiments print (bytes - base - this) / 2^30; absent: the report does without.
  std::optional<std::int64_t> seed_base;
};

}  // namespace dsplan
