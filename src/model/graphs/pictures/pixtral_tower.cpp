// The tower of mistral3, which takes pictures of all sizes: all patches of a batch are one row, whose mask lets those
// of one picture see each other. The functions follow transformers' modules one by one (models/pixtral,
// models/mistral3); a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/linear.h"
#include "model/graphs/masks.h"
#include "model/graphs/pictures/grid_tower.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"
#include "model/pictures.h"

namespace dsplan {
namespace {

class PixtralTower {
 public:
  PixtralTower(GraphBuilder& g, const TowerParts& tower, ModuleId module, const Grid& grid, std::int64_t pictures)
      : g_(g), d_(tower.dims), p_(tower.layers), module_(module), grid_(grid), pictures_(pictures) {}

  TowerResult run(TensorId pixels) {
    g_.enter(module_);
    const TensorId seen = convolved(pixels);
    const TensorId rows = by_patch(seen);
    const TensorId hidden = norm_module(g_, p_.norm, g_.child(module_, "ln_pre"), rows);
    g_.drop({rows});
    const TensorId places = numbered();
    const Waves waves = tables(places);
    const TensorId mask = g_.filled(Shape{1, 1, count(), count()}, g_.dtype(hidden), lowest_number(g_.dtype(hidden)));
    TowerResult result;
    result.states.push_back(g_.keep(hidden));
    LayerInputs given;
    given.waves = waves;
    given.mask = mask;
    const ModuleId transformer = g_.child(module_, "transformer");
    g_.enter(transformer);
    result.last = g_.keep(hidden);
    for (const ModuleId one : modules_of(g_.model(), g_.child(transformer, "layers"))) {
      const std::int32_t region = g_.begin_region({{result.last, mask}, {waves.cos, waves.sin, places}, {}, {}});
      const TensorId out = tower_layer(g_, p_, d_, one, result.last, given);
      g_.end_region(region);
      g_.drop({result.last});
      result.last = out;
      result.states.push_back(g_.keep(out));
    }
    g_.exit(transformer);
    g_.drop({hidden, mask, waves.cos, waves.sin, places, seen, down_, across_});
    g_.exit(module_);
    return result;
  }

 private:
  [[nodiscard]] std::int64_t count() const { return pictures_ * grid_.patches(); }

  // A convolution whose steps are its own width.
  TensorId convolved(TensorId pixels) {
    const ModuleId module = g_.child(module_, "patch_conv");
    g_.enter(module);
    const TensorId own = g_.cast(pixels, g_.dtype(g_.parameter("weight")));
    const TensorId out = convolution(g_, Shape{pictures_, d_.hidden, grid_.height, grid_.width}, own, false);
    g_.drop({own});
    g_.exit(module);
    if (g_.options().inputs_require_grad) g_.require_grad(out);
    return out;
  }

  // Of each picture as much as it is wide and high: numbers that are asked for one by one. Then patch by patch.
  TensorId by_patch(TensorId seen) {
    const std::vector<TensorId> each = unbind(g_, seen);
    std::vector<TensorId> rows;
    const auto side = [&] { return g_.make(Op::FloorDivScalar, Shape{}, DType::Int64, {}); };
    for (const TensorId one : each) {
      const TensorId height = side();
      const TensorId width = side();
      g_.drop({height, width}, width);
      const Shape flat{d_.hidden, grid_.patches()};
      const Shape turned{grid_.patches(), d_.hidden};
      rows.push_back(g_.view(one, turned, {step_reshape(flat), step_swap(0, 1)}));
    }
    for (const TensorId one : each) g_.drop({one});
    const TensorId joint = g_.cat(rows, 0);
    for (const TensorId one : rows) g_.drop({one});
    const TensorId out = g_.view(joint, Shape{1, count(), d_.hidden});
    g_.drop({joint});
    return out;
  }

  // Row and column of each patch.
  TensorId numbered() {
    std::vector<TensorId> each;
    for (std::int64_t picture = 0; picture < pictures_; ++picture) {
      const TensorId rows = arange(g_, grid_.height);
      const TensorId columns = arange(g_, grid_.width);
      if (down_ != kNone) g_.drop({down_, across_});
      down_ = rows;
      across_ = columns;
      const Shape flat{grid_.patches()};
      const TensorId of_rows = g_.make(Op::Contiguous, flat, DType::Int64, {down_});
      const TensorId of_columns = g_.make(Op::Contiguous, flat, DType::Int64, {across_});
      each.push_back(g_.make(Op::Stack, Shape{grid_.patches(), 2}, DType::Int64, {of_rows, of_columns}));
      g_.drop({of_rows, of_columns});
    }
    const TensorId places = g_.cat(each, 0);
    for (const TensorId one : each) g_.drop({one});
    return places;
  }

  // Cosines and sines of rows and columns, [1, patches, head], in the dtype of what the layers are given.
  Waves tables(TensorId places) {
    const ModuleId module = g_.child(module_, "patch_positional_embedding");
    g_.enter(module);
    g_.set_grad_enabled(false);
    const std::int64_t half = d_.head_dim / 2;
    const TensorId wide = g_.make(Op::Cast, Shape{count(), 2, 1}, DType::Float32, {places});
    const TensorId angles = g_.make(Op::Matmul, Shape{count(), 2, half}, DType::Float32, {wide, g_.buffer("inv_freq")});
    const Waves waves = waves_of_places(g_, angles, Shape{1, count(), half});
    // Under autocast a norm gives what its weight is kept in.
    const ModuleId norm = g_.child(module_, "ln_pre");
    const DType own = g_.options().autocast ? g_.dtype(g_.parameter_of(norm, "weight")) : g_.options().dtype;
    const Waves narrow{g_.cast(waves.cos, own), g_.cast(waves.sin, own)};
    g_.drop({wide, angles, waves.cos, waves.sin});
    g_.set_grad_enabled(true);
    g_.exit(module);
    return narrow;
  }

