// Operator graphs of the families that have one: what transformers' forward runs, operator by operator.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "core/training.h"
#include "model/graphs/builder.h"
#include "model/parts.h"

namespace dsplan {

// Why activations of this model under this training cannot be modelled yet ("the t5 family has no operator graph
// yet"), or nullopt. States stay exact in either case.
[[nodiscard]] std::optional<std::string> graph_unsupported(const ModelSpec& model, const Training& training,
                                                           std::int64_t tp);

// Tokens of a picture see each other, so that all layers of the text have a mask that is made.
[[nodiscard]] bool masks_pictures(const ModelSpec& model);

// A window masks some of the family's layers, not all.
[[nodiscard]] bool masks_some_layers(const ModelSpec& model);

// Of one picture among a row's text; 0: the model reads none beside text. `image_size` as in Training.
[[nodiscard]] std::int64_t picture_tokens(const ModelSpec& model, const std::vector<std::int64_t>& image_size);
// The tower of a model whose pictures may have any size; else null.
[[nodiscard]] const TowerParts* sized_tower(const ModelSpec& model);
// Parameters that are trained though no loss reaches them get no gradient: those of a tower, given which are trained,
// by ParameterId, as globs of --freeze. Empty: none.
[[nodiscard]] std::vector<std::string> unreached_parameters(const ModelSpec& model, const std::vector<bool>& trained);

// Why TRL's trainers of language models cannot be predicted with their own head; nullopt: they can.
[[nodiscard]] std::optional<std::string> fused_head_unsupported(const ModelSpec& model);

// A class without a loss: BertModel.
[[nodiscard]] bool is_body(const ModelSpec& model);

// transformers' class has no scaled_dot_product_attention.
[[nodiscard]] bool eager_alone(const ModelSpec& model);

// transformers' class makes a mask whatever there is to mask.
[[nodiscard]] bool always_masked(const ModelSpec& model);

// sdpa is given one key-value head for all queries, without enable_gqa.
[[nodiscard]] bool shares_one_head(const ModelSpec& model);

// Values of a head are of another width than its queries.
[[nodiscard]] bool own_value_width(const ModelSpec& model);

// Some layers, or all, have a mask of their own: the window is no longer than the sequence.
[[nodiscard]] bool reaches_window(const ModelSpec& model, std::int64_t seq);

// transformers' sdpa leaves grouped keys and values to the kernel where there is no mask (use_gqa_in_sdpa).
[[nodiscard]] bool keeps_heads_grouped(Version transformers, Version torch);

// One training forward with loss, `micro_batch` rows of `seq` tokens, no padding mask, use_cache = False.
// Shapes are those of one of GraphOptions::tp ranks. InternalError where `graph_unsupported` had a reason.
// Source: transformers 5.17.0, models/<family>/modeling_<family>.py and loss/loss_utils.py.
[[nodiscard]] Graph build_graph(const ModelSpec& model, const GraphOptions& options);

// roberta and the families that are built like it.
[[nodiscard]] bool is_roberta(const ModelSpec& model);

// Cuts the graph's regions anew: one around each outermost call of a module of a layer whose path ends in one of
// `names`, and, for "core_attn", around each attention operator. Their arguments are what they read and do not make.
void cut_module_regions(Graph& graph, const ModelSpec& model, const std::vector<std::string>& names);

// By family; called by build_graph.
[[nodiscard]] Graph build_decoder_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_encoder_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_deberta_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_mamba2_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_modernbert_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_bart_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_whisper_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_t5_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_vit_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_dinov2_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_picture_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_opt_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_gpt2_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_gptj_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_torchtitan_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_bloom_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_falcon_graph(const ModelSpec& model, const GraphOptions& options);

// A label that does not count (torch.nn.functional.cross_entropy, ignore_index).
inline constexpr double kIgnoredLabel = -100;

// Shared pieces.
// An activation by transformers' name, where it has a row (model/activations.cpp). Node::number of Op::Gelu is 0 for
// the exact form, 1 for the one with tanh.
[[nodiscard]] bool activation_has_graph(std::string_view activation);
[[nodiscard]] TensorId activated(GraphBuilder& g, std::string_view activation, TensorId x);
// create_causal_mask, or create_sliding_window_causal_mask where there is a window: the mask of eager attention [B, 1,
// S, S] in the model's dtype; kNone for the fused kernels, which are causal by a flag. A batch without mask is searched
// for several sequences in one row; `ones` is the batch's mask, or kNone.
[[nodiscard]] TensorId attention_mask(GraphBuilder& g, TensorId position_ids, TensorId ones,
                                      std::optional<std::int64_t> window = {});
// The same where the class asks for a mask in any case (allow_is_causal_skip=False): flags [1, 1, S, S], for eager
// attention what is added.
[[nodiscard]] TensorId materialised_mask(GraphBuilder& g);
// create_bidirectional_sliding_window_mask: kNone where the window reaches over all tokens.
[[nodiscard]] TensorId near_mask(GraphBuilder& g, std::int64_t window);
// create_chunked_causal_mask: kNone where a chunk reaches over all tokens.
[[nodiscard]] TensorId chunk_mask(GraphBuilder& g, TensorId position_ids, std::int64_t chunk);
// create_masks_for_vision_model: causal, but for tokens of one picture, which see each other; `types` [B, S] says which
// tokens are pictures'. `blocks`, the number of each token's picture, lives as long as the masks.
struct PictureMasks {
  TensorId full = kNone;
  TensorId sliding = kNone;
  TensorId blocks = kNone;
};
[[nodiscard]] PictureMasks picture_masks(GraphBuilder& g, TensorId types, std::int64_t window);
// That of paligemma: tokens of type 0 see each other.
[[nodiscard]] PictureMasks prefix_masks(GraphBuilder& g, TensorId types, TensorId position_ids, std::int64_t window);
// That of gemma4: only sliding layers' tokens of one picture see each other.
[[nodiscard]] PictureMasks near_picture_masks(GraphBuilder& g, TensorId types, TensorId position_ids,
                                              std::int64_t window);
// create_bidirectional_mask of places that `counts` flags, [B, S]; kNone where `all` count.
[[nodiscard]] TensorId mask_of_places(GraphBuilder& g, TensorId counts, bool all);
// create_position_ids_from_input_ids: (cumsum(mask) * mask).long() + padding_idx.
[[nodiscard]] TensorId counted_positions(GraphBuilder& g, TensorId ids);
// arange(count) + what came before, which is nothing.
[[nodiscard]] TensorId shifted_numbers(GraphBuilder& g, std::int64_t count);
// torch.finfo(dtype).min.
[[nodiscard]] double lowest_number(DType dtype);
// build_alibi_tensor of bloom and falcon: [B * H, 1, S] of `dtype` from a mask of ones [B, S]. `narrow`: slopes are
// brought to bf16 first (falcon).
[[nodiscard]] TensorId alibi_biases(GraphBuilder& g, TensorId ones, DType dtype, bool narrow);
// A Linear or Conv1D module, with peft's adapters around it if it has them: result + B(A(dropout(x))) * scaling, in the
// adapters' dtype, then in the result's (peft, tuners/lora/layer.py, Linear.forward).
[[nodiscard]] TensorId linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features);
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
