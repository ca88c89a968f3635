// Towers that take pictures of all sizes (qwen2_vl, qwen2_5_vl, qwen3_vl): all patches of a batch are one row, and each
// picture, or each window of one, attends by itself. The functions follow transformers' modules one by one
// (models/qwen2_5_vl, vision_utils.py); a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/pictures/grid_tower.h"

#include <algorithm>
#include <array>

#include "model/graphs/activations.h"
#include "model/graphs/linear.h"
#include "model/graphs/pieces.h"
#include "model/pictures.h"

namespace dsplan {
namespace {

// get_vision_position_ids: row and column of each patch, by blocks that become one token.
TensorId numbered_patches(GraphBuilder& g, const TowerParts& tower, const Grid& grid, std::int64_t pictures) {
  const std::int64_t count = grid.patches();
  const TensorId merge = g.filled(Shape{1}, DType::Int64, static_cast<double>(tower.merge));
  std::vector<TensorId> each;
  TensorId down = kNone;
  TensorId across = kNone;
  const auto by_block = [&](TensorId numbers) {
    const TensorId flat = g.make(Op::Contiguous, Shape{count}, DType::Int64, {numbers});
    g.drop({numbers});
    return flat;
  };
  for (std::int64_t picture = 0; picture < pictures; ++picture) {
    const TensorId rows = arange(g, grid.height);
    const TensorId columns = arange(g, grid.width);
    if (down != kNone) g.drop({down, across});
    down = by_block(rows);
    across = by_block(columns);
    const TensorId pairs = g.make(Op::Stack, Shape{count, 2}, DType::Int64, {down, across});
    each.push_back(g.make(Op::Repeat, Shape{count, 2}, DType::Int64, {pairs}));
    g.drop({pairs});
  }
  const TensorId places = g.cat(each, 0);
  for (const TensorId one : each) g.drop({one});
  g.drop({merge, down, across});
  return places;
}

// get_vision_cu_seqlens: where each picture begins.
TensorId lengths_of_pictures(GraphBuilder& g, std::int64_t pictures) {
  const Shape each{pictures};
  const TensorId areas = g.make(Op::Mul, each, DType::Int64, {});
  const TensorId which = g.make(Op::Index, each, DType::Int64, {areas});
  const TensorId picked = g.make(Op::Index, each, DType::Int64, {areas, which});
  g.drop({areas, which});
  const TensorId sums = g.make(Op::CumSum, each, DType::Int32, {picked});
  const TensorId begins = g.make(Op::Pad, Shape{pictures + 1}, DType::Int32, {sums});
  g.drop({sums, picked});
  return begins;
}

// get_vision_window_index, on the host: its list is brought over, and what is there twice left out, in memory of the
// whole list's size.
TensorId lengths_of_windows(GraphBuilder& g, const TowerParts& tower, const Grid& grid, std::int64_t pictures) {
  const Windows of_one = windows_of(tower, grid);
  const Shape listed{1 + pictures * of_one.listed};
  const TensorId list = g.filled(listed, DType::Int32, 0);
  const TensorId begins = g.make(Op::Index, listed, DType::Int32, {list});
  g.drop({list});
  return begins;
}

// (pos_embed(indices) * weights).sum(1), in fp32.
TensorId resampled(GraphBuilder& g, ModuleId module, const Taps& taps) {
  const Shape shape = g.shape(taps.weights);
  const TensorId read = table_module(g, module, taps.indices);
  const TensorId weights = g.view(taps.weights, Shape{shape.dims[0], shape.dims[1], 1});
  const TensorId weighed = g.binary(Op::Mul, read, weights);
  const Shape places{shape.dims[0], g.shape(read).dims[2]};
  g.drop({read, weights});
  const TensorId sum = g.make(Op::SumDim, places, g.dtype(weighed), {weighed}, true);
  g.drop({weighed});
  return sum;
}

// Uses up `x`.
TensorId placed(GraphBuilder& g, TensorId x, TensorId learned) {
  const TensorId narrow = g.cast(learned, g.dtype(x));
  const TensorId sum = g.binary(Op::Add, x, narrow);
  g.drop({narrow, x});
  return sum;
}

// Two linear layers and what stands between them.
TensorId two_layers(GraphBuilder& g, ModuleId module, const std::array<std::string_view, 3>& names, TensorId x) {
  const TensorId wide = linear_module(g, g.child(module, names[0]), x, g.shape(x).dims[1]);
  const ModuleId act = g.child(module, names[1]);
  g.enter(act);
  const TensorId active = activated(g, "gelu", wide);
  g.exit(act);
  g.drop({wide});
  const TensorId out = linear_module(g, g.child(module, names[2]), active, g.model().dims.hidden);
  g.drop({active});
  return out;
}

// How many features a norm is of.
std::int64_t normed_width(const ModelSpec& model, ModuleId norm) {
  return model.parameter_at(model.parameter(norm, "weight")).shape.dims[0];
}

class GridTower {
 public:
  GridTower(GraphBuilder& g, const TowerParts& tower, ModuleId module, std::int64_t pictures)
      : g_(g),
        t_(tower),
        d_(tower.dims),
        p_(tower.layers),
        module_(module),
        grid_(grid_of(tower, g.options().image_size)),
        pictures_(pictures) {}

