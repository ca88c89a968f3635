// The tower of gemma4: patches with two learned positions, heads that are turned by column and by row, and an average
// of patches that become one token, by a product with flags. The functions follow transformers' modules one by one
// (models/gemma4); a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/pictures/gemma4_tower.h"

#include <cmath>
#include <limits>

#include "model/graphs/linear.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// A number of each picture or patch.
TensorId whole_numbers(GraphBuilder& g, Op op, const Shape& shape, std::initializer_list<TensorId> of) {
  return g.make(op, shape, DType::Int64, of);
}

// (x - std_bias) * std_scale, in fp32; x stays the caller's.
TensorId standardised(GraphBuilder& g, TensorId x) {
  const TensorId bias = g.cast(g.buffer("std_bias"), DType::Float32);
  const TensorId moved = g.binary(Op::Sub, x, bias);
  g.drop({bias});
  const TensorId scale = g.cast(g.buffer("std_scale"), DType::Float32);
  const TensorId out = g.binary(Op::Mul, moved, scale);
  g.drop({scale, moved});
  return out;
}

class PaddedTower {
 public:
  PaddedTower(GraphBuilder& g, const TowerParts& tower, ModuleId module, std::int64_t pictures)
      : g_(g), t_(tower), d_(tower.dims), p_(tower.layers), module_(module), pictures_(pictures) {}

  // What it returns is of the patches that hold something.
  TensorId run(TensorId pixels, TensorId places) {
    g_.enter(module_);
    const TensorId absent = g_.make(Op::Equal, g_.shape(places), DType::Bool, {places}, false, -1);
    const TensorId padding = g_.make(Op::All, each_patch(), DType::Bool, {absent});
    g_.drop({absent});
    const TensorId embedded = patches(pixels, places, padding);
    const TensorId counts = g_.make(Op::BitwiseNot, each_patch(), DType::Bool, {padding});
    const TensorId last = encoder(embedded, places, counts);
    g_.drop({counts});
    const Pooled pooled = pool(last, places, padding);
    const std::int64_t tokens = pictures_ * tokens_of(t_, g_.options().image_size);
    TensorId hidden =
        g_.make(Op::MaskedRows, Shape{tokens, d_.hidden}, DType::Float32, {pooled.wide, pooled.counts}, true);
    g_.drop({pooled.wide});
    if (t_.standardises) rebind(g_, hidden, standardised(g_, hidden));
    rebind(g_, hidden, g_.cast(hidden, g_.dtype(embedded)));
    g_.drop({last, embedded, padding, pooled.counts});
    g_.exit(module_);
    return hidden;
  }

 private:
  [[nodiscard]] Shape each_patch() const { return Shape{pictures_, t_.padded}; }

  // patch_embedder: pixels from minus one to one.
  TensorId patches(TensorId pixels, TensorId places, TensorId padding) {
    const ModuleId module = g_.child(module_, "patch_embedder");
    g_.enter(module);
    const TensorId less = g_.unary(Op::SubScalar, pixels, 0.5);
    TensorId own = g_.unary(Op::MulScalar, less, 2);
    g_.drop({less});
    rebind(g_, own, g_.cast(own, g_.dtype(g_.parameter("position_embedding_table"))));
    const TensorId made = linear_module(g_, g_.child(module, "input_proj"), own, d_.hidden);
    const TensorId positions = learned(places, padding);
    const TensorId sum = g_.binary(Op::Add, made, positions);
    g_.drop({made, positions, own});
    g_.exit(module);
    return sum;
  }

  // Of each column and of each row, zero where there is no patch.
  TensorId learned(TensorId places, TensorId padding) {
    const TensorId clamped = whole_numbers(g_, Op::Clamp, g_.shape(places), {places});
    const TensorId table = g_.parameter("position_embedding_table");
    const Shape& shape = g_.shape(table);
    const Shape rows{shape.dims[1], shape.dims[2]};
    const auto of_axis = [&] {
      const TensorId own = g_.view(table, rows, Op::Select);
      const TensorId ids = g_.view(clamped, each_patch(), Op::Select);
      const TensorId found = embedding(g_, own, ids);
      g_.drop({own, ids});
      return found;
    };
    const TensorId of_columns = of_axis();
    const TensorId of_rows = of_axis();
    const TensorId sum = g_.binary(Op::Add, of_columns, of_rows);
    const TensorId zero = g_.filled(Shape{}, g_.dtype(sum), 0);
    const TensorId flags = g_.view(padding, Shape{pictures_, t_.padded, 1});
    const TensorId out = g_.make(Op::Where, g_.shape(sum), g_.dtype(sum), {flags, zero, sum}, true);
    g_.drop({zero, flags, of_columns, of_rows, sum, clamped});
    return out;
  }

