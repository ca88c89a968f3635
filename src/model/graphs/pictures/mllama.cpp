// mllama: a tower that sees tiles of each picture through two stacks of layers, and layers of the text that look at
// what it gives. The functions follow transformers' modules one by one; a `drop` stands where a Python variable or
// frame lets go of a tensor.
#include "model/graphs/pictures/mllama.h"

#include "model/graphs/linear.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

constexpr std::int64_t kEights = 8;  // Rows of a tile are filled up to a multiple.

// 1 - x, as one operator: Node::number says what is taken from.
TensorId one_without(GraphBuilder& g, TensorId x) { return g.unary(Op::Neg, x, 1); }

TensorId tanh_of(GraphBuilder& g, ModuleId module, std::string_view gate) {
  return g.unary(Op::Tanh, g.parameter_of(module, gate));
}

// residual + gate * branch. Uses up `branch` and `gate`. `rebinds`: the branch's own variable takes the product, before
// the sum.
TensorId gated_sum(GraphBuilder& g, TensorId residual, TensorId branch, TensorId gate, bool rebinds) {
  const TensorId gated = g.binary(Op::Mul, gate, branch);
  g.drop({gate});
  if (rebinds) g.drop({branch});
  const TensorId sum = g.binary(Op::Add, residual, gated);
  g.drop({gated});
  if (!rebinds) g.drop({branch});
  return sum;
}

class TileTower {
 public:
  TileTower(GraphBuilder& g, const TowerParts& tower, ModuleId module, std::int64_t pictures)
      : g_(g), t_(tower), d_(tower.dims), module_(module), pictures_(pictures), side_(d_.image / tower.patch) {}

  // What is joined: [pictures * tiles, places, width].
  TensorId run(const GridBatch& batch) {
    g_.enter(module_);
    const TensorId ids = g_.view(batch.grids, Shape{pictures_, 1});
    const TensorId patches = convolved(batch.pixels);
    TensorId hidden = g_.view(patches, Shape{pictures_, t_.tiles, patches_of_tile(), d_.hidden});
    hidden = rebound(g_, hidden, beside_table("pre_tile_positional_embedding", hidden, ids));
    hidden = rebound(g_, hidden, behind_class(hidden));
    hidden = rebound(g_, hidden, placed(hidden, ids));
    hidden = rebound(g_, hidden, norm_module(g_, NormKind::Layer, g_.child(module_, "layernorm_pre"), hidden));
    const Shape filled{pictures_, t_.tiles, rows_of_tile(), d_.hidden};
    hidden = rebound(g_, hidden, g_.make(Op::Pad, filled, g_.dtype(hidden), {hidden}, true));
    const TensorId mask = mask_of(batch.types);
    const Shape flat{pictures_, t_.tiles * rows_of_tile(), d_.hidden};
    hidden = rebound(g_, hidden, g_.view(hidden, flat));
    const std::vector<TensorId> states = stack("transformer", hidden, mask, false);
    hidden = rebound(g_, hidden, g_.keep(states.back()));
    hidden = rebound(g_, hidden, norm_module(g_, NormKind::Layer, g_.child(module_, "layernorm_post"), hidden));
    hidden = rebound(g_, hidden, g_.view(hidden, filled));
    hidden = rebound(g_, hidden, beside_table("post_tile_positional_embedding", hidden, ids));
    hidden = rebound(g_, hidden, g_.view(hidden, flat));
    const std::vector<TensorId> later = stack("global_transformer", hidden, mask, true);
    hidden = rebound(g_, hidden, own_rows(later.back(), d_.hidden));
    const TensorId out = joined(hidden, states);
    g_.drop({hidden, mask, ids, patches});
    for (const TensorId one : states) g_.drop({one});
    for (const TensorId one : later) g_.drop({one});
    g_.exit(module_);
    return out;
  }

 private:
  [[nodiscard]] std::int64_t patches_of_tile() const { return side_ * side_; }
  [[nodiscard]] std::int64_t places_of_tile() const { return patches_of_tile() + 1; }
  [[nodiscard]] std::int64_t rows_of_tile() const { return round_up(places_of_tile(), kEights); }