  // Glm4vVisionModel.
  GridResult run_downsampled(TensorId pixels) {
    g_.enter(module_);
    const TensorId places = numbered_patches(g_, t_, grid_, pictures_);
    const TensorId whole = lengths_of_pictures(g_, pictures_);
    TensorId hidden = patches(pixels);
    hidden = rebound(g_, hidden, norm_module(g_, p_.norm, g_.child(module_, "post_conv_layernorm"), hidden));
    const Waves waves = tables(places);
    const TensorId lengths = g_.make(Op::Sub, Shape{pictures_}, DType::Int32, {whole});
    hidden = rebound(g_, hidden, sampled_positions(g_, t_, g_.child(module_, "embeddings"), hidden, places, lengths));
    hidden = blocks(hidden, waves, whole, kNone);
    hidden = rebound(g_, hidden, norm_module(g_, p_.norm, g_.child(module_, "post_layernorm"), hidden));
    const TensorId joint = downsampled(g_, t_, g_.child(module_, "downsample"), hidden);
    g_.drop({hidden});
    GridResult seen{joint, gated_merger(g_, t_, g_.child(module_, "merger"), joint), {}};
    g_.drop({places, whole, lengths, waves.cos, waves.sin});
    g_.exit(module_);
    return seen;
  }

  GridResult run(TensorId pixels) {
    if (t_.merged > 0) return run_downsampled(pixels);
    g_.enter(module_);
    const Taps taps = t_.table > 0 ? table_taps(g_, grid_, pictures_) : Taps{};
    const TensorId places = numbered_patches(g_, t_, grid_, pictures_);
    const TensorId whole = lengths_of_pictures(g_, pictures_);
    const TensorId windows = t_.window > 0 ? lengths_of_windows(g_, t_, grid_, pictures_) : kNone;
    TensorId hidden = patches(pixels);
    if (t_.window > 0) hidden = sorted(hidden);
    const TensorId learned = t_.table > 0 ? resampled(g_, g_.child(module_, "pos_embed"), taps) : kNone;
    if (learned != kNone) hidden = placed(g_, hidden, learned);
    const Waves waves = tables(places);
    hidden = blocks(hidden, waves, whole, windows);
    GridResult seen{hidden, merger(g_.child(module_, "merger"), hidden), std::move(deep_)};
    if (t_.window > 0) {
      const TensorId back = g_.make(Op::Index, g_.shape(seen.merged), g_.dtype(seen.merged), {seen.merged}, true);
      g_.drop({seen.merged, windows});
      seen.merged = back;
    }
    g_.drop({places, whole, waves.cos, waves.sin});
    if (learned != kNone) g_.drop({learned, taps.indices, taps.weights});
    g_.exit(module_);
    return seen;
  }

 private:
  [[nodiscard]] std::int64_t rows() const { return pictures_ * grid_.patches(); }

