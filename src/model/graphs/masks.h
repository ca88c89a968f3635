// Masks and positions that transformers' bodies make before their layers (masking_utils.py).
#pragma once

#include <cstdint>
#include <optional>

#include "model/graphs/builder.h"

namespace dsplan {

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

}  // namespace dsplan
