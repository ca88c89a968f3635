// Towers that see pictures (clip, siglip), alone under a classifier and beside a language model. The functions follow
// transformers' modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/tower.h"

#include "model/graphs/graphs.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class TowerGraph {
 public:
  TowerGraph(GraphBuilder& g, const TowerParts& tower, ModuleId module)
      : g_(g), t_(tower), d_(tower.dims), p_(tower.layers), module_(module) {}

  TowerResult run(TensorId pixels, bool all_states) {
    g_.enter(module_);
    TensorId hidden = embeddings(pixels);
    if (t_.norms_patches) {
      const TensorId normed = norm_module(g_, p_.norm, g_.child(module_, "pre_layrnorm"), hidden);
      g_.drop({hidden});
      hidden = normed;
    }
    TowerResult result;
    if (all_states) result.states.push_back(g_.keep(hidden));
    const TensorId seen = encoder(g_.keep(hidden), all_states ? &result.states : nullptr);
    const ModuleId norm = g_.child(module_, "post_layernorm");
    if (t_.norms_result) {
      result.last = norm_module(g_, p_.norm, norm, seen);
      g_.drop({seen});
    } else {
      result.last = seen;
      const TensorId first = g_.slice(seen, 1, 0, 1);
      const TensorId token = g_.view(first, Shape{g_.shape(seen).dims[0], d_.hidden});
      g_.drop({first});
      result.pooled = norm_module(g_, p_.norm, norm, token);
      g_.drop({token});
    }
    g_.drop({hidden});
    g_.exit(module_);
    return result;
  }

 private:
  // A convolution whose steps are its own width; each patch a place.
  TensorId patches(ModuleId embeddings, TensorId pixels) {
    const TensorId own = g_.options().autocast ? g_.keep(pixels) : g_.cast(pixels, g_.options().dtype);
    const ModuleId convolution = g_.child(embeddings, "patch_embedding");
    g_.enter(convolution);
    const std::int64_t side = d_.image / t_.patch;
    const Shape grid{g_.shape(pixels).dims[0], d_.hidden, side, side};
    const TensorId low_bias = g_.lowered(g_.parameter("bias"));
    const TensorId low_weight = g_.lowered(g_.parameter("weight"));
    const TensorId low_pixels = g_.lowered(own);
    const TensorId made = g_.make(Op::Conv2d, grid, g_.dtype(low_weight), {low_pixels, low_weight, low_bias}, true);
    g_.drop({low_pixels, low_weight});
    if (low_bias != kNone) g_.drop({low_bias});
    g_.exit(convolution);
    if (g_.options().inputs_require_grad && t_.hears_checkpoints) g_.require_grad(made);
    g_.drop({own});
    const Shape flat{grid.dims[0], d_.hidden, side * side};
    const Shape places{grid.dims[0], side * side, d_.hidden};
    const TensorId out = g_.view(made, places, {step_reshape(flat), step_swap(1, 2)});
    g_.drop({made});
    return out;
  }

  TensorId embeddings(TensorId pixels) {
    const ModuleId module = g_.child(module_, "embeddings");
    g_.enter(module);
    const TensorId seen = patches(module, pixels);
    TensorId spread = kNone;
    TensorId joint = g_.keep(seen);
    if (t_.class_token) {
      spread = g_.view(g_.parameter("class_embedding"), Shape{g_.shape(seen).dims[0], 1, d_.hidden}, Op::Expand);
      g_.drop({joint});
      joint = g_.cat(spread, seen, Op::Cat, 1);
    }
    const TensorId ids = g_.buffer("position_ids");
    const ModuleId table = g_.child(module, "position_embedding");
    g_.enter(table);
    const TensorId positions = embedding(g_, g_.parameter("weight"), ids);
    g_.exit(table);
    const TensorId out = g_.binary(Op::Add, joint, positions);
    g_.drop({positions, joint, seen});
    if (spread != kNone) g_.drop({spread});
    g_.exit(module);
    return out;
  }

  TensorId encoder(TensorId hidden, std::vector<TensorId>* states) {
    const ModuleId module = g_.child(module_, "encoder");
    g_.enter(module);
    const auto call = [&](ModuleId one, std::size_t, TensorId x) {
      const TensorId out = layer(one, x);
      if (states != nullptr) states->push_back(g_.keep(out));
      return out;
    };
    const TensorId out = run_layers(
        g_, g_.child(module, "layers"), hidden, [](std::size_t) { return std::vector<TensorId>{}; }, call);
    g_.exit(module);
    return out;
  }

  // What is normed takes the name of what it was, and so does what comes of it.
  TensorId layer(ModuleId module, TensorId hidden) {
    g_.enter(module);
    LayerInputs given;
    given.turns = false;
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, p_.before_attention), hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, p_.attention), normed, given);
    g_.drop({normed});
    const TensorId middle = g_.binary(Op::Add, hidden, attended.flat);
    g_.drop({attended.flat});
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, p_.before_mlp), middle);
    const TensorId fed = mlp_module(g_, p_, g_.child(module, "mlp"), second, d_.ffn);
    g_.drop({second});
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({fed, middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
};

// A product of places that are no matrix as they lie: of a copy, or, where the weight takes no gradient, picture by
// picture with the weight for each of them (LinearAlgebra.cpp, should_fold).
TensorId product_of_places(GraphBuilder& g, TensorId places, TensorId weight, std::int64_t features) {
  const Shape shape = g.shape(places);
  if (g.graph().tensor(weight).requires_grad) {
    const TensorId rows = shape.dims[0] > 1 ? g.copy(places) : g.keep(places);
    const TensorId product = g.linear(rows, weight, kNone, features);
    g.drop({rows});
    return product;
  }
  const Shape row{1, shape.dims[2], features};
  const Shape spread{shape.dims[0], shape.dims[2], features};
  const TensorId each = g.view(weight, spread, {step_swap(0, 1), step_reshape(row), step_repeat(0, shape.dims[0])});
  const TensorId product = g.matmul(places, each);
  g.drop({each});
  return product;
}

// nn.Linear. Without the first place of each picture they do not follow each other, and siglip's lie column by column,
// as its convolution leaves them: then the bias is added in place behind the product (Linear.cpp).
TensorId linear_of_places(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId places,
                          std::int64_t features) {
  const bool matrix = tower.class_token && (!tower.drops_first || g.shape(places).dims[0] == 1);
  const bool cast = g.options().autocast && g.dtype(places) != *g.options().autocast;
  const bool adapted = g.model().child(module, "base_layer") != kNone;
  if (matrix || cast || adapted) return linear_module(g, module, places, features);
  g.enter(module);
  const TensorId product = product_of_places(g, places, g.parameter("weight"), features);
  const TensorId bias = g.lowered(g.parameter("bias"));
  TensorId out = product;
  if (bias != kNone) {
    out = g.in_place(Op::Add, product, bias);
    g.drop({product, bias});
  }
  g.exit(module);
  return out;
}

// LlavaMultiModalProjector.
TensorId projected(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen) {
  const std::int64_t width = g.model().dims.hidden;
  g.enter(module);
  const TensorId wide = linear_of_places(g, tower, g.child(module, "linear_1"), seen, width);
  const ModuleId act = g.child(module, "act");
  g.enter(act);
  const TensorId active = activated(g, tower.projector_activation, wide);
  g.exit(act);
  g.drop({wide});
  const TensorId out = linear_module(g, g.child(module, "linear_2"), active, width);
  g.drop({active});
  g.exit(module);
  return out;
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

// CLIPForImageClassification, SiglipForImageClassification: the mean of all patches.
class PictureClassifier {
 public:
  PictureClassifier(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), t_(*model.parts->tower) {}

  Graph build() {
    const std::int64_t rows = g_.options().micro_batch;
    const TensorId pixels = pixel_input(g_, t_, rows);
    const TensorId labels = g_.batch_input(Shape{rows}, DType::Int64);
    g_.set_batch({pixels, labels});
    g_.enter_model();
    const TowerResult seen = tower_module(g_, t_, g_.child(g_.causal(), t_.module), pixels, false);
    const TensorId mean = mean_of(seen.last);
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "classifier"), mean, g_.dims().labels);
    const TensorId loss = class_loss(g_, logits, labels);
    g_.drop({mean});
    drop_result(g_, seen, seen.last);
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  TensorId mean_of(TensorId places) {
    const Shape shape = g_.shape(places);
    const TensorId part = t_.class_token ? g_.slice(places, 1, 1, shape.dims[1] - 1) : g_.keep(places);
    const TensorId mean = g_.make(Op::MeanLast, Shape{shape.dims[0], shape.dims[2]}, g_.dtype(part), {part}, true);
    g_.drop({part});
    return mean;
  }

  GraphBuilder g_;
  const TowerParts& t_;
};

}  // namespace

