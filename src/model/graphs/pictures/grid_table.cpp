// A square table of learned positions, resampled to the size of each picture (qwen3_vl): which four of its rows a patch
// reads, and their weights, worked out in integers on the device (vision_utils.py,
// get_vision_interpolation_indices_and_weights).
#include "model/graphs/pictures/grid_tower.h"

namespace dsplan {
namespace {

constexpr std::int64_t kTaps = 2;  // Of each axis.

// Numbers of patches: every statement of Python's is an operator that makes one more.
class PatchNumbers {
 public:
  PatchNumbers(GraphBuilder& g, std::int64_t patches) : g_(g), all_{patches} {}

  TensorId made(Op op, TensorId of) { return g_.make(op, all_, DType::Int64, {of}); }
  // made(second, made(first, of)).
  TensorId made(Op first, Op second, TensorId of) {
    const TensorId between = made(first, of);
    const TensorId result = made(second, between);
    g_.drop({between});
    return result;
  }
  // repeat_interleave of a picture's number.
  TensorId spread(TensorId of) { return made(Op::Index, Op::Index, of); }

 private:
  GraphBuilder& g_;
  Shape all_;
};

// _interpolation_axis_taps_weights, of both neighbours.
Taps axis_taps(GraphBuilder& g, TensorId index, TensorId size) {
  const std::int64_t patches = g.shape(index).dims[0];
  const Shape each{patches};
  const Shape both{patches, kTaps};
  const auto real = [&](Op op, const Shape& shape, TensorId of) { return g.make(op, shape, DType::Float32, {of}); };
  const TensorId wide = real(Op::Cast, each, index);
  const TensorId scaled = real(Op::MulScalar, each, wide);
  const TensorId less = g.make(Op::SubScalar, each, DType::Int64, {size});
  const TensorId least = g.make(Op::Clamp, each, DType::Int64, {less});
  g.drop({less});
  const TensorId source = g.make(Op::Div, each, DType::Float32, {scaled, least});
  g.drop({scaled, least});
  const TensorId floor = real(Op::FloorDivScalar, each, source);
  const TensorId offsets = arange(g, kTaps);
  const TensorId whole = g.make(Op::Cast, each, DType::Int64, {floor});
  const TensorId raw = g.make(Op::Add, both, DType::Int64, {whole, offsets});
  g.drop({whole});
  Taps taps;
  taps.indices = g.make(Op::Clamp, both, DType::Int64, {raw});
  const TensorId beyond = g.make(Op::Sub, each, DType::Float32, {source, floor});
  const TensorId signed_distance = g.make(Op::Sub, both, DType::Float32, {beyond, offsets});
  g.drop({beyond});
  const TensorId distance = real(Op::Abs, both, signed_distance);
  g.drop({signed_distance});
  const TensorId near = real(Op::SubScalar, both, distance);
  taps.weights = real(Op::Clamp, both, near);
  g.drop({near, wide, source, floor, offsets, raw, distance});
  return taps;
}

}  // namespace

Taps table_taps(GraphBuilder& g, const Grid& grid, std::int64_t pictures) {
  const std::int64_t patches = pictures * grid.patches();
  const Shape each{pictures};
  PatchNumbers numbers(g, patches);
  const TensorId areas = g.make(Op::Mul, each, DType::Int64, {});
  const TensorId counts = g.make(Op::Mul, each, DType::Int64, {areas});
  g.drop({areas});
  const TensorId heights = numbers.spread(counts);
  const TensorId widths = numbers.spread(counts);
  const TensorId sums = g.make(Op::CumSum, each, DType::Int64, {counts});
  const TensorId begins = g.make(Op::Pad, each, DType::Int64, {sums});
  g.drop({sums});
  const TensorId starts = numbers.spread(begins);
  g.drop({begins});
  const TensorId total = g.make(Op::SumDim, Shape{}, DType::Int64, {counts});
  g.drop({}, total);
  const TensorId range = arange(g, patches);
  g.drop({total});
  const TensorId own = numbers.made(Op::Sub, range);
  g.drop({range});
  const TensorId sizes = numbers.made(Op::Mul, heights);
  const TensorId within = numbers.made(Op::FloorDivScalar, own);
  g.drop({own, sizes});
  const TensorId blocks = numbers.made(Op::FloorDivScalar, widths);
  const TensorId inner_column = numbers.made(Op::FloorDivScalar, within);
  const TensorId inner_row = numbers.made(Op::FloorDivScalar, Op::FloorDivScalar, within);
  const TensorId block_column = numbers.made(Op::FloorDivScalar, Op::FloorDivScalar, within);
  const TensorId block_row = numbers.made(Op::MulScalar, Op::FloorDivScalar, blocks);
  const TensorId row = numbers.made(Op::MulScalar, Op::Add, block_row);
  const TensorId column = numbers.made(Op::MulScalar, Op::Add, block_column);
  const Taps down = axis_taps(g, row, heights);
  const Taps across = axis_taps(g, column, widths);
  const Shape four{patches, kTaps * kTaps};
  const TensorId lines = g.make(Op::MulScalar, Shape{patches, kTaps}, DType::Int64, {down.indices});
  Taps taps;
  taps.indices = g.make(Op::Add, four, DType::Int64, {lines, across.indices});
  g.drop({lines});
  taps.weights = g.make(Op::Mul, four, DType::Float32, {down.weights, across.weights});
  g.drop({counts, heights, widths, starts, within, blocks, inner_column, inner_row, block_column, block_row, row,
          column, down.indices, down.weights, across.indices, across.weights});
  return taps;
}

}  // namespace dsplan
