// What idefics3 and smolvlm have of their own beside siglip's tower: pictures that may be nothing but padding,
// positions of patches by fractions of a picture, and how the text is shown them. The functions follow transformers'
// modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include <cmath>

#include "model/graphs/linear.h"
#include "model/graphs/pictures/grid_tower.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// get_image_features: which pictures are more than zeros; all are.
TensorId pictures_that_count(GraphBuilder& g, const TowerParts& tower, TensorId pixels) {
  const Shape each{g.shape(pixels).dims[0]};
  const TensorId zeros = g.make(Op::Equal, g.shape(pixels), DType::Bool, {pixels});
  const TensorId counts = g.make(Op::SumDim, each, DType::Int64, {zeros});
  g.drop({zeros});
  const TensorId flags = g.make(Op::NotEqual, each, DType::Bool, {counts});
  g.drop({counts});
  if (!tower.by_block) return flags;
  // One stays where none is left.
  const TensorId any = g.make(Op::All, Shape{}, DType::Bool, {flags});
  const TensorId none = g.make(Op::BitwiseNot, Shape{}, DType::Bool, {any});
  g.drop({any, none});
  return flags;
}

// Patches of which a pixel is a picture's.
TensorId patches_that_count(GraphBuilder& g, const TowerParts& tower, TensorId mask) {
  const std::int64_t side = tower.dims.image / tower.patch;
  const Shape grid{g.shape(mask).dims[0], side, side};
  const TensorId sums = g.make(Op::SumDim, grid, g.dtype(mask), {mask});
  const TensorId flags = g.make(Op::GreaterEqual, grid, DType::Bool, {sums});
  g.drop({sums});
  return flags;
}

// SmolVLMModel.inputs_merger: of each token that stands for a picture, the picture and its place in that. Uses up
// `embedded`.
TensorId by_block(GraphBuilder& g, const TowerParts& tower, TensorId flags, TensorId embedded, TensorId features) {
  const Shape all = g.shape(flags);
  const Shape rows{all.dims[0]};
  const std::int64_t tokens = g.shape(features).dims[0] * g.shape(features).dims[1];
  const auto number = [&](Op op, const Shape& shape, TensorId x) {
    return g.make(op, shape, DType::Int64, {x}, false, static_cast<double>(tower.tokens));
  };
  const TensorId counts = g.make(Op::SumDim, rows, DType::Int64, {flags});
  const TensorId rest = number(Op::FloorDivScalar, rows, counts);  // A remainder.
  const TensorId even = g.make(Op::Equal, rows, DType::Bool, {rest});
  g.drop({rest});
  const TensorId whole = g.make(Op::All, Shape{}, DType::Bool, {even});
  g.drop({even});
  const TensorId asked = g.make(Op::All, Shape{}, DType::Bool, {whole});
  g.drop({asked, whole}, asked);
  const TensorId blocks = number(Op::FloorDivScalar, rows, counts);
  const TensorId ends = g.make(Op::CumSum, rows, DType::Int64, {blocks});
  const TensorId offsets = g.make(Op::Pad, Shape{all.dims[0] + 1}, DType::Int64, {ends});
  g.drop({ends});
  const TensorId numbered = g.make(Op::CumSum, all, DType::Int64, {flags});
  const auto from_zero = [&] { return g.make(Op::SubScalar, all, DType::Int64, {numbered}, false, 1); };
  const auto told = [&] {
    const TensorId from = from_zero();
    const TensorId out = number(Op::FloorDivScalar, all, from);
    g.drop({from});
    return out;
  };
  const TensorId chunks = told();
  const TensorId places = told();  // A remainder.
  const TensorId pictures = g.make(Op::Add, all, DType::Int64, {chunks, offsets});
  const TensorId spread = g.filled(g.shape(embedded), g.dtype(embedded), 0);
  const Shape listed{tokens};
  const TensorId of_picture = g.make(Op::MaskedRows, listed, DType::Int64, {pictures, flags});
  const TensorId of_place = g.make(Op::MaskedRows, listed, DType::Int64, {places, flags});
  const Shape picked{tokens, g.shape(features).dims[2]};
  const TensorId values = g.make(Op::Index, picked, g.dtype(features), {features, of_picture, of_place}, true);
  const TensorId seen = g.in_place(Op::MaskedPut, spread, flags, 0, 0, values);
  g.drop({of_picture, of_place, values, spread});
  const TensorId column = g.view(flags, Shape{all.dims[0], all.dims[1], 1});
  const TensorId merged = g.make(Op::Where, g.shape(embedded), g.dtype(embedded), {column, seen, embedded}, true);
  g.drop({column, embedded, counts, blocks, offsets, numbered, chunks, places, pictures, seen});
  return merged;
}

// Idefics3Model.inputs_merger. Uses up `embedded`.
TensorId in_turn(GraphBuilder& g, TensorId flags, TensorId embedded, TensorId features) {
  const Shape all = g.shape(flags);
  const TensorId column = g.view(flags, Shape{all.dims[0], all.dims[1], 1});
  const TensorId own = g.cast(features, g.dtype(embedded));
  const TensorId out = g.make(Op::MaskedScatter, g.shape(embedded), g.dtype(embedded), {embedded, column, own}, true);
  g.drop({column, own, embedded});
  return out;
}

