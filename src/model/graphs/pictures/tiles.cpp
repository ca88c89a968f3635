// Pictures that are cut up into squares and seen whole besides (llava_next): the places of all squares come to lie as
// in the picture, without those that it does not reach, and each row ends with a learned one. The functions follow
// transformers' modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/pictures/grid_tower.h"
#include "model/graphs/pictures/tower.h"
#include "model/pictures.h"

namespace dsplan {
namespace {

// All squares of all pictures, one after the other.
TensorId listed_squares(GraphBuilder& g, TensorId pixels) {
  const std::vector<TensorId> pictures = unbind(g, pixels);
  const TensorId joint = g.cat(pictures, 0);
  for (const TensorId one : pictures) g.drop({one});
  return joint;
}

// Places of squares, [down * across, places, width], channel by channel as a picture of [width, rows, columns].
TensorId as_picture(GraphBuilder& g, const TowerParts& tower, const Tiling& cut, TensorId squares) {
  const std::int64_t side = tower.dims.image / tower.patch;
  const std::int64_t width = g.shape(squares).dims[2];
  const Shape apart{cut.down, cut.across, side, side, width};
  const Shape turned{width, cut.down, side, cut.across, side};
  const std::initializer_list<ViewStep> steps{step_reshape(apart), step_swap(0, 4), step_swap(1, 4), step_swap(3, 4)};
  // A gradient that was filled with zeros where rows were cut off lies as one square after the other.
  const bool in_order = cut.across == 1 && cut.padding > 0;
  const TensorId seen = in_order ? g.view(squares, turned, steps) : g.view_copied_back(squares, turned, steps);
  const TensorId copied = g.copy(seen);
  g.drop({seen});
  const TensorId whole = g.view(copied, Shape{width, cut.down * side, cut.across * side});
  g.drop({copied});
  if (cut.padding == 0) return whole;
  const TensorId left = g.slice(whole, cut.of_rows ? 1 : 2, cut.padding, cut.of_rows ? cut.rows : cut.columns);
  g.drop({whole});
  return left;
}

// image_newline behind each row.
TensorId with_ends(GraphBuilder& g, TensorId newline, TensorId picture) {
  const Shape shape = g.shape(picture);
  const TensorId one = g.view(newline, Shape{shape.dims[0], 1, 1});
  const TensorId spread = g.view(one, Shape{shape.dims[0], shape.dims[1], 1}, Op::Expand);
  const TensorId ends = g.cast(spread, g.dtype(picture));
  const TensorId joint = g.cat(picture, ends, Op::Cat, 2);
  g.drop({one, spread, ends, picture});
  return joint;
}

// What pack_image_features makes of one picture: the whole of it first, then its squares row by row.
TensorId packed(GraphBuilder& g, const TowerParts& tower, const Tiling& cut, TensorId newline, TensorId squares) {
  const Shape shape = g.shape(squares);
  const Shape places{shape.dims[1], shape.dims[2]};
  const TensorId first = g.slice(squares, 0, 0, 1);
  const TensorId whole = g.view(first, places);
  g.drop({first});
  const TensorId others = g.slice(squares, 0, 1, shape.dims[0] - 1);
  const TensorId picture = as_picture(g, tower, cut, others);
  g.drop({others});
  const TensorId lined = with_ends(g, newline, picture);
  const std::int64_t count = cut.rows * (cut.columns + 1);
  const Shape flat{shape.dims[2], count};
  const TensorId rows = g.view(lined, Shape{count, shape.dims[2]}, {step_reshape(flat), step_swap(0, 1)});
  g.drop({lined});
  const TensorId out = g.cat({whole, rows}, 0);
  g.drop({whole, rows});
  return out;
}

}  // namespace

GridBatch tiled_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures) {
  const std::int64_t squares = tiling_of(tower, g.options().image_size).squares();
  const std::int64_t side = tower.dims.image;
  GridBatch batch;
  batch.pixels = g.batch_input(Shape{pictures, squares, tower.channels, side, side}, DType::Float32);
  batch.grids = g.batch_input(Shape{pictures, 2}, DType::Int64);
  return batch;
}

Pictured show_tiles(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch, TensorId ids,
                    TensorId embedded) {
  const std::int64_t pictures = g.shape(batch.grids).dims[0];
  const Tiling cut = tiling_of(tower, g.options().image_size);
  const TensorId own = listed_squares(g, batch.pixels);
  const TowerResult result = tower_module(g, tower, g.child(body, tower.module), own, true);
  const TensorId read = result.states[static_cast<std::size_t>(tower.read_layers)];
  const Shape shape = g.shape(read);
  const TensorId seen = tower.drops_first ? g.slice(read, 1, 1, shape.dims[1] - 1) : g.keep(read);
  const TensorId made = two_linears(g, tower, g.child(body, tower.projector), seen);
  const Shape each{cut.squares(), g.shape(made).dims[1], g.shape(made).dims[2]};
  const std::vector<TensorId> apart =
      g.split(Op::Split, made, std::vector<Shape>(static_cast<std::size_t>(pictures), each), 0);
  const TensorId newline = g.parameter_of(body, "image_newline");
  std::vector<TensorId> lined;
  for (const TensorId one : apart) lined.push_back(packed(g, tower, cut, newline, one));
  const TensorId lengths = g.filled(Shape{pictures}, DType::Int64, 0);
  for (const TensorId one : apart) g.drop({one});
  g.drop({made});
  g.drop({own, seen, lengths});
  drop_result(g, result, read);
  return shown_among(g, tower, ids, embedded, g.cat(lined, 0), lined);
}

}  // namespace dsplan