TensorId pixel_input(GraphBuilder& g, const TowerParts& tower, std::int64_t rows) {
  return g.batch_input(Shape{rows, tower.channels, tower.dims.image, tower.dims.image}, DType::Float32);
}

TowerResult tower_module(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels, bool all_states) {
  const GraphBuilder::Within within(g, tower.dims, g.shape(pixels).dims[0], tower.dims.max_positions);
  return TowerGraph(g, tower, module).run(pixels, all_states);
}

void drop_result(GraphBuilder& g, const TowerResult& result, TensorId read) {
  const TensorId end = result.pooled == kNone ? result.last : result.pooled;
  g.drop({result.last});
  if (result.pooled != kNone) g.drop({result.pooled});
  for (const TensorId state : result.states) g.drop({state});
  const Graph& graph = g.graph();
  for (std::int32_t at = graph.tensor(end).producer.number(); at > graph.tensor(read).producer.number(); --at) {
    const Node& node = graph.node(NodeId(at));
    if (node.output_count > 0) g.forget(graph.output(node));
  }
}

Pictured show_pictures(GraphBuilder& g, const TowerParts& tower, ModuleId body, TensorId pixels, TensorId ids,
                       TensorId embedded) {
  const TowerResult result = tower_module(g, tower, g.child(body, tower.module), pixels, true);
  const TensorId read = result.states[static_cast<std::size_t>(tower.read_layers)];
  const Shape shape = g.shape(read);
  const TensorId seen = tower.drops_first ? g.slice(read, 1, 1, shape.dims[1] - 1) : g.keep(read);
  const TensorId whole = projected(g, tower, g.child(body, tower.projector), seen);
  const std::vector<TensorId> pictures = unbind(g, whole);
  g.drop({whole, seen});
  drop_result(g, result, read);
  const TensorId joint = g.cat(pictures, 0);
  Pictured shown;
  shown.features = g.cast(joint, g.dtype(embedded));
  g.drop({joint});
  for (const TensorId picture : pictures) g.drop({picture});
  shown.flags = placeholder_flags(g, tower, ids);
  shown.merged =
      g.make(Op::MaskedScatter, g.shape(embedded), g.dtype(embedded), {embedded, shown.flags, shown.features}, true);
  g.drop({embedded});
  return shown;
}

Graph build_picture_graph(const ModelSpec& model, const GraphOptions& options) {
  return PictureClassifier(model, options).build();
}

}  // namespace dsplan