TensorId connected(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId seen) {
  g.enter(module);
  const TensorId beside = places_beside(g, tower, g.keep(seen));
  const ModuleId projection = g.child(module, "modality_projection");
  g.enter(projection);
  const TensorId out = linear_module(g, g.child(projection, "proj"), beside, g.model().dims.hidden);
  g.exit(projection);
  g.drop({beside});
  g.exit(module);
  return out;
}

}  // namespace

TensorId places_in_picture(GraphBuilder& g, const TowerParts& tower, TensorId flags, std::vector<TensorId>& held) {
  const std::int64_t side = tower.dims.image / tower.patch;
  const std::int64_t pictures = g.shape(flags).dims[0];
  const DType own = g.options().autocast ? DType::Float32 : g.options().dtype;
  const Shape each{pictures};
  const auto hold = [&](TensorId one) {
    held.push_back(one);
    return one;
  };
  // torch.arange(1 / side, 1.0, 1 / side), which may end one behind the last.
  const double step = 1.0 / static_cast<double>(side);
  const auto boundaries = static_cast<std::int64_t>(std::ceil((1.0 - step) / step));
  hold(g.make(Op::Arange, Shape{boundaries}, DType::Float32, {}));
  const TensorId ids = g.filled(Shape{pictures, side * side}, DType::Int64, 0);
  std::array<TensorId, 2> steps{};
  for (TensorId& one : steps) one = hold(g.make(Op::SumDim, each, DType::Int64, {flags}));
  for (TensorId& one : steps) {
    const TensorId inverse = g.make(Op::Reciprocal, each, DType::Float32, {one});
    one = hold(g.make(Op::MulScalar, each, DType::Float32, {inverse}, false, 1));
    g.drop({inverse});
  }
  const Shape row{pictures, side};
  std::array<TensorId, 2> at{};
  for (TensorId& one : at) one = hold(g.make(Op::Arange, Shape{side}, DType::Float32, {}));
  for (std::size_t i = 0; i < 2; ++i) at[i] = g.make(Op::Mul, row, DType::Float32, {at[i], steps[i]});
  for (TensorId& one : at) {
    const TensorId bounded = g.make(Op::Clamp, row, DType::Float32, {one}, false, 1.0 - 1e-6);
    g.drop({one});
    one = bounded;
  }
  for (TensorId& one : at) {
    const TensorId narrow = g.cast(one, own);
    g.drop({one});
    one = hold(narrow);
  }
  for (TensorId& one : at) one = hold(g.make(Op::Cast, row, DType::Int64, {one}));  // bucketize.
  const TensorId first = g.make(Op::MulScalar, row, DType::Int64, {at[0]}, false, static_cast<double>(side));
  const Shape grid{pictures, side, side};
  const TensorId numbers = hold(g.make(Op::Add, grid, DType::Int64, {first, at[1]}));
  g.drop({first});
  const Shape listed{pictures * side * side};
  const TensorId read = g.make(Op::MaskedRows, listed, DType::Int64, {numbers, flags});
  const TensorId out = hold(g.in_place(Op::MaskedPut, ids, flags, 0, 0, read));
  g.drop({read, ids});
  return out;
}

// create_bidirectional_mask: no mask where all patches count.
void ask_whether_all(GraphBuilder& g, TensorId flags) {
  const TensorId all = g.make(Op::All, Shape{}, DType::Bool, {flags});
  g.drop({all}, all);
}

GridBatch masked_batch(GraphBuilder& g, const TowerParts& tower) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t images = g.options().images;
  const std::int64_t side = tower.dims.image;
  GridBatch batch;
  batch.pixels = g.batch_input(Shape{rows, images, tower.channels, side, side}, DType::Float32);
  batch.grids = g.batch_input(Shape{rows, images, side, side}, DType::Float32);
  return batch;
}

Pictured show_connected(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch, TensorId ids,
                        TensorId embedded) {
  const std::int64_t pictures = g.options().micro_batch * g.options().images;
  const std::int64_t side = tower.dims.image;
  const TensorId own = g.options().autocast ? g.keep(batch.pixels) : g.cast(batch.pixels, g.options().dtype);
  const Shape whole{pictures, tower.channels, side, side};
  const TensorId each = g.view(own, whole);
  g.drop({own});
  const TensorId counted = pictures_that_count(g, tower, each);
  const TensorId pixels = g.make(Op::MaskedRows, whole, g.dtype(each), {each, counted});
  g.drop({each});
  const Shape pixelwise{pictures, side, side};
  const TensorId flat = g.view(batch.grids, pixelwise);
  const TensorId mask = g.make(Op::MaskedRows, pixelwise, DType::Float32, {flat, counted});
  g.drop({flat});
  const TensorId flags = patches_that_count(g, tower, mask);
  const TowerResult result = tower_module(g, tower, g.child(body, tower.module), pixels, false, flags);
  Pictured shown;
  shown.features = connected(g, tower, g.child(body, tower.projector), result.last);
  g.drop({counted, pixels, mask, flags});
  drop_result(g, result, result.last);
  const Shape all = g.shape(ids);
  const TensorId told = g.make(Op::Equal, all, DType::Bool, {ids}, false, static_cast<double>(tower.image_token));
  shown.merged =
      tower.by_block ? by_block(g, tower, told, embedded, shown.features) : in_turn(g, told, embedded, shown.features);
  g.drop({told});
  return shown;
}

}  // namespace dsplan