  TensorId encoder(TensorId embedded, TensorId places, TensorId counts) {
    const ModuleId module = g_.child(module_, "encoder");
    g_.enter(module);
    const bool filled = grid_of(t_, g_.options().image_size).patches() == t_.padded;
    LayerInputs given;
    given.mask = mask_of_places(g_, counts, filled);
    given.waves = tables(g_.child(module, "rotary_emb"), places, g_.dtype(embedded));
    const TensorId out = run_layers(
        g_, g_.child(module, "layers"), g_.keep(embedded),
        [&](std::size_t) {
          return std::vector<TensorId>{given.mask, given.waves.cos, given.waves.sin, places};
        },
        [&](ModuleId one, std::size_t, TensorId x) { return layer(one, x, given); });
    if (given.mask != kNone) g_.drop({given.mask});
    g_.drop({given.waves.cos, given.waves.sin});
    g_.exit(module);
    return out;
  }

  // Of columns twice and of rows twice, [P, patches, head].
  Waves tables(ModuleId module, TensorId places, DType as) {
    g_.enter(module);
    g_.set_grad_enabled(false);
    g_.set_autocast_enabled(false);
    const std::int64_t quarter = d_.head_dim / 4;
    const TensorId wide = g_.make(Op::Cast, Shape{pictures_, t_.padded, 2, 1}, DType::Float32, {places});
    const Shape by_axis{pictures_, t_.padded, 2, quarter};
    const TensorId table = g_.buffer("inv_freq");
    const TensorId own = g_.cast(table, DType::Float32);
    const TensorId angles = g_.make(Op::Matmul, by_axis, DType::Float32, {wide, own});
    const auto wave = [&](Op op) {
      const TensorId plain = g_.unary(op, angles);
      const TensorId scaled = g_.unary(Op::MulScalar, plain, 1);
      g_.drop({plain});
      return scaled;
    };
    Waves waves{wave(Op::Cos), wave(Op::Sin)};
    const Shape whole{pictures_, t_.padded, d_.head_dim};
    rebind(g_, waves.cos, g_.make(Op::Cat, whole, DType::Float32, {waves.cos}));
    rebind(g_, waves.sin, g_.make(Op::Cat, whole, DType::Float32, {waves.sin}));
    const Waves narrow{g_.cast(waves.cos, as), g_.cast(waves.sin, as)};
    g_.drop({wide, own, angles, waves.cos, waves.sin});
    g_.set_autocast_enabled(true);
    g_.set_grad_enabled(true);
    g_.exit(module);
    return narrow;
  }

