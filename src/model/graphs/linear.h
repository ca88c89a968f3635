// Linear modules as they are called: alone, with adapters around them, cut over tensor-parallel ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/graphs/builder.h"

namespace dsplan {

// A Linear or Conv1D module, with peft's adapters around it if it has them: result + B(A(dropout(x))) * scaling, in the
// adapters' dtype, then in the result's (peft, tuners/lora/layer.py, Linear.forward).
[[nodiscard]] TensorId linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features);
// The same where its gradient comes by column: what reads it sees it in `shape`, and products alone copy it, those of
// adapters and of the layer inside each for itself.
[[nodiscard]] TensorId linear_by_column(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features,
                                        const Shape& shape, std::initializer_list<ViewStep> steps);
// axolotl's functions in place of linear_modules over one input, which drop it once for all (kernels/lora.py: LoRA_QKV,
// LoRA_O, LoRA_MLP). Empty, kNone: a module has no adapters, and peft's run (apply_lora_kernel_patches).
struct Projection {
  ModuleId module = kNone;
  std::int64_t features = 0;
};
[[nodiscard]] std::vector<TensorId> adapted_linears(GraphBuilder& g, std::span<const Projection> projections,
                                                    TensorId x);
[[nodiscard]] TensorId adapted_gated(GraphBuilder& g, const std::array<Projection, 3>& projections, TensorId x);
// The same where its input is cut over the tensor-parallel ranks: the products are summed, then the bias is added. What
// is cut along its outputs is a linear_module over GraphBuilder::copy_to_parallel of the input.
[[nodiscard]] TensorId row_linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features);
// A table and a head that are cut along the vocabulary; the logits are those of this rank's words.
[[nodiscard]] TensorId vocabulary_embedding(GraphBuilder& g, TensorId weight, TensorId ids);
[[nodiscard]] TensorId vocabulary_head(GraphBuilder& g, ModuleId module, TensorId hidden);

}  // namespace dsplan
