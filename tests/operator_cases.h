// The cases of tests/witnesses/operators.json: each operator alone, as real torch saw it under FakeTensorMode, beside
// the catalogue's recipe for a graph of that one operator. Both sides are written as the same words:
// "+out0:120" an output, "+e:8" a by-product kept for backward, "+in0:240" the gradient of input 0, "+t:60" and "-t:60"
// a temporary. What dies after the last allocation dies with the operator and is left out.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/graph.h"
#include "model/catalogue.h"

namespace dsplan::testing {

struct Described {
  std::string forward;
  std::string backward;
  std::vector<std::string> saved;   // Sorted; "_saved_self=in0", "_saved_result1=e:8".
  std::vector<std::string> passes;  // "in0": its gradient is the incoming one.
  friend bool operator==(const Described&, const Described&) = default;
};

inline DType dtype_named(const std::string& text) {
  for (DType dtype : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Int64, DType::Int32,
                      DType::Int8, DType::UInt8, DType::Bool}) {
    if (text == name(dtype)) return dtype;
  }
  throw Refusal("operators.json", "no dtype \"" + text + "\"");
}

// "bf16[6,10]*@in0": dtype, shape, whether it requires a gradient, and the input whose storage it shares.
inline Tensor tensor_of(const std::string& text) {
  Tensor tensor;
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']');
  tensor.dtype = dtype_named(text.substr(0, open));
  for (std::size_t at = open + 1; at < close;) {
    tensor.shape.dims[tensor.shape.rank++] = std::stoll(text.substr(at));
    const std::size_t comma = text.find(',', at);
    at = std::min(comma, close) + 1;
  }
  tensor.requires_grad = text.find('*', close) != std::string::npos;
  return tensor;
}

inline AttentionKernel kernel_named(const std::string& text) {
  if (text == "flash") return AttentionKernel::Flash;
  if (text == "memory_efficient") return AttentionKernel::MemoryEfficient;
  if (text == "cudnn") return AttentionKernel::CuDnn;
  return AttentionKernel::None;
}

inline Graph graph_of(const nlohmann::json& entry) {
  Graph graph;
  Node node;
  node.op = op_named(entry.at("op").get<std::string>()).value();
  node.in_place = entry.value("in_place", false);
  node.number = entry.value("number", 0.0);
  node.full_attention = entry.value("full", false);
  node.bounds = entry.value("bounds", Node::kBothBounds);
  node.attention = kernel_named(entry.value("kernel", std::string()));
  node.gradient_copied = entry.value("gradient_copied", false);
  if (entry.value("product", std::string()) == "direct") node.product = Product::Direct;
  const std::string reduction = entry.value("reduction", std::string("mean"));
  node.reduction = reduction == "mean" ? Reduction::Mean : reduction == "sum" ? Reduction::Sum : Reduction::None;
  const auto add = [&](const std::string& text) {
    Tensor tensor = tensor_of(text);
    const std::size_t shared = text.find("@in");
    if (shared == std::string::npos) {
      tensor.storage = static_cast<StorageId>(graph.storages.size());
      graph.storages.push_back({storage(tensor.shape.elements(), tensor.dtype), kNone, kNone});
    } else {
      tensor.storage = graph.tensor(std::stoi(text.substr(shared + 3))).storage;
    }
    graph.operands.push_back(static_cast<TensorId>(graph.tensors.size()));
    graph.tensors.push_back(tensor);
    return tensor.requires_grad;
  };
  for (const auto& text : entry.at("in")) add(text.get<std::string>());
  for (const auto& text : entry.at("out")) node.requires_grad |= add(text.get<std::string>());
  node.input_count = static_cast<std::uint16_t>(entry.at("in").size());
  node.output_count = static_cast<std::uint16_t>(entry.at("out").size());
  node.grad_enabled = node.requires_grad;
  graph.nodes.push_back(node);
  return graph;
}

inline bool is_kept(const Recipe& recipe, const Slot& slot) {
  return std::any_of(recipe.saved.begin(), recipe.saved.end(), [&](const Saved& saved) {
    return saved.kind == Saved::Kind::Extra && slot.kind == SlotKind::Extra && saved.index == slot.index;
  });
}

// Dispatch-level slots only: no outside oracle without a GPU sees into kernels. What one kernel fills is one word,
// sorted: the order of allocations within a call is not seen either.
inline std::string words_of(const Recipe& recipe, const std::vector<RecipeStep>& steps) {
  std::vector<std::string> words;
  std::vector<std::int64_t> frees;
  std::vector<std::string> made;
  const auto close = [&] {
    if (made.empty()) return;
    std::sort(frees.begin(), frees.end());
    for (std::int64_t bytes : frees) words.push_back("-t:" + std::to_string(bytes));
    frees.clear();
    std::sort(made.begin(), made.end());
    std::string word;
    for (const std::string& one : made) word += (word.empty() ? "" : ",") + one;
    words.push_back(word);
    made.clear();
  };
  for (const RecipeStep& step : steps) {
    if (step.kind != RecipeStep::Kind::Make) close();
    if (step.kind != RecipeStep::Kind::Make && step.kind != RecipeStep::Kind::Drop) continue;
    const Slot& slot = recipe.slots[step.slot];
    if (slot.visibility == Visibility::Kernel || slot.bytes == Bytes(0)) continue;
    if (step.kind == RecipeStep::Kind::Drop) {
      frees.push_back(slot.bytes.value());
      continue;
    }
    std::string role = "t";
    if (slot.kind == SlotKind::Output) role = "out" + std::to_string(slot.index);
    if (slot.kind == SlotKind::Gradient) role = "in" + std::to_string(slot.index);
    if (is_kept(recipe, slot)) role = "e";
    made.push_back("+" + role + ":" + std::to_string(slot.bytes.value()));
  }
  close();
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

inline Described described(const Graph& graph) {
  const Node& node = graph.nodes[0];
  Recipe recipe;
  recipe_of(graph, node, recipe);
  Described result{words_of(recipe, recipe.forward), words_of(recipe, recipe.backward), {}, {}};
  for (const Saved& saved : recipe.saved) {
    std::string text = std::string(saved.name) + "=";
    if (saved.kind == Saved::Kind::Extra) {
      for (const Slot& slot : recipe.slots) {
        if (slot.kind != SlotKind::Extra || slot.index != saved.index) continue;
        if (slot.visibility == Visibility::Dispatch) {
          result.saved.push_back(text + "e:" + std::to_string(slot.bytes.value()));
        }
      }
      continue;
    }
    const bool input = saved.kind == Saved::Kind::Input;
    const TensorId tensor = input ? graph.input(node, saved.index) : graph.output(node, saved.index);
    // A storage is named by the first tensor that lies in it.
    for (std::size_t i = 0; i < graph.operands.size(); ++i) {
      if (graph.tensor(graph.operands[i]).storage != graph.tensor(tensor).storage) continue;
      const bool in = i < node.input_count;
      result.saved.push_back(text + (in ? "in" : "out") + std::to_string(in ? i : i - node.input_count));
      break;
    }
  }
  std::sort(result.saved.begin(), result.saved.end());
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if ((recipe.passes >> i & 1U) != 0) result.passes.push_back("in" + std::to_string(i));
  }
  return result;
}

inline Described witnessed(const nlohmann::json& entry) {
  return {entry.at("forward"), entry.value("backward", std::string()), entry.value("saved", std::vector<std::string>()),
          entry.value("passes", std::vector<std::string>())};
}

}  // namespace dsplan::testing