  TensorId layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    g_.enter(module);
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, p_.before_attention), hidden);
    Attended attended = attention(g_.child(module, p_.attention), normed, given);
    g_.drop({normed});
    rebind(g_, attended.flat, norm_module(g_, p_.norm, g_.child(module, p_.after_attention), attended.flat));
    const TensorId middle = g_.binary(Op::Add, hidden, attended.flat);
    g_.drop({attended.flat});
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, p_.before_mlp), middle);
    TensorId fed = mlp(g_.child(module, p_.feed_forward), second);
    g_.drop({second});
    rebind(g_, fed, norm_module(g_, p_.norm, g_.child(module, p_.after_mlp), fed));
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({fed, middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  // Gemma4ClippableLinear. Bounds are tensors, of which no byte depends on the values.
  TensorId clipped(ModuleId module, TensorId x, std::int64_t features) {
    const auto bounded = [&](TensorId of) { return g_.unary(Op::Clamp, of, std::numeric_limits<double>::max()); };
    g_.enter(module);
    const TensorId given = t_.clips ? bounded(x) : g_.keep(x);
    TensorId out = linear_module(g_, g_.child(module, "linear"), given, features);
    g_.drop({given});
    if (t_.clips) rebind(g_, out, bounded(out));
    g_.exit(module);
    return out;
  }

  TensorId mlp(ModuleId module, TensorId x) {
    g_.enter(module);
    const TensorId gate = clipped(g_.child(module, "gate_proj"), x, d_.ffn);
    const TensorId active = activation_module(g_, g_.child(module, "act_fn"), gate);
    g_.drop({gate});
    const TensorId up = clipped(g_.child(module, "up_proj"), x, d_.ffn);
    const TensorId product = g_.binary(Op::Mul, active, up);
    g_.drop({active, up});
    const TensorId out = clipped(g_.child(module, "down_proj"), product, d_.hidden);
    g_.drop({product});
    g_.exit(module);
    return out;
  }

  // apply_multidimensional_rope: half of each head by column, half by row.
  TensorId turned(TensorId x, const Waves& waves) {
    const std::int64_t half = d_.head_dim / 2;
    const Shape part{pictures_, t_.padded, d_.heads, half};
    const Shape table{pictures_, t_.padded, half};
    const std::vector<TensorId> halves = g_.split(Op::Split, x, {part, part}, 3);
    const std::vector<TensorId> cos = g_.split(Op::Split, waves.cos, {table, table}, 2);
    const std::vector<TensorId> sin = g_.split(Op::Split, waves.sin, {table, table}, 2);
    std::vector<TensorId> made;
    for (std::size_t axis = 0; axis < halves.size(); ++axis) {
      const Shape by_patch{pictures_, t_.padded, 1, half};
      const Waves own{g_.view(cos[axis], by_patch), g_.view(sin[axis], by_patch)};
      made.push_back(turned_by(g_, halves[axis], own));
      g_.drop({own.cos, own.sin});
    }
    const TensorId out = g_.cat(made, 3);
    for (const std::vector<TensorId>& list : {halves, cos, sin, made}) {
      for (const TensorId one : list) g_.drop({one});
    }
    return out;
  }

  // Heads of a projection, normed: [P, patches, heads, width].
  TensorId heads_of(ModuleId module, std::string_view projection, std::string_view norm, TensorId x,
                    bool copied_back = false) {
    const TensorId flat = clipped(g_.child(module, projection), x, d_.heads * d_.head_dim);
    const Shape shape{pictures_, t_.padded, d_.heads, d_.head_dim};
    TensorId heads = copied_back ? g_.view_copied_back(flat, shape) : g_.view(flat, shape);
    g_.drop({flat});
    rebind(g_, heads, norm_module(g_, p_.norm, g_.child(module, norm), heads));
    return heads;
  }

  Attended attention(ModuleId module, TensorId x, const LayerInputs& given) {
    g_.enter(module);
    AttentionCall call;
    call.q = heads_of(module, "q_proj", "q_norm", x);
    rebind(g_, call.q, turned(call.q, given.waves));
    call.q = heads_before_tokens(g_, call.q);
    call.k = heads_of(module, "k_proj", "k_norm", x);
    rebind(g_, call.k, turned(call.k, given.waves));
    call.k = heads_before_tokens(g_, call.k);
    const bool by_head = d_.heads > 1 && values_come_back_by_head(g_.options(), d_, given.mask != kNone);
    call.v = heads_before_tokens(g_, heads_of(module, "v_proj", "v_norm", x, by_head));
    call.mask = given.mask;
    call.full = true;
    call.scale = p_.attention_scale;
    call.dropout = d_.attention_dropout;
    Attended attended = attend(g_, call);
    const TensorId out = clipped(g_.child(module, "o_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v});
    attended.flat = out;
    g_.exit(module);
    return attended;
  }

  struct Pooled {
    TensorId wide = kNone;    // In fp32, of all tokens that a picture may have,
    TensorId counts = kNone;  // and which of them it has.
  };

  // Gemma4VisionPooler.
  Pooled pool(TensorId hidden, TensorId places, TensorId padding) {
    const ModuleId module = g_.child(module_, "pooler");
    g_.enter(module);
    const TensorId flags = g_.view(padding, Shape{pictures_, t_.padded, 1});
    TensorId own = g_.make(Op::MaskedFill, g_.shape(hidden), g_.dtype(hidden), {hidden, flags}, true);
    g_.drop({flags});
    Pooled made;
    rebind(g_, own, averaged(own, places, made.counts));
    const TensorId wide = g_.cast(own, DType::Float32);
    made.wide = g_.unary(Op::MulScalar, wide, std::sqrt(static_cast<double>(d_.hidden)));
    g_.drop({wide, own});
    g_.exit(module);
    return made;
  }

  // Which token each patch becomes a part of.
  TensorId token_of_patch(TensorId clamped) {
    const Shape each{pictures_, 1};
    const TensorId columns = g_.view(clamped, each_patch(), Op::Select);
    const auto [last, which] = g_.select(Op::Max, columns, each);
    g_.drop({columns, which});
    const TensorId width = whole_numbers(g_, Op::AddScalar, each, {last});
    g_.drop({last});
    const TensorId blocks = whole_numbers(g_, Op::FloorDivScalar, g_.shape(clamped), {clamped});
    const TensorId across = whole_numbers(g_, Op::FloorDivScalar, each, {width});
    const TensorId row = g_.view(blocks, each_patch(), Op::Select);
    const TensorId before = whole_numbers(g_, Op::Mul, each_patch(), {across, row});
    g_.drop({across, row});
    const TensorId column = g_.view(blocks, each_patch(), Op::Select);
    const TensorId token = whole_numbers(g_, Op::Add, each_patch(), {column, before});
    g_.drop({column, before, blocks});
    held_.push_back(width);
    return token;
  }

  // _avg_pool_by_positions.
  TensorId averaged(TensorId hidden, TensorId places, TensorId& counts) {
    const std::int64_t tokens = t_.padded / (t_.merge * t_.merge);
    const TensorId clamped = whole_numbers(g_, Op::Clamp, g_.shape(places), {places});
    held_ = {clamped};
    held_.push_back(token_of_patch(clamped));
    const Shape spread{pictures_, t_.padded, tokens};
    const TensorId marks = g_.filled(spread, DType::Int64, 0);
    const TensorId real = g_.cast(marks, DType::Float32);
    g_.drop({marks});
    const TensorId weights = g_.unary(Op::DivScalar, real, static_cast<double>(t_.merge * t_.merge));
    g_.drop({real});
    const TensorId wide = g_.cast(hidden, DType::Float32);
    const TensorId turned = g_.view(weights, Shape{pictures_, tokens, t_.padded}, {step_swap(1, 2)});
    const TensorId low_wide = g_.lowered(wide);
    const TensorId low_turned = g_.lowered(turned);
    const TensorId means = g_.matmul(low_turned, low_wide);
    g_.drop({turned, low_turned, wide, low_wide});
    const TensorId zeros = g_.make(Op::Equal, spread, DType::Bool, {weights});
    const TensorId none = g_.make(Op::All, Shape{pictures_, tokens}, DType::Bool, {zeros});
    g_.drop({zeros});
    counts = g_.make(Op::BitwiseNot, Shape{pictures_, tokens}, DType::Bool, {none});
    g_.drop({none});
    const TensorId out = g_.cast(means, g_.dtype(hidden));
    g_.drop({means, weights});
    for (const TensorId one : held_) g_.drop({one});
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
  std::int64_t pictures_;
  std::vector<TensorId> held_;  // By the variables of _avg_pool_by_positions.
};

// Gemma4MultimodalEmbedder.
TensorId embedded_pictures(GraphBuilder& g, ModuleId module, TensorId seen) {
  g.enter(module);
  const TensorId normed = norm_module(g, NormKind::RmsPower, g.child(module, "embedding_pre_projection_norm"), seen);
  const TensorId out = linear_module(g, g.child(module, "embedding_projection"), normed, g.model().dims.hidden);
  g.drop({normed});
  g.exit(module);
  return out;
}

// get_image_features: a tensor of tokens for each picture, of which the host is told how many there are.
std::vector<TensorId> tokens_by_picture(GraphBuilder& g, const TowerParts& tower, ModuleId body,
                                        const GridBatch& batch) {
  const Shape places = g.shape(batch.grids);
  const std::int64_t pictures = places.dims[0];
  TensorId seen = kNone;
  {
    const GraphBuilder::Within within(g, tower.dims, pictures, tower.padded);
    seen = PaddedTower(g, tower, g.child(body, tower.module), pictures).run(batch.pixels, batch.grids);
  }
  const TensorId whole = embedded_pictures(g, g.child(body, tower.projector), seen);
  const TensorId there = g.make(Op::NotEqual, places, DType::Bool, {batch.grids}, false, -1);
  const TensorId counts = g.make(Op::All, Shape{pictures, places.dims[1]}, DType::Bool, {there});
  g.drop({there});
  const TensorId patches = whole_numbers(g, Op::SumDim, Shape{pictures}, {counts});
  const TensorId tokens = whole_numbers(g, Op::FloorDivScalar, Shape{pictures}, {patches});
  g.drop({patches, tokens}, tokens);
  const Shape all = g.shape(whole);
  const Shape each{all.dims[0] / pictures, all.dims[1]};
  const std::vector<TensorId> parts =
      g.split(Op::Split, whole, std::vector<Shape>(static_cast<std::size_t>(pictures), each), 0);
  g.drop({whole, counts, seen});
  return parts;
}

}  // namespace

GridBatch padded_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures) {
  GridBatch batch;
  const std::int64_t pixels = tower.channels * tower.patch * tower.patch;
  batch.pixels = g.batch_input(Shape{pictures, tower.padded, pixels}, DType::Float32);
  batch.grids = g.batch_input(Shape{pictures, tower.padded, 2}, DType::Int64);
  batch.types = g.batch_input(Shape{g.options().micro_batch, g.options().seq}, DType::Int64);
  return batch;
}

PaddedWords padded_words(GraphBuilder& g, const TowerParts& tower, TensorId ids) {
  const Shape shape = g.shape(ids);
  const auto flags_of = [&](std::int64_t token) {
    return g.make(Op::Equal, shape, DType::Bool, {ids}, false, static_cast<double>(token));
  };
  const auto either = [&](TensorId a, TensorId b) { return g.make(Op::BitwiseOr, shape, DType::Bool, {a, b}); };
  PaddedWords words;
  words.shown = flags_of(tower.image_token);
  words.films = {flags_of(tower.image_token + 4), flags_of(tower.image_token + 1)};
  const TensorId both = either(words.shown, words.films[0]);
  words.other = either(both, words.films[1]);
  g.drop({both});
  const TensorId copied = whole_numbers(g, Op::Contiguous, shape, {ids});
  const TensorId padding = g.filled(Shape{}, DType::Int64, 0);
  words.ids = whole_numbers(g, Op::Where, shape, {words.other, padding, copied});
  g.drop({padding, copied});
  return words;
}

TensorId words_alone(GraphBuilder& g, ModuleId table, const PaddedWords& words, TensorId embedded) {
  const Shape shape = g.shape(embedded);
  const TensorId row = g.view(asked(g, table, "weight"), Shape{shape.dims[2]}, Op::Select);
  const TensorId spread = g.view(row, Shape{1, 1, shape.dims[2]});
  const TensorId flags = g.view(words.other, Shape{shape.dims[0], shape.dims[1], 1});
  const TensorId out = g.make(Op::Where, shape, g.dtype(embedded), {flags, spread, embedded}, true);
  g.drop({flags, spread, row});
  return out;
}

PaddedShown show_padded(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch, TensorId shown,
                        TensorId embedded) {
  const std::vector<TensorId> parts = tokens_by_picture(g, tower, body, batch);
  const TensorId joint = g.cat(parts, 0);
  PaddedShown made;
  made.features = g.cast(joint, g.dtype(embedded));
  g.drop({joint});
  for (const TensorId part : parts) g.drop({part});
  made.count = whole_numbers(g, Op::SumDim, Shape{}, {shown});
  const Shape shape = g.shape(embedded);
  const TensorId column = g.view(shown, Shape{shape.dims[0], shape.dims[1], 1});
  const TensorId flags = g.view(column, shape, Op::Expand);
  const Shape chosen{g.shape(made.features).dims[0] * shape.dims[2]};
  const TensorId compared = g.make(Op::MaskedRows, chosen, g.dtype(embedded), {embedded, flags}, true, 1);
  g.drop({compared});
  g.forget(compared);
  made.merged = g.make(Op::MaskedScatter, shape, g.dtype(embedded), {embedded, flags, made.features}, true);
  g.drop({flags, column, embedded});
  return made;
}

}  // namespace dsplan
