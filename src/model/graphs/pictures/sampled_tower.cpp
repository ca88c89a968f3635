// What glm4v's tower has of its own: positions that are sampled from a table, and an end that makes one place of
// several by a convolution. The functions follow transformers' modules one by one (models/glm4v).
#include <array>
#include <cmath>

#include "model/graphs/activations.h"
#include "model/graphs/linear.h"
#include "model/graphs/pictures/grid_tower.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// Of each patch a side of its picture.
TensorId size_of(GraphBuilder& g, TensorId which) {
  const TensorId picked = g.make(Op::Index, g.shape(which), DType::Int64, {which});
  const TensorId out = g.make(Op::Cast, g.shape(which), DType::Float32, {picked});
  g.drop({picked});
  return out;
}

// ((place + 0.5) / size) * 2 - 1.
TensorId normal_place(GraphBuilder& g, std::int64_t rows, TensorId places, TensorId size) {
  const Shape each{rows};
  TensorId out = g.make(Op::AddScalar, each, DType::Float32, {places});
  out = rebound(g, out, g.make(Op::Div, each, DType::Float32, {out, size}));
  out = rebound(g, out, g.make(Op::MulScalar, each, DType::Float32, {out}));
  return rebound(g, out, g.make(Op::SubScalar, each, DType::Float32, {out}));
}

}  // namespace

// Glm4vVisionEmbeddings: what the table has between its rows at each patch's place, by a grid of its own.
TensorId sampled_positions(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId hidden, TensorId places,
                           TensorId lengths) {
  const std::int64_t rows = g.shape(hidden).dims[0];
  const std::int64_t pictures = g.shape(lengths).dims[0];
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(tower.table))));
  const Shape each{rows};
  g.enter(module);
  const TensorId weight = asked(g, g.child(module, "position_embedding"), "weight");
  const Shape square{side, side, tower.dims.hidden};
  const Shape picture{1, tower.dims.hidden, side, side};
  const TensorId seen = g.view_copied_back(
      weight, picture, {step_reshape(square), step_swap(0, 2), step_swap(1, 2), step_reshape(picture)});
  const TensorId wide = g.cast(seen, DType::Float32);
  g.drop({seen});
  const TensorId numbers = arange(g, rows);
  const TensorId ends = g.make(Op::CumSum, Shape{pictures}, DType::Int64, {lengths});
  const TensorId past = g.make(Op::GreaterEqual, Shape{pictures, rows}, DType::Bool, {numbers, ends});
  g.drop({ends});
  const TensorId which = g.make(Op::SumDim, each, DType::Int64, {past});
  g.drop({past});
  const std::array<TensorId, 2> sizes{size_of(g, which), size_of(g, which)};
  const TensorId across = normal_place(g, rows, places, sizes[1]);
  const TensorId down = normal_place(g, rows, places, sizes[0]);
  const TensorId pairs = g.make(Op::Stack, Shape{rows, 2}, DType::Float32, {across, down});
  const TensorId grid = g.view(pairs, Shape{1, rows, 1, 2});
  g.drop({pairs});
  const TensorId found =
      g.make(Op::GridSample, Shape{1, tower.dims.hidden, rows, 1}, DType::Float32, {wide, grid}, true);
  const Shape columns{tower.dims.hidden, rows};
  const TensorId turned = g.view(found, Shape{rows, tower.dims.hidden}, {step_reshape(columns), step_swap(0, 1)});
  const TensorId narrow = g.cast(turned, g.dtype(weight));
  const TensorId out = g.binary(Op::Add, hidden, narrow);
  g.drop({wide, numbers, which, sizes[0], sizes[1], across, down, grid, found, turned, narrow});
  g.exit(module);
  return out;
}

// Patches that become one place, by a convolution over each such square.
TensorId downsampled(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId hidden) {
  const std::int64_t places = g.shape(hidden).dims[0] / (tower.merge * tower.merge);
  const Shape squares{places, tower.merge, tower.merge, tower.dims.hidden};
  const Shape turned{places, tower.dims.hidden, tower.merge, tower.merge};
  const TensorId seen = g.view_copied_back(hidden, turned, {step_reshape(squares), step_swap(1, 3), step_swap(2, 3)});
  g.enter(module);
  const TensorId made = convolution(g, Shape{places, tower.merged, 1, 1}, seen, true, true);
  g.drop({seen});
  g.exit(module);
  const TensorId out = g.view(made, Shape{places, tower.merged});
  g.drop({made});
  return out;
}

// Glm4vVisionPatchMerger.
TensorId gated_merger(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId places) {
  g.enter(module);
  const TensorId plain = linear_module(g, g.child(module, "proj"), places, tower.merged);
  const TensorId normed = norm_module(g, NormKind::Layer, g.child(module, "post_projection_norm"), plain);
  const ModuleId act = g.child(module, "act1");
  g.enter(act);
  const TensorId active = activated(g, "gelu", normed);
  g.exit(act);
  g.drop({normed, plain});
  const TensorId gate = linear_module(g, g.child(module, "gate_proj"), active, tower.merged_ffn);
  const TensorId open = activation_module(g, g.child(module, "act_fn"), gate);
  g.drop({gate});
  const TensorId up = linear_module(g, g.child(module, "up_proj"), active, tower.merged_ffn);
  const TensorId product = g.binary(Op::Mul, open, up);
  g.drop({open, up});
  const TensorId out = linear_module(g, g.child(module, "down_proj"), product, tower.merged);
  g.drop({product, active});
  g.exit(module);
  return out;
}

}  // namespace dsplan
