// Towers that see pictures (clip, siglip), alone under a classifier and beside a language model. The functions follow
// transformers' modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/pictures/tower.h"

#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class TowerGraph {
 public:
  TowerGraph(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId flags)
      : g_(g), t_(tower), d_(tower.dims), p_(tower.layers), module_(module), flags_(flags) {}

  TowerResult run(TensorId pixels, bool all_states) {
    g_.enter(module_);
    TensorId hidden = embeddings(pixels);
    if (flags_ != kNone) ask_whether_all(g_, flags_);
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
      result.last = norm_module(g_, p_.norm, norm, seen, strided());
      if (t_.pools) result.pooled = pooled_places(g_, t_, g_.child(module_, "head"), result.last);
      g_.drop({seen});
    } else {
      result.last = seen;
      const TensorId token = first_place(g_, seen);
      result.pooled = norm_module(g_, p_.norm, norm, token);
      g_.drop({token});
    }
    g_.drop({hidden});
    g_.exit(module_);
    return result;
  }

 private:
  // Without a class token in front, which copies them, patches lie column by column, as the convolution leaves them.
  [[nodiscard]] bool strided() const { return !t_.class_token; }

  // gradient_checkpointing_enable makes what the tower's embedding returns require a gradient: patches, or of idefics3
  // their sums with positions.
  [[nodiscard]] bool becomes_leaf(TensorId made) {
    return g_.options().inputs_require_grad && t_.hears_checkpoints && !g_.graph().tensor(made).requires_grad;
  }

  // A convolution whose steps are its own width; each patch a place.
  TensorId patches(ModuleId embeddings, TensorId pixels) {
    const ModuleId module = g_.child(embeddings, "patch_embedding");
    if (flags_ == kNone) (void)asked(g_, module, "weight");  // For its dtype.
    const TensorId own = g_.options().autocast ? g_.keep(pixels) : g_.cast(pixels, g_.options().dtype);
    g_.enter(module);
    const std::int64_t side = d_.image / t_.patch;
    const Shape grid{g_.shape(pixels).dims[0], d_.hidden, side, side};
    const TensorId made = convolution(g_, grid, own, true);
    g_.exit(module);
    const bool leaf = flags_ == kNone && becomes_leaf(made);
    if (leaf) g_.require_grad(made);
    g_.drop({own});
    const Shape flat{grid.dims[0], d_.hidden, side * side};
    const Shape places{grid.dims[0], side * side, d_.hidden};
    // A leaf keeps a gradient that lies as it does, picture by picture.
    const std::initializer_list<ViewStep> steps{step_reshape(flat), step_swap(1, 2)};
    const bool copied = leaf && !t_.class_token;
    const TensorId out = copied ? g_.view_copied_back(made, places, steps) : g_.view(made, places, steps);
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
    std::vector<TensorId> held;
    const TensorId ids = flags_ == kNone ? g_.buffer("position_ids") : places_in_picture(g_, t_, flags_, held);
    const TensorId positions = table_module(g_, g_.child(module, "position_embedding"), ids);
    const TensorId out = g_.binary(Op::Add, joint, positions);
    g_.drop({positions, joint, seen});
    if (spread != kNone) g_.drop({spread});
    for (const TensorId one : held) g_.drop({one});
    g_.exit(module);
    if (flags_ == kNone || !becomes_leaf(out)) return out;
    g_.require_grad(out);
    const TensorId copied = g_.view_copied_back(out, g_.shape(out));
    g_.drop({out});
    return copied;
  }

  TensorId encoder(TensorId hidden, std::vector<TensorId>* states) {
    LayerInputs given;
    given.turns = false;
    const ModuleId module = g_.child(module_, "encoder");
    g_.enter(module);
    const auto call = [&](ModuleId one, std::size_t, TensorId x) {
      const TensorId out = tower_layer(g_, p_, d_, one, x, given, strided());
      if (states != nullptr) states->push_back(g_.keep(out));
      return out;
    };
    const TensorId out = run_layers(
        g_, g_.child(module, "layers"), hidden, [](std::size_t) { return std::vector<TensorId>{}; }, call);
    g_.exit(module);
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
  TensorId flags_;  // kNone where nobody asks which patches are a picture's.
};

// CLIPForImageClassification, SiglipForImageClassification: the mean of all patches.
class PictureClassifier {
 public:
  PictureClassifier(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), t_(*model.parts->tower) {}

  Graph build() {
    const std::int64_t rows = g_.options().micro_batch;
    TensorId pixels = pixel_input(g_, t_, rows);
    const TensorId labels = g_.batch_input(Shape{rows}, DType::Int64);
    g_.set_batch({pixels, labels});
    g_.enter_model({&pixels});
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

// What is normed takes the name of what it was, and so does what comes of it.
TensorId tower_layer(GraphBuilder& g, const DecoderParts& parts, const Dimensions& d, ModuleId module, TensorId hidden,
                     const LayerInputs& given, bool strided) {
  g.enter(module);
  const TensorId normed = norm_module(g, parts.norm, g.child(module, parts.before_attention), hidden, strided);
  const Attended attended = attention_module(g, parts, g.child(module, parts.attention), normed, given);
  g.drop({normed});
  const TensorId middle = g.binary(Op::Add, hidden, attended.flat);
  g.drop({attended.flat});
  const TensorId second = norm_module(g, parts.norm, g.child(module, parts.before_mlp), middle, strided);
  const TensorId fed = mlp_module(g, parts, g.child(module, parts.feed_forward), second, d.ffn);
  g.drop({second});
  const TensorId out = g.binary(Op::Add, middle, fed);
  g.drop({fed, middle});
  if (attended.weights != kNone) g.drop({attended.weights});
  g.exit(module);
  return out;
}

TensorId pixel_input(GraphBuilder& g, const TowerParts& tower, std::int64_t rows) {
  // A product in the place of a convolution takes what its weight is; fully_shard may see to that.
  const bool narrow = tower.projection == ProjectorKind::Adapted && !g.options().casts_inputs;
  const DType dtype = narrow ? g.options().dtype : DType::Float32;
  return g.batch_input(Shape{rows, tower.channels, tower.dims.image, tower.dims.image}, dtype);
}

TowerResult tower_module(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels, bool all_states,
                         TensorId flags) {
  const GraphBuilder::Within within(g, tower.dims, g.shape(pixels).dims[0], tower.dims.max_positions);
  if (tower.projection == ProjectorKind::Adapted) return llama_tower(g, tower, module, pixels);
  if (tower.scales) return intern_tower(g, tower, module, pixels);
  return TowerGraph(g, tower, module, flags).run(pixels, all_states);
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

Graph build_picture_graph(const ModelSpec& model, const GraphOptions& options) {
  return PictureClassifier(model, options).build();
}

}  // namespace dsplan