  // A convolution whose steps are its own width, over every patch by itself.
  TensorId patches(TensorId pixels) {
    const ModuleId module = g_.child(module_, "patch_embed");
    const ModuleId projection = g_.child(module, "proj");
    g_.enter(module);
    const TensorId seen = g_.view(pixels, Shape{rows(), t_.channels, t_.frames, t_.patch, t_.patch});
    g_.enter(projection);
    const TensorId out = convolution(g_, Shape{rows(), d_.hidden, 1, 1, 1}, seen, false);
    g_.drop({seen});
    g_.exit(projection);
    const TensorId flat = g_.view(out, Shape{rows(), d_.hidden});
    g_.drop({out});
    g_.exit(module);
    if (g_.options().inputs_require_grad && t_.hears_checkpoints) g_.require_grad(flat);
    return flat;
  }

  // permute_input_for_window_attn: tokens window by window, by an index that lies on the host. Uses up `x`.
  TensorId sorted(TensorId x) {
    const Shape flat = g_.shape(x);
    const std::int64_t merged = t_.merge * t_.merge;
    const Shape blocks{flat.dims[0] / merged, merged, flat.dims[1]};
    const TensorId seen = g_.view(x, blocks);
    const TensorId turned = g_.make(Op::Index, blocks, g_.dtype(x), {seen}, true);
    g_.drop({seen, x});
    const TensorId out = g_.view(turned, flat);
    g_.drop({turned});
    return out;
  }

  // Cosines and sines of rows and columns, in fp32: [patches, head].
  Waves tables(TensorId places) {
    const ModuleId module = g_.child(module_, "rotary_pos_emb");
    g_.enter(module);
    g_.set_grad_enabled(false);
    const std::int64_t quarter = d_.head_dim / 4;
    const TensorId wide = g_.make(Op::Cast, Shape{rows(), 2, 1}, DType::Float32, {places});
    const TensorId angles = g_.make(Op::Mul, Shape{rows(), 2, quarter}, DType::Float32, {wide, g_.buffer("inv_freq")});
    const Waves waves = waves_of_places(g_, angles, Shape{rows(), 2 * quarter});
    g_.drop({wide, angles});
    g_.set_grad_enabled(true);
    g_.exit(module);
    if (t_.window == 0) return waves;
    const auto index = [&](TensorId of) { return g_.make(Op::Index, g_.shape(of), DType::Float32, {of}); };
    const Waves turned{index(waves.cos), index(waves.sin)};
    g_.drop({waves.cos, waves.sin});
    return turned;
  }

  [[nodiscard]] bool sees_all(std::size_t layer) const {
    const std::vector<std::int64_t>& whole = t_.whole_layers;
    return t_.window == 0 || std::find(whole.begin(), whole.end(), static_cast<std::int64_t>(layer)) != whole.end();
  }

  TensorId blocks(TensorId hidden, const Waves& waves, TensorId whole, TensorId windows) {
    const auto begins = [&](std::size_t layer) { return sees_all(layer) ? whole : windows; };
    return run_layers(
        g_, g_.child(module_, "blocks"), hidden,
        [&](std::size_t layer) {
          return std::vector<TensorId>{begins(layer), waves.cos, waves.sin};
        },
        [&](ModuleId module, std::size_t layer, TensorId x) {
          const DType given = g_.options().casts_tables ? g_.options().dtype : g_.dtype(waves.cos);
          const Waves own{g_.cast(waves.cos, given), g_.cast(waves.sin, given)};
          const TensorId out = block(module, x, own, begins(layer), segments(layer));
          g_.drop({own.cos, own.sin});
          return out;
        },
        [&](std::size_t layer, TensorId x) {
          const auto at = std::find(t_.deep_layers.begin(), t_.deep_layers.end(), static_cast<std::int64_t>(layer));
          if (at == t_.deep_layers.end()) return x;
          const auto number = static_cast<std::size_t>(at - t_.deep_layers.begin());
          deep_.push_back(merger(modules_of(g_.model(), g_.child(module_, "deepstack_merger_list"))[number], x));
          return x;
        });
  }

