// How a language model is shown pictures of all sizes: tokens among the text's, and positions along three axes
// (Qwen2_5_VLModel of transformers).
#include "model/graphs/builder.h"
#include "model/graphs/pictures/grid_tower.h"
#include "model/pictures.h"

namespace dsplan {
namespace {

// get_placeholder_mask, which counts the tokens of films as well. The flags live as long as the body's forward.
std::vector<TensorId> placeholders(GraphBuilder& g, const TowerParts& tower, TensorId ids) {
  const Shape shape = g.shape(ids);
  const auto flags_of = [&](std::int64_t token) {
    return g.make(Op::Equal, shape, DType::Bool, {ids}, false, static_cast<double>(token));
  };
  const auto number = [&](Op op, TensorId of, DType dtype) { return g.make(op, Shape{}, dtype, {of}); };
  const TensorId shown = flags_of(tower.image_token);
  const TensorId filmed = flags_of(tower.image_token + 1);
  const TensorId count = number(Op::SumDim, shown, DType::Int64);
  const TensorId elements = number(Op::MulScalar, count, DType::Int64);
  const TensorId same = number(Op::Equal, elements, DType::Bool);
  g.drop({elements});
  const TensorId all = number(Op::All, same, DType::Bool);
  g.drop({all, same}, all);
  const TensorId films = number(Op::SumDim, filmed, DType::Int64);
  g.drop({films, count});
  const TensorId column = g.view(shown, Shape{shape.dims[0], shape.dims[1], 1});
  g.drop({shown});
  return {column, filmed};
}

// What one row's loop makes. Its variables live until the next row gives them other values.
struct RowOfPositions {
  GraphBuilder& g;
  const TowerParts& tower;
  std::vector<TensorId> parts;  // Of text and pictures; each picture's is held by a name as well.
  TensorId shown = kNone;
  TensorId place = kNone;  // Where the next part begins, once a picture has made that a tensor.
  TensorId whole = kNone;

  void begin() {
    for (const TensorId part : parts) g.drop({part});
    parts.clear();
    if (place != kNone) g.drop({place});
    place = kNone;
  }

  void text(std::int64_t length) {
    const TensorId range = arange(g, length);
    parts.push_back(g.make(Op::AddScalar, Shape{3, length}, DType::Int64, {range}));
    g.drop({range});
  }

  void picture(const Grid& grid) {
    const std::int64_t down = grid.height / tower.merge;
    const std::int64_t across = grid.width / tower.merge;
    const auto shifted = [&](std::int64_t count, Op op) {
      const TensorId range = arange(g, count);
      const TensorId moved = g.make(op, Shape{count}, DType::Int64, {range});
      g.drop({range});
      return moved;
    };
    const TensorId frames = shifted(1, Op::MulScalar);
    const TensorId rows = shifted(down, Op::AddScalar);
    const TensorId columns = shifted(across, Op::AddScalar);
    const TensorId made = g.make(Op::Stack, Shape{3, down * across}, DType::Int64, {frames, rows, columns});
    g.drop({frames, rows, columns});
    if (shown != kNone) g.drop({shown});
    shown = made;
    parts.push_back(g.keep(made));
    const TensorId longer = g.make(Op::GreaterEqual, Shape{}, DType::Bool, {});
    g.drop({longer}, longer);
    const TensorId tokens = g.make(Op::FloorDivScalar, Shape{}, DType::Int64, {});
    if (place == kNone) place = g.make(Op::AddScalar, Shape{}, DType::Int64, {tokens});
    g.drop({tokens});
  }

  // How far positions are behind numbers: one more than the greatest, less the tokens.
  TensorId end(std::int64_t seq) {
    const TensorId joint = g.cat(parts, 1);
    if (whole != kNone) g.drop({whole});
    whole = joint;
    const TensorId greatest = g.make(Op::Max, Shape{}, DType::Int64, {whole});
    const TensorId next = g.make(Op::AddScalar, Shape{}, DType::Int64, {greatest}, false, 1);
    g.drop({greatest});
    const TensorId behind = g.make(Op::SubScalar, Shape{}, DType::Int64, {next}, false, static_cast<double>(seq));
    g.drop({next});
    return behind;
  }
};

}  // namespace

GridBatch grid_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures) {
  const std::int64_t patches = pictures * grid_of(tower, g.options().image_size).patches();
  const std::int64_t numbers = tower.channels * tower.frames * tower.patch * tower.patch;
  GridBatch batch;
  batch.pixels = g.batch_input(Shape{patches, numbers}, DType::Float32);
  batch.grids = g.batch_input(Shape{pictures, 3}, DType::Int64);
  batch.types = g.batch_input(Shape{g.options().micro_batch, g.options().seq}, DType::Int64);
  return batch;
}

