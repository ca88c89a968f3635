// Towers that see pictures, and how a language model is shown what they say; for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/builder.h"
#include "model/graphs/pieces.h"
#include "model/parts.h"

namespace dsplan {

// What a tower returns, all of it the caller's. `states` where they are asked for: what goes into the first layer, then
// what each layer returns.
struct TowerResult {
  TensorId last = kNone;
  TensorId pooled = kNone;  // kNone where it has none.
  std::vector<TensorId> states;
};
// `flags`: which patches are a picture's, where the tower asks (idefics3).
[[nodiscard]] TowerResult tower_module(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels,
                                       bool all_states, TensorId flags = kNone);
// pictures/idefics3.cpp: positions of patches, by which the tower's table is asked; and whether all patches count.
[[nodiscard]] TensorId places_in_picture(GraphBuilder& g, const TowerParts& tower, TensorId flags,
                                         std::vector<TensorId>& held);
void ask_whether_all(GraphBuilder& g, TensorId flags);
// A layer with norms before its attention and its MLP, which `parts` names. `strided`: `hidden` lies column by column,
// and so does what the layer returns, since sums lie as their first operand does.
[[nodiscard]] TensorId tower_layer(GraphBuilder& g, const DecoderParts& parts, const Dimensions& d, ModuleId module,
                                   TensorId hidden, const LayerInputs& given, bool strided = false);
// pooling.cpp: what the head of siglip's tower makes of all places of each picture: [B, hidden].
[[nodiscard]] TensorId pooled_places(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId places);
// intern_tower.cpp: that of a tower whose layers scale what they add.
[[nodiscard]] TowerResult intern_tower(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels);
// llama_tower.cpp: that of a tower with a table of its own and an end that joins places.
[[nodiscard]] TowerResult llama_tower(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels);
// Lets go of all that a result still holds, and of the nodes of which no loss will ask a gradient: those that were made
// behind `read`, which somebody else has.
void drop_result(GraphBuilder& g, const TowerResult& result, TensorId read);

// The tower's pictures among the embedded text: `merged` takes the place of `embedded`, which is used up. `features`
// are outputs of the model; `flags` live as long as the body's forward.
struct Pictured {
  TensorId merged = kNone;
  TensorId features = kNone;
  TensorId flags = kNone;
  // Of a model that is its own body (llama4): what its tower returned, an output, and that place by place.
  TensorId returned = kNone;
  TensorId flat = kNone;
};
[[nodiscard]] Pictured show_pictures(GraphBuilder& g, const TowerParts& tower, ModuleId body, TensorId pixels,
                                     TensorId ids, TensorId embedded);

// How projectors end: `act` of what the first linear layer has made, which is used up, and the second one.
[[nodiscard]] TensorId second_linear(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId wide);
// LlavaMultiModalProjector of what the tower gives of each picture.
[[nodiscard]] TensorId two_linears(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen);
// A product of places that are no matrix as they lie. `turned`: the weight is a linear layer's, and lies as [out, in].
[[nodiscard]] TensorId product_of_places(GraphBuilder& g, TensorId places, TensorId weight, std::int64_t features,
                                         bool turned);
// The same with a bias, by DeepSpeed's function in the place of nn.functional.linear. `by_column`: so its gradient
// comes.
[[nodiscard]] TensorId function_of_places(GraphBuilder& g, TensorId places, TensorId weight, TensorId bias,
                                          std::int64_t features, bool by_column = false);
// Places of a square side by side, TowerParts::beside by so many, by two copies. Uses up `seen`.
[[nodiscard]] TensorId places_beside(GraphBuilder& g, const TowerParts& tower, TensorId seen);

// `shown.features` among the embedded text.
void put_pictures(GraphBuilder& g, const TowerParts& tower, TensorId ids, TensorId embedded, Pictured& shown);

// `made` of pictures, in the embedded text's dtype, among it. Uses up that and the `pieces` that it was joined of.
[[nodiscard]] Pictured shown_among(GraphBuilder& g, const TowerParts& tower, TensorId ids, TensorId embedded,
                                   TensorId made, const std::vector<TensorId>& pieces);

// [rows, channels, image, image], in fp32 or, of llama4, the weights' dtype.
[[nodiscard]] TensorId pixel_input(GraphBuilder& g, const TowerParts& tower, std::int64_t rows);

}  // namespace dsplan