  GraphBuilder& g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
  Grid grid_;
  std::int64_t pictures_;
  TensorId down_ = kNone;  // Numbers of the last picture's rows and columns.
  TensorId across_ = kNone;
};

// Mistral3PatchMerger: patches that become one token side by side, and one product.
TensorId merged_patches(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId normed,
                        std::int64_t pictures) {
  const Grid grid = grid_of(tower, g.options().image_size);
  const std::int64_t width = tower.dims.hidden;
  const std::int64_t wide = width * tower.merge * tower.merge;
  const std::int64_t tokens = tokens_of(tower, g.options().image_size);
  g.enter(module);
  std::vector<TensorId> held;
  const auto number = [&](Op op) { held.push_back(g.make(op, Shape{}, DType::Int64, {})); };
  for (std::int64_t side = 0; side < 2 * pictures; ++side) number(Op::FloorDivScalar);
  for (std::int64_t picture = 0; picture < pictures; ++picture) number(Op::MulScalar);
  const std::vector<TensorId> each = g.split(
      Op::Split, normed, std::vector<Shape>(static_cast<std::size_t>(pictures), Shape{grid.patches(), width}), 0);
  std::vector<TensorId> rows;
  for (const TensorId one : each) {
    const Shape by_place{grid.height, grid.width, width};
    const Shape whole{1, width, grid.height, grid.width};
    const TensorId picture =
        g.view(one, whole, {step_reshape(by_place), step_swap(1, 2), step_swap(0, 1), step_reshape(whole)});
    const TensorId columns = g.make(Op::Unfold, Shape{1, wide, tokens}, g.dtype(picture), {picture}, true, 1);
    g.drop({picture});
    const Shape flat{wide, tokens};
    rows.push_back(g.view(columns, Shape{tokens, wide}, {step_reshape(flat), step_swap(0, 1)}));
    g.drop({columns});
  }
  for (const TensorId one : each) g.drop({one});
  const TensorId joint = g.cat(rows, 0);
  const TensorId out = linear_module(g, g.child(module, "merging_layer"), joint, width);
  g.drop({joint});
  for (const std::vector<TensorId>& list : {held, rows}) {
    for (const TensorId one : list) g.drop({one});
  }
  g.exit(module);
  return out;
}

// Mistral3MultiModalProjector.
TensorId projected(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen, std::int64_t pictures) {
  const std::int64_t width = g.model().dims.hidden;
  g.enter(module);
  const TensorId normed = norm_module(g, NormKind::Rms, g.child(module, "norm"), seen);
  const TensorId merged = merged_patches(g, tower, g.child(module, "patch_merger"), normed, pictures);
  g.drop({normed});
  const TensorId wide = linear_module(g, g.child(module, "linear_1"), merged, width);
  const TensorId out = second_linear(g, tower, module, wide);
  g.drop({merged});
  g.exit(module);
  return out;
}

// LlavaMultiModalProjector, of one row of patches.
TensorId projected_row(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId read) {
  g.enter(module);
  const TensorId wide = linear_module(g, g.child(module, "linear_1"), read, g.model().dims.hidden);
  const TensorId made = second_linear(g, tower, module, wide);
  g.exit(module);
  const TensorId out = g.view(made, Shape{g.shape(made).dims[1], g.shape(made).dims[2]});
  g.drop({made});
  return out;
}

}  // namespace

GridBatch pixtral_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures) {
  const std::vector<std::int64_t>& size = g.options().image_size;
  GridBatch batch;
  batch.pixels = g.batch_input(Shape{pictures, tower.channels, size[0], size[1]}, DType::Float32);
  batch.grids = g.batch_input(Shape{pictures, 2}, DType::Int64);
  return batch;
}

Pictured show_pixtral(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch, TensorId ids,
                      TensorId embedded) {
  const std::int64_t pictures = g.shape(batch.grids).dims[0];
  const Grid grid = grid_of(tower, g.options().image_size);
  TowerResult result;
  {
    const GraphBuilder::Within within(g, tower.dims, 1, pictures * grid.patches());
    result = PixtralTower(g, tower, g.child(body, tower.module), grid, pictures).run(batch.pixels);
  }
  const TensorId read = result.last;
  const bool merges = tower.merge > 1;  // mistral3's; llava takes the patches as they are.
  const ModuleId projector = g.child(body, tower.projector);
  const TensorId seen = merges ? g.view(read, Shape{pictures * grid.patches(), tower.dims.hidden}) : g.keep(read);
  const TensorId whole =
      merges ? projected(g, tower, projector, seen, pictures) : projected_row(g, tower, projector, seen);
  const TensorId areas = g.make(Op::FloorDivScalar, Shape{pictures, 2}, DType::Int64, {batch.grids});
  const TensorId tokens = g.make(Op::Prod, Shape{pictures}, DType::Int64, {areas});
  g.drop({areas, tokens}, tokens);
  g.drop({seen});
  drop_result(g, result, read);
  const Shape all = g.shape(whole);
  const std::vector<TensorId> parts =
      g.split(Op::Split, whole,
              std::vector<Shape>(static_cast<std::size_t>(pictures), Shape{all.dims[0] / pictures, all.dims[1]}), 0);
  g.drop({whole});
  return shown_among(g, tower, ids, embedded, g.cat(parts, 0), parts);
}

}  // namespace dsplan
