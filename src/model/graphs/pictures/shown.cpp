// How a language model is shown what a tower sees: projectors, and pictures among the embedded text. The functions
// follow transformers' modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include <cmath>

#include "model/catalogue/rules.h"
#include "model/graphs/activations.h"
#include "model/graphs/linear.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"

namespace dsplan {
// A product of places that are no matrix as they lie: of a copy, or, where the weight takes no gradient, picture by
// picture with the weight for each of them (LinearAlgebra.cpp, should_fold).
// `turned`: the weight is a linear layer's, and lies as [out, in].
TensorId product_of_places(GraphBuilder& g, TensorId places, TensorId weight, std::int64_t features, bool turned) {
  const Shape shape = g.shape(places);
  if (g.graph().tensor(weight).requires_grad) {
    const TensorId rows = shape.dims[0] > 1 ? g.copy(places) : g.keep(places);
    const TensorId product = turned ? g.linear(rows, weight, kNone, features) : g.conv1d(rows, weight, kNone, features);
    g.drop({rows});
    return product;
  }
  const Shape row{1, shape.dims[2], features};
  const Shape spread{shape.dims[0], shape.dims[2], features};
  const ViewStep repeat = step_repeat(0, shape.dims[0]);
  const TensorId each = turned ? g.view(weight, spread, {step_swap(0, 1), step_reshape(row), repeat})
                               : g.view(weight, spread, {step_reshape(row), repeat});
  const TensorId product = g.matmul(places, each);
  g.drop({each});
  return product;
}

TensorId function_of_places(GraphBuilder& g, TensorId places, TensorId weight, TensorId bias, std::int64_t features,
                            bool by_column) {
  Shape made = g.shape(places);
  made.dims[made.rank - 1U] = features;
  const bool matrix = made.dims[0] == 1 || made.dims[1] == 1;
  const double gaps = by_column ? rules::kGapsBack : rules::kGaps;
  return g.product(Product::Function, {places, weight, bias}, made, g.dtype(places), matrix ? 0 : gaps);
}

// InternVLModel.pixel_shuffle, pixel_shuffle of llama4.
TensorId places_beside(GraphBuilder& g, const TowerParts& tower, TensorId seen) {
  const std::int64_t pictures = g.shape(seen).dims[0];
  const std::int64_t width = g.shape(seen).dims[2];
  const std::int64_t side = tower.dims.image / tower.patch;
  const std::int64_t beside = tower.beside;
  const std::int64_t few = side / beside;
  const auto turned = [&](TensorId x, std::int64_t rows, std::int64_t columns, std::int64_t channels) {
    const Shape by_row{pictures, rows, columns, channels};
    const Shape by_column{pictures, columns, rows, channels};
    const TensorId view = g.view_copied_back(x, by_column, {step_reshape(by_row), step_swap(1, 2)});
    const TensorId out = g.copy(view);
    g.drop({view, x});
    return out;
  };
  const TensorId wide = turned(seen, side, few, beside * width);
  const TensorId both = turned(wide, few, few, beside * beside * width);
  const TensorId out = g.view(both, Shape{pictures, tower.tokens, beside * beside * width});
  g.drop({both});
  return out;
}

namespace {

// nn.Linear. Without the first place of each picture they do not follow each other, and siglip's lie column by column,
// as its convolution leaves them: then the bias is added in place behind the product (Linear.cpp).
TensorId linear_of_places(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId places,
                          std::int64_t features) {
  const bool matrix = tower.class_token && (!tower.drops_first || g.shape(places).dims[0] == 1);
  const bool cast = g.options().autocast && g.dtype(places) != *g.options().autocast;
  const bool adapted = g.model().child(module, "base_layer") != kNone;
  if (matrix || cast || adapted) return linear_module(g, module, places, features);
  g.enter(module);
  if (g.options().stage3_linear) {
    const TensorId out = function_of_places(g, places, g.parameter("weight"), g.parameter("bias"), features);
    g.exit(module);
    return out;
  }
  const TensorId product = product_of_places(g, places, g.parameter("weight"), features, true);
  const TensorId bias = g.lowered(g.parameter("bias"));
  TensorId out = product;
  if (bias != kNone) {
    out = g.in_place(Op::Add, product, bias);
    g.drop({product, bias});
  }
  g.exit(module);
  return out;
}

// Gemma3MultiModalProjector: places as pictures of fewer, which lie channel by channel.
TensorId pooled(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen) {
  const Shape shape = g.shape(seen);
  const std::int64_t side = tower.dims.image / tower.patch;
  const auto few = static_cast<std::int64_t>(std::sqrt(static_cast<double>(tower.tokens)));
  g.enter(module);
  const Shape channels{shape.dims[0], shape.dims[2], shape.dims[1]};
  const Shape grid{shape.dims[0], shape.dims[2], side, side};
  const TensorId turned = g.view(seen, grid, {step_swap(1, 2), step_reshape(channels), step_reshape(grid)});
  const TensorId rows = g.copy(turned);
  g.drop({turned});
  const ModuleId pool = g.child(module, "avg_pool");
  g.enter(pool);
  const TensorId means = average_pool(g, rows, few, true);
  g.exit(pool);
  const Shape flat{shape.dims[0], shape.dims[2], tower.tokens};
  const Shape places{shape.dims[0], tower.tokens, shape.dims[2]};
  const TensorId viewed = g.view(means, places, {step_reshape(flat), step_swap(1, 2)});
  g.drop({means});
  const TensorId normed = norm_module(g, NormKind::RmsPlusOne, g.child(module, "mm_soft_emb_norm"), viewed);
  const TensorId weight = g.lowered(g.parameter("mm_input_projection_weight"));
  const TensorId low = g.lowered(normed);
  const TensorId product = product_of_places(g, low, weight, g.model().dims.hidden, false);
  g.drop({low, weight});
  const TensorId out = g.cast(product, g.dtype(seen));
  g.drop({product, rows, viewed, normed});
  g.exit(module);
  return out;
}

// InternVLMultiModalProjector.
TensorId shuffled_linears(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen) {
  const std::int64_t width = g.model().dims.hidden;
  const TensorId beside = places_beside(g, tower, g.keep(seen));
  g.enter(module);
  const TensorId normed = norm_module(g, NormKind::Layer, g.child(module, "layer_norm"), beside);
  const TensorId wide = linear_module(g, g.child(module, "linear_1"), normed, width);
  g.drop({normed});
  const TensorId out = second_linear(g, tower, module, wide);
  g.exit(module);
  g.drop({beside});
  return out;
}

// PaliGemmaMultiModalProjector. The norm behind the tower's last layer lays places out row by row.
TensorId one_linear(GraphBuilder& g, ModuleId module, TensorId seen) {
  g.enter(module);
  const TensorId out = linear_module(g, g.child(module, "linear"), seen, g.model().dims.hidden);
  g.exit(module);
  return out;
}

TensorId projected(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen) {
  if (tower.projection == ProjectorKind::OneLinear) return one_linear(g, module, seen);
  if (tower.projection == ProjectorKind::Shuffled) return shuffled_linears(g, tower, module, seen);
  return tower.projection == ProjectorKind::Pooled ? pooled(g, tower, module, seen)
                                                   : two_linears(g, tower, module, seen);
}

// get_placeholder_mask: which tokens stand for pictures, and whether they are as many as the pictures' places.
TensorId placeholder_flags(GraphBuilder& g, const TowerParts& tower, TensorId ids) {
  const Shape shape = g.shape(ids);
  const TensorId flags = g.make(Op::Equal, shape, DType::Bool, {ids}, false, static_cast<double>(tower.image_token));
  const TensorId count = g.make(Op::SumDim, Shape{}, DType::Int64, {flags});
  const TensorId column = g.view(flags, Shape{shape.dims[0], shape.dims[1], 1});
  g.drop({flags});
  const TensorId elements =
      g.make(Op::MulScalar, Shape{}, DType::Int64, {count}, false, static_cast<double>(g.model().dims.hidden));
  const TensorId same = g.make(Op::Equal, Shape{}, DType::Bool, {elements});
  g.drop({elements});
  const TensorId all = g.make(Op::All, Shape{}, DType::Bool, {same});
  g.drop({all}, all);
  g.drop({same, count});
  return column;
}

// Llama4ForConditionalGeneration, whose output has what its tower returns.
Pictured show_adapted(GraphBuilder& g, const TowerParts& tower, ModuleId root, TensorId pixels, TensorId ids,
                      TensorId embedded) {
  const TowerResult seen = tower_module(g, tower, g.child(root, tower.module), pixels, false);
  Pictured shown;
  shown.returned = seen.last;
  const Shape shape = g.shape(seen.last);
  shown.flat = g.view(seen.last, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  const ModuleId module = g.child(root, tower.projector);
  g.enter(module);
  const TensorId made = linear_module(g, g.child(module, "linear_1"), shown.flat, g.model().dims.hidden);
  g.exit(module);
  shown.features = g.cast(made, g.dtype(embedded));
  g.drop({made});
  put_pictures(g, tower, ids, embedded, shown);
  return shown;
}

}  // namespace

TensorId second_linear(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId wide) {
  const ModuleId act = g.child(module, "act");
  g.enter(act);
  const TensorId active = activated(g, tower.projector_activation, wide);
  g.exit(act);
  g.drop({wide});
  const TensorId out = linear_module(g, g.child(module, "linear_2"), active, g.model().dims.hidden);
  g.drop({active});
  return out;
}

TensorId two_linears(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen) {
  const std::int64_t width = g.model().dims.hidden;
  g.enter(module);
  const TensorId wide = linear_of_places(g, tower, g.child(module, "linear_1"), seen, width);
  const TensorId out = second_linear(g, tower, module, wide);
  g.exit(module);
  return out;
}

Pictured show_pictures(GraphBuilder& g, const TowerParts& tower, ModuleId body, TensorId pixels, TensorId ids,
                       TensorId embedded) {
  if (tower.projection == ProjectorKind::Adapted) return show_adapted(g, tower, body, pixels, ids, embedded);
  const bool of_states = tower.projection == ProjectorKind::TwoLinears;
  // InternVLModel brings them to its dtype, and holds that as long as what the tower returns.
  const bool casts = tower.projection == ProjectorKind::Shuffled && !g.options().autocast;
  const TensorId own = casts ? g.cast(pixels, g.options().dtype) : g.keep(pixels);
  const TowerResult result = tower_module(g, tower, g.child(body, tower.module), own, of_states);
  const TensorId read = of_states ? result.states[static_cast<std::size_t>(tower.read_layers)] : result.last;
  const Shape shape = g.shape(read);
  const TensorId seen = tower.drops_first ? g.slice(read, 1, 1, shape.dims[1] - 1) : g.keep(read);
  const TensorId whole = projected(g, tower, g.child(body, tower.projector), seen);
  // LlavaModel makes a list of pictures, and joins it again.
  const std::vector<TensorId> pictures = of_states ? unbind(g, whole) : std::vector<TensorId>{};
  if (of_states) g.drop({whole});
  g.drop({seen, own});
  drop_result(g, result, read);
  return shown_among(g, tower, ids, embedded, of_states ? g.cat(pictures, 0) : whole, pictures);
}

Pictured shown_among(GraphBuilder& g, const TowerParts& tower, TensorId ids, TensorId embedded, TensorId made,
                     const std::vector<TensorId>& pieces) {
  Pictured shown;
  shown.features = g.cast(made, g.dtype(embedded));
  g.drop({made});
  for (const TensorId piece : pieces) g.drop({piece});
  put_pictures(g, tower, ids, embedded, shown);
  return shown;
}

void put_pictures(GraphBuilder& g, const TowerParts& tower, TensorId ids, TensorId embedded, Pictured& shown) {
  shown.flags = placeholder_flags(g, tower, ids);
  shown.merged =
      g.make(Op::MaskedScatter, g.shape(embedded), g.dtype(embedded), {embedded, shown.flags, shown.features}, true);
  g.drop({embedded});
}

}  // namespace dsplan
