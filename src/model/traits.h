// What transformers' class of a model is like, asked by whoever has to decide about its attention, its masks or its
// pictures: a family's facts stand here once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "core/units.h"
#include "model/parts.h"

namespace dsplan {

// A class without a loss: BertModel.
[[nodiscard]] bool is_body(const ModelSpec& model);

// Pictures and texts have a tower each, and a loss compares what both say of the batch: CLIPModel, SiglipModel.
[[nodiscard]] bool contrasts(const ModelSpec& model);

// Some layers of the text attend to pictures, under a mask (mllama).
[[nodiscard]] bool looks_at_pictures(const ModelSpec& model);

// A head over the text that gives one number, whose loss is its distance from the label.
[[nodiscard]] bool regresses(const ModelSpec& model);

// roberta and the families that are built like it.
[[nodiscard]] bool is_roberta(const ModelSpec& model);
// The name of the body inside a class with a head.
[[nodiscard]] std::string_view body_of_roberta(const ModelSpec& model);

// t5 and its kin, whose attention adds a learned bias of positions.
[[nodiscard]] bool biases_positions(const ModelSpec& model);

// transformers' class has no scaled_dot_product_attention.
[[nodiscard]] bool eager_alone(const ModelSpec& model);

// transformers' class makes a mask whatever there is to mask.
[[nodiscard]] bool always_masked(const ModelSpec& model);

// sdpa is given one key-value head for all queries, without enable_gqa.
[[nodiscard]] bool shares_one_head(const ModelSpec& model);

// Values of a head are of another width than its queries.
[[nodiscard]] bool own_value_width(const ModelSpec& model);

// The module list in which each layer stands, by the layer's index: one checkpoint runs layers of one list (an
// encoder's or a decoder's, a tower's or its text's).
[[nodiscard]] std::vector<ModuleId> lists_of_layers(const ModelSpec& model);

// Some layers, or all, have a mask of their own: the window is no longer than the sequence.
[[nodiscard]] bool reaches_window(const ModelSpec& model, std::int64_t seq);

// transformers' sdpa leaves grouped keys and values to the kernel where there is no mask (use_gqa_in_sdpa).
[[nodiscard]] bool keeps_heads_grouped(Version transformers, Version torch);

// Tokens of a picture see each other, so that all layers of the text have a mask that is made.
[[nodiscard]] bool masks_pictures(const ModelSpec& model);

// A window masks some of the family's layers, not all.
[[nodiscard]] bool masks_some_layers(const ModelSpec& model);

// Of one picture among a row's text; 0: the model reads none beside text. `image_size` as in Training.
[[nodiscard]] std::int64_t picture_tokens(const ModelSpec& model, const std::vector<std::int64_t>& image_size);
// The tower of a model whose pictures may have any size; else null.
[[nodiscard]] const TowerParts* sized_tower(const ModelSpec& model);
// The first parameter without dimensions, which no library cuts into shards or bytes; null: all have some.
[[nodiscard]] const Parameter* first_scalar(const ModelSpec& model);
// How the names end of parameters that the forward of the family's class never reads.
[[nodiscard]] std::span<const std::string_view> unread_ends(const ModelSpec& model);
// Parameters that are trained though no loss reaches them get no gradient: parts of a tower, or all of it where a row
// has no pictures (`images`), given which are trained, by ParameterId, as globs of --freeze. Empty: none.
[[nodiscard]] std::vector<std::string> unreached_parameters(const ModelSpec& model, const std::vector<bool>& trained,
                                                            std::int64_t images);

}  // namespace dsplan