  // [pictures * tiles, patches, hidden]; a variable holds it until the tower returns.
  TensorId convolved(TensorId pixels) {
    const std::int64_t tiles = pictures_ * t_.tiles;
    const TensorId flat = g_.view(pixels, Shape{tiles, t_.channels, d_.image, d_.image});
    const ModuleId module = g_.child(module_, "patch_embedding");
    (void)asked(g_, module, "weight");  // For its dtype.
    const TensorId own = g_.options().autocast ? g_.keep(flat) : g_.cast(flat, g_.options().dtype);
    g_.enter(module);
    const TensorId made = convolution(g_, Shape{tiles, d_.hidden, side_, side_}, own, true);
    g_.exit(module);
    if (g_.options().inputs_require_grad) g_.require_grad(made);
    g_.drop({own, flat});
    const Shape columns{tiles, d_.hidden, patches_of_tile()};
    const TensorId out =
        g_.view(made, Shape{tiles, patches_of_tile(), d_.hidden}, {step_reshape(columns), step_swap(1, 2)});
    g_.drop({made});
    return out;
  }

  // MllamaPrecomputedAspectRatioEmbedding: a number for each tile of a picture of that shape.
  TensorId beside_table(std::string_view name, TensorId hidden, TensorId ids) {
    const ModuleId module = g_.child(module_, name);
    g_.enter(module);
    TensorId rows = table_module(g_, g_.child(module, "embedding"), ids);
    rows = rebound(g_, rows, g_.view(rows, Shape{pictures_, t_.tiles, 1, d_.hidden}));
    const TensorId gate = tanh_of(g_, module, "gate");
    const TensorId gated = g_.binary(Op::Mul, rows, gate);
    g_.drop({gate, rows});
    const TensorId out = g_.binary(Op::Add, hidden, gated);
    g_.drop({gated});
    g_.exit(module);
    return out;
  }

  TensorId behind_class(TensorId hidden) {
    const std::int64_t tiles = pictures_ * t_.tiles;
    const TensorId places = g_.view(hidden, Shape{tiles, patches_of_tile(), d_.hidden});
    const TensorId token = g_.view(g_.parameter_of(module_, "class_embedding"), Shape{tiles, 1, d_.hidden}, Op::Expand);
    const TensorId joint = g_.cat(token, places, Op::Cat, 1);
    g_.drop({token, places});
    const TensorId out = g_.view(joint, Shape{pictures_, t_.tiles, places_of_tile(), d_.hidden});
    g_.drop({joint});
    return out;
  }

  // MllamaPrecomputedPositionEmbedding.
  TensorId placed(TensorId hidden, TensorId ids) {
    const ModuleId module = g_.child(module_, "gated_positional_embedding");
    g_.enter(module);
    const TensorId closed = tanh_of(g_, module, "gate");
    const TensorId rest = one_without(g_, closed);
    g_.drop({closed});
    const TensorId positions = g_.binary(Op::Mul, rest, g_.parameter_of(module, "embedding"));
    g_.drop({rest});
    const TensorId seen = g_.view(positions, Shape{1, 1, places_of_tile(), d_.hidden});
    TensorId out = g_.binary(Op::Add, hidden, seen);
    g_.drop({seen});
    TensorId tiles = table_module(g_, g_.child(module, "tile_embedding"), ids);
    tiles = rebound(g_, tiles, g_.view(tiles, g_.shape(hidden)));
    const TensorId gate = tanh_of(g_, module, "gate");
    const TensorId gated = g_.binary(Op::Mul, gate, tiles);
    g_.drop({gate});
    out = rebound(g_, out, g_.binary(Op::Add, out, gated));
    g_.drop({positions, tiles, gated});
    g_.exit(module);
    return out;
  }

  // _prepare_aspect_ratio_attention_mask: [pictures, 1, rows, rows], added to the scores. What rows that fill a tile up
  // are set to, in place, changes no shape.
  TensorId mask_of(TensorId flags) {
    const DType dtype = g_.options().dtype;
    const TensorId seen = g_.view(flags, Shape{pictures_, t_.tiles, 1, 1});
    TensorId mask = g_.make(Op::Cast, g_.shape(seen), dtype, {seen});
    g_.drop({seen});
    const Shape by_row{pictures_, t_.tiles, rows_of_tile(), 1};
    mask = rebound(g_, mask, g_.make(Op::Repeat, by_row, dtype, {mask}));
    mask = rebound(g_, mask, one_without(g_, mask));
    const std::int64_t rows = t_.tiles * rows_of_tile();
    mask = rebound(g_, mask, g_.view(mask, Shape{pictures_, rows, 1}));
    const TensorId turned = g_.view(mask, Shape{pictures_, 1, rows}, {step_swap(1, 2)});
    const TensorId both = g_.matmul(mask, turned);
    g_.drop({turned});
    const TensorId lowest = g_.unary(Op::MulScalar, both, lowest_number(dtype));
    g_.drop({both, mask});
    const TensorId out = g_.view(lowest, Shape{pictures_, 1, rows, rows});
    g_.drop({lowest});
    return out;
  }