GridShown show_grids(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch, TensorId ids,
                     TensorId embedded) {
  const std::int64_t pictures = g.shape(batch.grids).dims[0];
  const ModuleId first = g.child(g.child(g.child(body, tower.module), "patch_embed"), "proj");
  const DType narrow = g.options().autocast ? g.dtype(g.parameter_of(first, "weight")) : g.options().dtype;
  const TensorId own = g.cast(batch.pixels, narrow);
  const GridResult seen = grid_tower(g, tower, g.child(body, tower.module), own, pictures);
  const TensorId areas = g.make(Op::Prod, Shape{pictures}, DType::Int64, {batch.grids});
  const TensorId tokens = g.make(Op::FloorDivScalar, Shape{pictures}, DType::Int64, {areas});
  g.drop({areas, tokens}, tokens);
  g.drop({own});
  if (!tower.held) g.drop({seen.last});
  const Shape all = g.shape(seen.merged);
  const std::vector<Shape> shapes(static_cast<std::size_t>(pictures), Shape{all.dims[0] / pictures, all.dims[1]});
  const std::vector<TensorId> parts = g.split(Op::Split, seen.merged, shapes, 0);
  const TensorId joint = g.cat(parts, 0);
  const TensorId features = g.cast(joint, g.dtype(embedded));
  g.drop({joint, seen.merged});
  GridShown shown;
  if (!tower.held) {
    for (const TensorId part : parts) g.drop({part});
  }
  shown.held = placeholders(g, tower, ids);
  const TensorId column = shown.held.front();
  shown.merged = g.make(Op::MaskedScatter, g.shape(embedded), g.dtype(embedded), {embedded, column, features}, true);
  shown.held.push_back(features);
  g.drop({embedded});
  if (!tower.held) return shown;
  shown.held.insert(shown.held.end(), parts.begin(), parts.end());
  shown.held.push_back(seen.last);
  shown.flags = g.view(column, g.shape(ids));
  shown.deep = seen.deep;
  return shown;
}

TensorId grid_positions(GraphBuilder& g, const TowerParts& tower) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const std::int64_t images = g.options().images;
  const Grid grid = grid_of(tower, g.options().image_size);
  const std::int64_t tokens = tokens_of(tower, g.options().image_size);
  const TensorId positions = g.filled(Shape{3, rows, seq}, DType::Int64, 0);
  std::vector<TensorId> behind;
  RowOfPositions row{g, tower, {}, kNone, kNone, kNone};
  for (std::int64_t at = 0; at < rows; ++at) {
    row.begin();
    row.text(1);
    for (std::int64_t picture = 0; picture < images; ++picture) {
      row.picture(grid);
      const bool last = picture + 1 == images;
      row.text(last ? seq - 1 - images * tokens - 2 * (images - 1) : 2);
    }
    behind.push_back(row.end(seq));
  }
  const TensorId deltas = g.filled(Shape{rows, 1}, DType::Int64, 0);
  row.begin();
  for (const TensorId one : behind) g.drop({one});
  g.drop({row.shown, row.whole});
  keep_for_next(g, deltas);
  return positions;
}

TensorId with_deep(GraphBuilder& g, TensorId hidden, TensorId flags, TensorId seen) {
  const TensorId own = g.cast(seen, g.dtype(hidden));
  const TensorId copied = g.copy(hidden);
  g.drop({hidden});
  const TensorId read = g.make(Op::MaskedRows, g.shape(seen), g.dtype(copied), {copied, flags}, true);
  const TensorId sum = g.binary(Op::Add, read, own);
  g.drop({read});
  const TensorId out = g.in_place(Op::MaskedPut, copied, flags, 0, 0, sum);
  g.drop({sum, own, copied});
  return out;
}

Waves three_axes_tables(GraphBuilder& g, const RotaryParts& parts, ModuleId module, TensorId positions) {
  g.enter(module);
  g.set_grad_enabled(false);
  g.set_autocast_enabled(false);
  const TensorId table = g.buffer("inv_freq");
  const TensorId frequencies = g.dtype(table) == DType::Float32 ? table : g.cast(table, DType::Float32);
  const Shape shape = g.shape(positions);
  const std::int64_t rows = shape.dims[1];
  const std::int64_t seq = shape.dims[2];
  const std::int64_t half = g.shape(table).dims[0];
  const TensorId wide = g.make(Op::Cast, Shape{3, rows, 1, seq}, DType::Float32, {positions});
  const Shape by_axis{3, rows, seq, half};
  const TensorId angles = g.make(Op::Matmul, by_axis, DType::Float32, {frequencies, wide});
  const auto wave = [&](Op op) {
    const TensorId plain = g.unary(op, angles);
    const TensorId scaled = g.unary(Op::MulScalar, plain, 1);
    g.drop({plain});
    return scaled;
  };
  // Sections of the three axes side by side, or the first's with the others' written into it; then twice.
  const auto joined = [&](TensorId of) {
    if (parts.mixed_axes) {
      const TensorId twice = g.make(Op::Cat, Shape{rows, seq, 2 * half}, DType::Float32, {of});
      g.drop({of});
      return twice;
    }
    const TensorId sections = g.make(Op::Cat, Shape{rows, seq, half}, DType::Float32, {of});
    const TensorId twice = g.make(Op::Cat, Shape{rows, seq, 2 * half}, DType::Float32, {sections, sections});
    g.drop({sections, of});
    return twice;
  };
  Waves waves{wave(Op::Cos), wave(Op::Sin)};
  waves.sin = joined(waves.sin);
  waves.cos = joined(waves.cos);
  const Waves narrow{g.cast(waves.cos, g.options().dtype), g.cast(waves.sin, g.options().dtype)};
  g.drop({wide, angles, waves.cos, waves.sin});
  if (frequencies != table) g.drop({frequencies});
  g.set_autocast_enabled(true);
  g.set_grad_enabled(true);
  g.exit(module);
  return narrow;
}

}  // namespace dsplan