  // How many patches attend to each other, one number after another.
  [[nodiscard]] std::vector<std::int64_t> segments(std::size_t layer) const {
    const std::vector<std::int64_t> of_one =
        sees_all(layer) ? std::vector<std::int64_t>{grid_.patches()} : windows_of(t_, grid_).patches;
    std::vector<std::int64_t> all;
    for (std::int64_t picture = 0; picture < pictures_; ++picture) {
      all.insert(all.end(), of_one.begin(), of_one.end());
    }
    return all;
  }

  TensorId block(ModuleId module, TensorId hidden, const Waves& waves, TensorId begins,
                 const std::vector<std::int64_t>& lengths) {
    g_.enter(module);
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, "norm1"), hidden);
    const TensorId attended = attention(g_.child(module, "attn"), normed, waves, begins, lengths);
    g_.drop({normed});
    const TensorId middle = g_.binary(Op::Add, hidden, attended);
    g_.drop({attended});
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, "norm2"), middle);
    const TensorId fed = mlp_module(g_, p_, g_.child(module, "mlp"), second, d_.ffn);
    g_.drop({second});
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({fed, middle});
    g_.exit(module);
    return out;
  }

  // qkv(x).reshape(N, 3, heads, -1).permute(1, 0, 2, 3).unbind(0), as one row of N patches.
  std::vector<TensorId> heads_of(ModuleId module, TensorId x) {
    const TensorId flat = linear_module(g_, g_.child(module, "qkv"), x, 3 * d_.hidden);
    const Shape by_patch{rows(), 3, d_.heads, d_.head_dim};
    const Shape turned{3, rows(), d_.heads, d_.head_dim};
    const TensorId seen = g_.view_copied_back(flat, turned, {step_reshape(by_patch), step_swap(0, 1)});
    g_.drop({flat});
    const std::vector<TensorId> parts = unbind(g_, seen);
    g_.drop({seen});
    std::vector<TensorId> rows_of;
    for (const TensorId part : parts) {
      rows_of.push_back(g_.view(part, Shape{1, rows(), d_.heads, d_.head_dim}));
      g_.drop({part});
    }
    return rows_of;
  }

  // apply_rotary_pos_emb_vision: in fp32 and back.
  QueryKey rotated(const std::vector<TensorId>& heads, const Waves& waves) {
    const Shape table{1, rows(), 1, d_.head_dim};
    const QueryKey wide{g_.cast(heads[0], DType::Float32), g_.cast(heads[1], DType::Float32)};
    const Waves given{g_.view(waves.cos, table), g_.view(waves.sin, table)};
    const Waves seen{g_.cast(given.cos, DType::Float32), g_.cast(given.sin, DType::Float32)};
    g_.drop({given.cos, given.sin});
    const QueryKey turned{turned_by(g_, wide.q, seen), turned_by(g_, wide.k, seen)};
    QueryKey out;
    out.q = g_.cast(turned.q, g_.dtype(heads[0]));
    g_.drop({turned.q});
    out.k = g_.cast(turned.k, g_.dtype(heads[1]));
    g_.drop({turned.k, wide.q, wide.k, seen.cos, seen.sin});
    return out;
  }

  // Heads before patches, one part for each length.
  std::vector<TensorId> parts_of(TensorId x, const std::vector<std::int64_t>& lengths) {
    const TensorId seen = g_.view(x, Shape{1, d_.heads, rows(), d_.head_dim}, {step_swap(1, 2)});
    std::vector<Shape> shapes;
    for (const std::int64_t length : lengths) shapes.push_back(Shape{1, d_.heads, length, d_.head_dim});
    const std::vector<TensorId> parts = g_.split(Op::Split, seen, shapes, 2);
    g_.drop({seen});
    return parts;
  }

  TensorId attention(ModuleId module, TensorId x, const Waves& waves, TensorId begins,
                     const std::vector<std::int64_t>& lengths) {
    g_.enter(module);
    const std::vector<TensorId> heads = heads_of(module, x);
    const QueryKey turned = rotated(heads, waves);
    g_.drop({heads[0], heads[1]});
    const auto count = static_cast<std::int64_t>(lengths.size());
    const TensorId sizes = g_.make(Op::Sub, Shape{count}, DType::Int32, {begins});
    const std::vector<TensorId> q = parts_of(turned.q, lengths);
    const std::vector<TensorId> k = parts_of(turned.k, lengths);
    const std::vector<TensorId> v = parts_of(heads[2], lengths);
    std::vector<TensorId> outputs;
    for (std::size_t at = 0; at < lengths.size(); ++at) {
      AttentionCall call;
      call.q = q[at];
      call.k = k[at];
      call.v = v[at];
      call.full = true;
      const Attended attended = attend(g_, call);
      if (attended.weights != kNone) g_.drop({attended.weights});
      outputs.push_back(attended.flat);
    }
    const TensorId joint = g_.cat(outputs, 1);
    const TensorId flat = g_.view(joint, Shape{rows(), d_.hidden});
    g_.drop({joint});
    const TensorId out = linear_module(g_, g_.child(module, "proj"), flat, d_.hidden);
    g_.drop({flat, sizes, turned.q, turned.k, heads[2]});
    for (const std::vector<TensorId>& list : {q, k, v, outputs}) {
      for (const TensorId one : list) g_.drop({one});
    }
    g_.exit(module);
    return out;
  }

  // Patches that become one token, side by side through two layers: of qwen3_vl's the norm of what one of
  // `deep_layers` returns is of the token.
  TensorId merger(ModuleId module, TensorId hidden) {
    const ModuleId mlp = g_.model().child(module, "mlp");
    const ModuleId norm = mlp != kNone ? g_.child(module, "ln_q") : g_.child(module, "norm");
    const std::int64_t wide = t_.merge * t_.merge * d_.hidden;
    const Shape tokens{rows() / (t_.merge * t_.merge), wide};
    const bool of_tokens = normed_width(g_.model(), norm) == wide;
    g_.enter(module);
    const TensorId seen = of_tokens ? g_.view(hidden, tokens) : g_.keep(hidden);
    const TensorId normed = norm_module(g_, p_.norm, norm, seen);
    g_.drop({seen});
    const TensorId beside = g_.view(normed, tokens);
    g_.drop({normed});
    if (mlp != kNone) g_.enter(mlp);
    const TensorId out = mlp != kNone ? two_layers(g_, mlp, {"0", "1", "2"}, beside)
                                      : two_layers(g_, module, {"linear_fc1", "act_fn", "linear_fc2"}, beside);
    g_.drop({beside});
    if (mlp != kNone) g_.exit(mlp);
    g_.exit(module);
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
  Grid grid_;
  std::int64_t pictures_;
  std::vector<TensorId> deep_;
};

}  // namespace

Waves waves_of_places(GraphBuilder& g, TensorId angles, const Shape& once) {
  Shape twice = once;
  twice.dims[static_cast<std::size_t>(once.rank) - 1] *= 2;
  const auto wave = [&](Op op) {
    const TensorId plain = g.unary(op, angles);
    const TensorId scaled = g.unary(Op::MulScalar, plain, 1);
    g.drop({plain});
    return scaled;
  };
  const auto joined = [&](TensorId of) {
    const TensorId both = g.make(Op::Cat, once, DType::Float32, {of});
    const TensorId out = g.make(Op::Cat, twice, DType::Float32, {both, both});
    g.drop({of, both});
    return out;
  };
  Waves waves{wave(Op::Cos), wave(Op::Sin)};
  waves.cos = joined(waves.cos);
  waves.sin = joined(waves.sin);
  return waves;
}

GridResult grid_tower(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels,
                      std::int64_t pictures) {
  const std::int64_t patches = pictures * grid_of(tower, g.options().image_size).patches();
  const GraphBuilder::Within within(g, tower.dims, 1, patches);
  return GridTower(g, tower, module, pictures).run(pixels);
}

}  // namespace dsplan