  // What each layer returns; the encoder's tuple holds it.
  std::vector<TensorId> stack(std::string_view name, TensorId hidden, TensorId mask, bool gated) {
    const ModuleId encoder = g_.child(module_, name);
    LayerInputs given;
    given.turns = false;
    given.mask = mask;
    std::vector<TensorId> states;
    g_.enter(encoder);
    for (const ModuleId one : modules_of(g_.model(), g_.child(encoder, "layers"))) {
      const TensorId into = states.empty() ? hidden : states.back();
      states.push_back(gated ? gated_layer(one, into, given) : tower_layer(g_, t_.layers, d_, one, into, given));
    }
    g_.exit(encoder);
    return states;
  }

  // As tower_layer, of which both sums are gated.
  TensorId gated_layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    const DecoderParts& p = t_.layers;
    g_.enter(module);
    const TensorId normed = norm_module(g_, p.norm, g_.child(module, p.before_attention), hidden);
    const Attended attended = attention_module(g_, p, g_.child(module, p.attention), normed, given);
    g_.drop({normed});
    const TensorId middle = gated_sum(g_, hidden, attended.flat, tanh_of(g_, module, "gate_attn"), true);
    const TensorId second = norm_module(g_, p.norm, g_.child(module, p.before_mlp), middle);
    const TensorId fed = mlp_module(g_, p, g_.child(module, p.feed_forward), second, d_.ffn);
    g_.drop({second});
    const TensorId out = gated_sum(g_, middle, fed, tanh_of(g_, module, "gate_ffn"), true);
    g_.drop({middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  // Without the rows that fill a tile up; `width` of each.
  TensorId own_rows(TensorId x, std::int64_t width) {
    const TensorId by_tile = g_.view(x, Shape{pictures_, t_.tiles, rows_of_tile(), width});
    const TensorId own = g_.slice(by_tile, 2, 0, places_of_tile());
    g_.drop({by_tile});
    const TensorId out = g_.view(own, Shape{pictures_ * t_.tiles, places_of_tile(), width});
    g_.drop({own});
    return out;
  }

  // The last state's rows beside those of the layers that are named, number by number.
  TensorId joined(TensorId last, const std::vector<TensorId>& states) {
    std::vector<TensorId> parts;
    Shape apart = g_.shape(states.front());
    apart.dims[apart.rank++] = 1;
    for (const std::int64_t at : t_.joined_layers) {
      parts.push_back(g_.view(states[static_cast<std::size_t>(at)], apart));
    }
    const TensorId stacked = g_.cat(parts, 3);
    for (const TensorId one : parts) g_.drop({one});
    const TensorId rows = own_rows(stacked, static_cast<std::int64_t>(parts.size()) * d_.hidden);
    const TensorId out = g_.cat(last, rows);
    g_.drop({rows, stacked});
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  ModuleId module_;
  std::int64_t pictures_;
  std::int64_t side_;
};

// _prepare_cross_attention_mask, then the rows of all tokens: what is added to the scores of each token with each
// place, and which tokens see a picture at all.
void prepare_masks(GraphBuilder& g, TensorId tiles, std::int64_t places, Crossed& crossed) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const DType dtype = g.options().dtype;
  const Shape shape = g.shape(tiles);
  const std::int64_t all = shape.dims[2] * shape.dims[3] * places;
  const Shape square{rows, 1, seq, all};
  TensorId mask =
      g.make(Op::RepeatInterleave, Shape{rows, seq, shape.dims[2], shape.dims[3] * places}, DType::Int64, {tiles});
  mask = rebound(g, mask, g.view(mask, square));
  const TensorId wide = g.make(Op::Neg, square, DType::Float32, {mask}, false, 1);
  const TensorId inverted = g.cast(wide, dtype);
  g.drop({wide});
  const TensorId flags = g.make(Op::Cast, square, DType::Bool, {inverted});
  mask = rebound(g, mask, g.make(Op::MaskedFill, square, dtype, {inverted, flags}));
  g.drop({flags});
  const TensorId differs = g.make(Op::NotEqual, square, DType::Bool, {mask});
  const TensorId any = g.make(Op::All, Shape{rows, 1, seq}, DType::Bool, {differs});
  g.drop({differs});
  const TensorId cast = g.make(Op::Cast, g.shape(any), dtype, {any});
  g.drop({any});
  const TensorId column = g.view(cast, Shape{rows, 1, seq, 1});
  g.drop({cast});
  mask = rebound(g, mask, g.in_place(Op::Mul, mask, column));
  g.drop({inverted});
  const TensorId range = arange(g, seq);
  const TensorId numbers = g.make(Op::AddScalar, Shape{seq}, DType::Int64, {range});
  g.drop({range});
  crossed.mask = picked(g, mask, numbers, 2);
  g.drop({mask});
  crossed.rows = picked(g, column, numbers, 2);
  g.drop({column});
  crossed.held.push_back(numbers);
}

// MllamaTextCrossAttention.
Attended tile_attention(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                        const Crossed& crossed) {
  const GraphBuilder::Within within(g, g.dims(), g.options().micro_batch, g.options().seq);
  const Dimensions& d = g.dims();
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t width = d.kv_heads * d.head_dim;
  const std::int64_t places = g.shape(crossed.states).elements().value() / (rows * d.hidden);
  const auto normed = [&](std::string_view name, TensorId x) {
    const TensorId out = norm_module(g, p.norm, g.child(module, name), x);
    g.drop({x});
    return out;
  };
  const auto seen = [&](std::string_view name) {
    const TensorId made = linear_module(g, g.child(module, name), crossed.states, width);
    const TensorId flat = g.view(made, Shape{rows, places, width});
    g.drop({made});
    return flat;
  };
  g.enter(module);
  const TensorId query = linear_module(g, g.child(module, "q_proj"), hidden, d.hidden);
  AttentionCall call;
  call.q = normed("q_norm", by_heads(g, query, d.heads, d.head_dim, queries_come_back_by_head(g.options(), d, true)));
  const TensorId keys = seen("k_proj");
  const TensorId values = seen("v_proj");
  const TensorId key = by_heads(g, keys, d.kv_heads, d.head_dim, keys_come_back_by_head(g.options(), d, true));
  call.v = by_heads(g, values, d.kv_heads, d.head_dim, values_come_back_by_head(g.options(), d, true));
  call.k = normed("k_norm", key);
  call.mask = crossed.mask;
  call.full = true;
  call.dropout = d.attention_dropout;
  Attended made = attend(g, call);
  const TensorId out = linear_module(g, g.child(module, p.output), made.flat, d.hidden);
  g.drop({made.flat, call.q, call.k, call.v});
  made.flat = out;
  g.exit(module);
  return made;
}

}  // namespace

GridBatch crossed_batch(GraphBuilder& g, const TowerParts& tower) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t images = g.options().images;
  const std::int64_t side = tower.dims.image;
  GridBatch batch;
  batch.pixels = g.batch_input(Shape{rows, images, tower.tiles, tower.channels, side, side}, DType::Float32);
  batch.grids = g.batch_input(Shape{rows, images}, DType::Int64);
  batch.types = g.batch_input(Shape{rows, images, tower.tiles}, DType::Int64);
  batch.crossing = g.batch_input(Shape{rows, g.options().seq, images, tower.tiles}, DType::Int64);
  return batch;
}

Crossed show_crossed(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch) {
  const std::int64_t pictures = g.options().micro_batch * g.options().images;
  Crossed crossed;
  TensorId made = kNone;
  {
    const GraphBuilder::Within within(g, tower.dims, pictures, tower.dims.max_positions);
    made = TileTower(g, tower, g.child(body, tower.module), pictures).run(batch);
  }
  crossed.states = linear_module(g, g.child(body, tower.projector), made, g.model().dims.hidden);
  crossed.held.push_back(made);
  prepare_masks(g, batch.crossing, g.shape(made).dims[1], crossed);
  return crossed;
}

void let_go(GraphBuilder& g, const Crossed& crossed) {
  g.drop({crossed.states, crossed.mask, crossed.rows});
  for (const TensorId one : crossed.held) g.drop({one});
}

TensorId crossing_layer(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                        const Crossed& crossed) {
  const TensorId normed = norm_module(g, p.norm, g.child(module, p.before_attention), hidden);
  const Attended attended = tile_attention(g, p, g.child(module, "cross_attn"), normed, crossed);
  g.drop({normed});
  const TensorId middle = gated_sum(g, hidden, attended.flat, tanh_of(g, module, "cross_attn_attn_gate"), false);
  const TensorId second = norm_module(g, p.norm, g.child(module, p.before_mlp), middle);
  const TensorId fed = mlp_module(g, p, g.child(module, p.feed_forward), second, g.dims().ffn);
  g.drop({second});
  const TensorId column = g.view(crossed.rows, Shape{g.options().micro_batch, g.options().seq, 1});
  const TensorId marked = g.binary(Op::Mul, column, fed);
  g.drop({column, fed});
  const TensorId out = gated_sum(g, middle, marked, tanh_of(g, module, "cross_attn_mlp_gate"), false);
  g.drop({middle});
  if (attended.weights != kNone) g.drop({attended.weights});
  return out;
}

}  // namespace dsplan
