// What transformers computes before the first layer to learn how attention is masked (masking_utils.py).
#include "model/graphs/masks.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace dsplan {
namespace {

void look_for_packed_sequences(GraphBuilder& g, TensorId position_ids) {
  if (g.options().use_cache) return;  // Nobody packs rows to generate.
  const std::int64_t batch = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  // The first position, less one.
  const TensorId first = g.make(Op::AddScalar, Shape{batch, 1}, DType::Int64, {position_ids}, false, -1);
  const TensorId joined = g.cat(first, position_ids);
  const TensorId difference = g.make(Op::Sub, Shape{batch, seq}, DType::Int64, {joined});
  g.drop({joined});
  const TensorId differs = g.make(Op::NotEqual, Shape{batch, seq}, DType::Bool, {difference}, false, 1);
  const TensorId index = g.make(Op::CumSum, Shape{batch, seq}, DType::Int64, {differs});
  g.drop({differs});
  const TensorId none = g.make(Op::Equal, Shape{batch}, DType::Bool, {index});
  const TensorId all = g.make(Op::All, Shape{}, DType::Bool, {none});
  g.drop({none, all, first, difference, index}, all);
}

// A mask of ones is found to mask nothing: all of it, since 5.0 by its sum.
void look_for_padding(GraphBuilder& g, TensorId mask) {
  const TensorId flags = g.cast(mask, DType::Bool);
  if (g.options().transformers < Version{5, 0, 0}) {
    const TensorId all = g.make(Op::All, Shape{}, DType::Bool, {flags});
    return g.drop({flags, all}, all);
  }
  const TensorId count = g.make(Op::SumDim, Shape{}, DType::Int64, {flags});
  const TensorId all = g.make(Op::Equal, Shape{}, DType::Bool, {count});
  g.drop({all, count, flags}, all);
}

// What a mask function is called with: numbers of rows, heads, queries and keys.
struct Indices {
  TensorId rows = kNone;
  TensorId heads = kNone;
  TensorId q = kNone;
  TensorId kv = kNone;
};

// kv <= q, of every pair of positions.
TensorId causal_flags(GraphBuilder& g, const Indices& at) {
  const std::int64_t seq = g.options().seq;
  return g.make(Op::GreaterEqual, Shape{1, 1, seq, seq}, DType::Bool, {at.rows, at.heads, at.q, at.kv});
}

// One byte, then for each condition its flags and their conjunction (and_masks): kv > q - window, kv <= q.
TensorId windowed_flags(GraphBuilder& g, const Indices& at, std::int64_t window) {
  const std::int64_t seq = g.options().seq;
  const Shape square{1, 1, seq, seq};
  const TensorId start = g.filled(Shape{}, DType::Bool, 1);
  const auto back = static_cast<double>(window - 1);
  const TensorId lowest = g.make(Op::Sub, Shape{1, 1, seq, 1}, DType::Int64, {at.q}, false, back);
  const TensorId above = g.make(Op::GreaterEqual, square, DType::Bool, {at.kv, lowest});
  g.drop({lowest});
  const TensorId within = g.make(Op::MaskedFill, square, DType::Bool, {start, above});
  g.drop({start, above});
  const TensorId causal = causal_flags(g, at);
  const TensorId both = g.make(Op::MaskedFill, square, DType::Bool, {within, causal});
  g.drop({within, causal});
  return both;
}

// abs(q - kv) <= window, and q >= 0.
TensorId near_flags(GraphBuilder& g, const Indices& at, std::int64_t window) {
  const std::int64_t seq = g.options().seq;
  const Shape square{1, 1, seq, seq};
  const TensorId start = g.filled(Shape{}, DType::Bool, 1);
  const TensorId rows = g.view(at.q, Shape{1, 1, seq, 1});
  const TensorId columns = g.view(at.kv, Shape{1, 1, 1, seq});
  const TensorId apart = g.make(Op::Sub, square, DType::Int64, {rows, columns});
  const TensorId distance = g.make(Op::Abs, square, DType::Int64, {apart});
  g.drop({apart});
  const TensorId near = g.make(Op::Less, square, DType::Bool, {distance}, false, static_cast<double>(window + 1));
  g.drop({distance});
  const TensorId within = g.make(Op::MaskedFill, square, DType::Bool, {start, near});
  g.drop({start, near});
  const TensorId any = g.make(Op::GreaterEqual, Shape{1, 1, seq, 1}, DType::Bool, {rows});
  const TensorId both = g.make(Op::MaskedFill, square, DType::Bool, {within, any});
  g.drop({within, any, rows, columns});
  return both;
}

// (kv - padding) // chunk == (q - padding) // chunk, and kv <= q.
TensorId chunk_flags(GraphBuilder& g, const Indices& at, TensorId padding, std::int64_t chunk) {
  const std::int64_t seq = g.options().seq;
  const std::int64_t batch = g.options().micro_batch;
  const TensorId start = g.filled(Shape{}, DType::Bool, 1);
  const auto chunk_of = [&](TensorId places, const Shape& shape) {
    const TensorId before = g.make(Op::Index, Shape{batch, 1, 1, 1}, DType::Int64, {padding, at.rows});
    const TensorId own = g.make(Op::Sub, shape, DType::Int64, {places, before});
    g.drop({before});
    const TensorId number = g.make(Op::FloorDivScalar, shape, DType::Int64, {own}, false, static_cast<double>(chunk));
    g.drop({own});
    return number;
  };
  const TensorId of_keys = chunk_of(at.kv, Shape{batch, 1, 1, seq});
  const TensorId of_queries = chunk_of(at.q, Shape{batch, 1, seq, 1});
  const Shape square{batch, 1, seq, seq};
  const TensorId same = g.make(Op::Equal, square, DType::Bool, {of_keys, of_queries});
  g.drop({of_keys, of_queries});
  const TensorId within = g.make(Op::MaskedFill, square, DType::Bool, {start, same});
  g.drop({same, start});
  const TensorId causal = causal_flags(g, at);
  const TensorId both = g.make(Op::MaskedFill, square, DType::Bool, {within, causal});
  g.drop({within, causal});
  return both;
}

// Causal flags, and those of the tokens that count: a mask of ones is looked up for each pair of positions.
TensorId padded_flags(GraphBuilder& g, const Indices& at, TensorId ones) {
  const std::int64_t seq = g.options().seq;
  const std::int64_t batch = g.options().micro_batch;
  const TensorId start = g.filled(Shape{}, DType::Bool, 1);
  const TensorId causal = causal_flags(g, at);
  const TensorId first = g.make(Op::MaskedFill, Shape{1, 1, seq, seq}, DType::Bool, {start, causal});
  g.drop({start, causal});
  const TensorId counts = g.make(Op::Index, Shape{batch, 1, 1, seq}, DType::Bool, {ones, at.rows, at.kv});
  const TensorId both = g.make(Op::MaskedFill, Shape{batch, 1, seq, seq}, DType::Bool, {first, counts});
  g.drop({first, counts});
  return both;
}

// The number of the block that each token is in, and what variables of the function hold beside it until it returns.
struct NumberedBlocks {
  TensorId blocks = kNone;
  TensorId none = kNone;
  TensorId begins = kNone;
  TensorId numbers = kNone;
};

// A block begins where a token is shown behind one that is not; -1 elsewhere. Uses up `text`.
NumberedBlocks numbered_blocks(GraphBuilder& g, TensorId shown, TensorId text) {
  const Shape shape = g.shape(shown);
  NumberedBlocks made;
  made.begins = g.make(Op::MaskedFill, shape, DType::Bool, {shown, text});
  g.drop({text});
  const TensorId ones = g.cast(made.begins, DType::Int32);
  const TensorId sums = g.make(Op::CumSum, shape, DType::Int64, {ones});
  g.drop({ones});
  made.numbers = g.make(Op::SubScalar, shape, DType::Int64, {sums}, false, 1);
  g.drop({sums});
  made.none = g.filled(Shape{}, DType::Int64, -1);
  made.blocks = g.make(Op::Where, shape, DType::Int64, {shown, made.numbers, made.none});
  return made;
}

// get_block_sequence_ids_for_mask: numbers of pictures, -1 for text. A picture begins behind a token that is none's.
TensorId numbered_pictures(GraphBuilder& g, TensorId types) {
  const Shape shape = g.shape(types);
  Shape wider = shape;
  ++wider.dims[1];
  const TensorId shown = g.make(Op::Equal, shape, DType::Bool, {types}, false, 1);
  const TensorId padded = g.make(Op::Pad, wider, DType::Bool, {shown});
  const TensorId before = g.slice(padded, 1, 0, shape.dims[1]);
  const TensorId text = g.make(Op::NotEqual, shape, DType::Bool, {before}, false, 1);
  const NumberedBlocks own = numbered_blocks(g, shown, text);
  g.drop({own.none, shown, padded, before, own.begins, own.numbers});
  return own.blocks;
}

// get_block_sequence_ids_for_mask of gemma4: likewise, and a film's tokens count.
TensorId rolled_pictures(GraphBuilder& g, TensorId types) {
  const Shape shape = g.shape(types);
  const TensorId picture = g.make(Op::Equal, shape, DType::Bool, {types}, false, 1);
  const TensorId film = g.make(Op::Equal, shape, DType::Bool, {types}, false, 2);
  const TensorId shown = g.make(Op::BitwiseOr, shape, DType::Bool, {picture, film});
  g.drop({picture, film});
  const TensorId before = g.make(Op::Roll, shape, DType::Bool, {shown});
  const TensorId text = g.make(Op::BitwiseNot, shape, DType::Bool, {before});
  const NumberedBlocks own = numbered_blocks(g, shown, text);
  g.drop({own.none, shown, before, own.begins, own.numbers});
  return own.blocks;
}

// kv <= q, within a window if there is one, or both are of one picture. `start`: what or_masks begins with, a byte for
// each time that vmap sees it.
TensorId causal_or_one_picture(GraphBuilder& g, const Indices& at, TensorId blocks, const Shape& start,
                               std::int64_t window = 0) {
  const std::int64_t seq = g.options().seq;
  const std::int64_t batch = g.options().micro_batch;
  const Shape square{batch, 1, seq, seq};
  const TensorId none = g.filled(start, DType::Bool, 0);
  const TensorId causal = window > 0 ? windowed_flags(g, at, window) : causal_flags(g, at);
  const TensorId first = g.make(Op::BitwiseOr, g.shape(causal), DType::Bool, {none, causal});
  g.drop({causal, none});
  const TensorId of_queries = g.make(Op::Index, Shape{batch, 1, seq, 1}, DType::Int64, {blocks, at.rows, at.q});
  const TensorId of_keys = g.make(Op::Index, Shape{batch, 1, 1, seq}, DType::Int64, {blocks, at.rows, at.kv});
  const TensorId same = g.make(Op::Equal, square, DType::Bool, {of_queries, of_keys});
  const TensorId shown = g.make(Op::GreaterEqual, Shape{batch, 1, seq, 1}, DType::Bool, {of_queries});
  const TensorId together = g.make(Op::MaskedFill, square, DType::Bool, {same, shown});
  g.drop({same, shown, of_queries, of_keys});
  const TensorId both = g.make(Op::BitwiseOr, square, DType::Bool, {first, together});
  g.drop({together, first});
  return both;
}

// And kv > q - window. Functions that are combined so go through vmap, under which a byte is one for each query.
TensorId near_or_one_picture(GraphBuilder& g, const Indices& at, TensorId blocks, std::int64_t window) {
  const std::int64_t seq = g.options().seq;
  const Shape square{g.options().micro_batch, 1, seq, seq};
  const TensorId start = g.filled(Shape{seq}, DType::Bool, 1);
  const TensorId seen = causal_or_one_picture(g, at, blocks, Shape{seq});
  const TensorId first = g.make(Op::MaskedFill, square, DType::Bool, {start, seen});
  g.drop({seen, start});
  const auto back = static_cast<double>(window);
  const TensorId lowest = g.make(Op::Sub, Shape{1, 1, seq, 1}, DType::Int64, {at.q}, false, back);
  const TensorId above = g.make(Op::GreaterEqual, Shape{1, 1, seq, seq}, DType::Bool, {at.kv, lowest});
  g.drop({lowest});
  const TensorId both = g.make(Op::MaskedFill, square, DType::Bool, {first, above});
  g.drop({above, first});
  return both;
}

Indices numbered(GraphBuilder& g) {
  Indices at;
  at.rows = arange(g, g.options().micro_batch);
  at.heads = arange(g, 1);
  at.q = shifted_numbers(g, g.options().seq);
  at.kv = shifted_numbers(g, g.options().seq);
  return at;
}

// sdpa_mask: flags [1, 1, S, S], expanded to the batch.
TensorId flags_of(GraphBuilder& g, bool windowed, std::int64_t window, TensorId ones = kNone) {
  const Indices at = numbered(g);
  const TensorId flags = ones != kNone ? padded_flags(g, at, ones)
                         : windowed    ? windowed_flags(g, at, window)
                                       : causal_flags(g, at);
  g.drop({at.rows, at.heads, at.q, at.kv});
  return flags;
}

// eager_mask: 0 where the flag is set, the dtype's minimum elsewhere.
TensorId added_mask(GraphBuilder& g, TensorId flags) {
  const Shape shape{g.options().micro_batch, 1, g.options().seq, g.options().seq};
  const DType dtype = g.options().dtype;
  const TensorId zero = g.filled(Shape{}, dtype, 0);
  const TensorId minimum = g.filled(Shape{}, dtype, lowest_number(dtype));
  const TensorId mask = g.make(Op::MaskedFill, shape, dtype, {zero, flags, minimum});
  g.drop({zero, minimum});
  return mask;
}

// As attention reads the flags: eager adds a mask of numbers, the fused kernels take the flags themselves.
TensorId mask_of_flags(GraphBuilder& g, TensorId flags) {
  if (!g.options().eager_attention) return flags;
  const TensorId mask = added_mask(g, flags);
  g.drop({flags});
  return mask;
}

// base ** (1, 1 + step, ...), of `count` heads; the base is that of `whole` heads.
TensorId slopes_of(GraphBuilder& g, std::int64_t count, std::int64_t step, std::int64_t whole,
                   std::vector<TensorId>& held) {
  const double root = std::exp2(3 - std::log2(static_cast<double>(whole)));
  const TensorId base = g.filled(Shape{}, DType::Float32, std::exp2(-root));
  const TensorId powers = counted(g, count, DType::Int32, 1, step);
  held.insert(held.end(), {base, powers});
  return g.make(Op::PowScalar, Shape{count}, DType::Float32, {base, powers});
}

}  // namespace

TensorId shifted_numbers(GraphBuilder& g, std::int64_t count) {
  const TensorId range = arange(g, count);
  const TensorId shifted = g.make(Op::AddScalar, Shape{count}, DType::Int64, {range});
  g.drop({range});
  return shifted;
}

double lowest_number(DType dtype) {
  if (dtype == DType::Float16) return -65504;
  if (dtype == DType::BFloat16) return -0x1.fep127;
  return dtype == DType::Float64 ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
}

TensorId alibi_biases(GraphBuilder& g, TensorId ones, DType dtype, bool narrow) {
  const std::int64_t heads = g.dims().heads;
  const Shape rows = g.shape(ones);
  const auto whole = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<TensorId> held;
  TensorId slopes = slopes_of(g, whole, 1, whole, held);
  if (whole != heads) {
    const TensorId rest = slopes_of(g, heads - whole, 2, 2 * whole, held);
    const TensorId joint = g.cat(slopes, rest);
    g.drop({rest, slopes});
    slopes = joint;
  }
  const TensorId sums = g.make(Op::CumSum, rows, g.dtype(ones), {ones});
  const TensorId shifted = g.make(Op::SubScalar, rows, g.dtype(ones), {sums}, false, 1);
  g.drop({sums});
  const TensorId places = g.make(Op::Mul, rows, g.dtype(ones), {shifted, ones});
  g.drop({shifted});
  const TensorId column = g.view(slopes, Shape{heads, 1});
  const TensorId factors = narrow ? g.cast(column, DType::BFloat16) : g.keep(column);
  g.drop({column});
  const TensorId row = g.view(places, Shape{rows.dims[0], 1, rows.dims[1]});
  const Shape shape{rows.dims[0], heads, rows.dims[1]};
  const TensorId biases = g.make(Op::Mul, shape, g.dtype(factors), {factors, row});
  g.drop({factors, row});
  const TensorId flat = g.view(biases, Shape{rows.dims[0] * heads, 1, rows.dims[1]});
  const TensorId out = g.cast(flat, dtype);
  g.drop({flat, biases, places, slopes});
  for (TensorId one : held) g.drop({one});
  return out;
}

TensorId materialised_mask(GraphBuilder& g) {
  const TensorId flags = flags_of(g, false, 0);
  return mask_of_flags(g, flags);
}

TensorId near_mask(GraphBuilder& g, std::int64_t window) {
  if (g.options().seq < window) return kNone;
  const Indices at = numbered(g);
  const TensorId flags = near_flags(g, at, window);
  g.drop({at.rows, at.heads, at.q, at.kv});
  return mask_of_flags(g, flags);
}

TensorId chunk_mask(GraphBuilder& g, TensorId position_ids, std::int64_t chunk) {
  look_for_packed_sequences(g, position_ids);
  const TensorId padding = g.filled(Shape{g.options().micro_batch}, DType::Int64, 0);
  TensorId made = kNone;
  if (g.options().eager_attention || g.options().seq >= chunk) {
    const Indices at = numbered(g);
    const TensorId flags = chunk_flags(g, at, padding, chunk);
    g.drop({at.rows, at.heads, at.q, at.kv});
    made = mask_of_flags(g, flags);
  }
  g.drop({padding});
  return made;
}

PictureMasks picture_masks(GraphBuilder& g, TensorId types, std::int64_t window) {
  PictureMasks made;
  made.blocks = numbered_pictures(g, types);
  const auto mask_of = [&](TensorId flags, const Indices& at) {
    g.drop({at.rows, at.heads, at.q, at.kv});
    return mask_of_flags(g, flags);
  };
  const Indices all = numbered(g);
  made.full = mask_of(causal_or_one_picture(g, all, made.blocks, Shape{}), all);
  const Indices near = numbered(g);
  made.sliding = mask_of(near_or_one_picture(g, near, made.blocks, window), near);
  return made;
}

PictureMasks prefix_masks(GraphBuilder& g, TensorId types, TensorId position_ids, std::int64_t window) {
  const Shape shape = g.shape(types);
  PictureMasks made;
  const TensorId before = g.make(Op::Equal, shape, DType::Bool, {types});
  const TensorId zero = g.filled(Shape{}, DType::Int64, 0);
  const TensorId none = g.filled(Shape{}, DType::Int64, -1);
  made.blocks = g.make(Op::Where, shape, DType::Int64, {before, zero, none});
  g.drop({before, zero, none});
  const auto mask_of = [&](std::int64_t within) {
    look_for_packed_sequences(g, position_ids);
    const Indices at = numbered(g);
    const TensorId flags = causal_or_one_picture(g, at, made.blocks, Shape{}, within);
    g.drop({at.rows, at.heads, at.q, at.kv});
    return mask_of_flags(g, flags);
  };
  made.full = mask_of(0);
  if (window > 0) made.sliding = mask_of(window);
  return made;
}

PictureMasks near_picture_masks(GraphBuilder& g, TensorId types, TensorId position_ids, std::int64_t window) {
  PictureMasks made;
  made.blocks = rolled_pictures(g, types);
  made.full = attention_mask(g, position_ids, kNone);
  look_for_packed_sequences(g, position_ids);  // For the length of keys alone.
  look_for_packed_sequences(g, position_ids);
  const Indices at = numbered(g);
  const TensorId flags = near_or_one_picture(g, at, made.blocks, window);
  g.drop({at.rows, at.heads, at.q, at.kv});
  made.sliding = mask_of_flags(g, flags);
  return made;
}

TensorId mask_of_places(GraphBuilder& g, TensorId counts, bool all) {
  const TensorId found = g.make(Op::All, Shape{}, DType::Bool, {counts});
  g.drop({found}, found);
  if (all) return kNone;
  const std::int64_t seq = g.options().seq;
  const std::int64_t rows = g.options().micro_batch;
  const Indices at = numbered(g);
  const TensorId start = g.filled(Shape{}, DType::Bool, 1);
  const TensorId any = g.make(Op::GreaterEqual, Shape{1, 1, seq, 1}, DType::Bool, {at.q});
  const TensorId first = g.make(Op::MaskedFill, Shape{1, 1, seq, 1}, DType::Bool, {start, any});
  g.drop({start, any});
  const TensorId seen = g.make(Op::Index, Shape{rows, 1, 1, seq}, DType::Bool, {counts, at.rows, at.kv});
  const TensorId flags = g.make(Op::MaskedFill, Shape{rows, 1, seq, seq}, DType::Bool, {first, seen});
  g.drop({seen, first, at.rows, at.heads, at.q, at.kv});
  return mask_of_flags(g, flags);
}

TensorId attention_mask(GraphBuilder& g, TensorId position_ids, TensorId ones, std::optional<std::int64_t> window) {
  const GraphOptions& options = g.options();
  // The fused kernels need no mask as long as the window reaches over all tokens; eager attention always adds one.
  const bool windowed = window && !options.windows_in_kernel && (options.eager_attention || options.seq >= *window);
  if (ones != kNone && options.eager_attention) {
    const TensorId counted = g.cast(ones, DType::Bool);
    const TensorId flags = flags_of(g, false, 0, counted);
    const TensorId mask = added_mask(g, flags);
    g.drop({flags, counted});
    return mask;
  }
  if (ones != kNone) {
    look_for_padding(g, ones);
  } else if (position_ids != kNone && options.transformers >= Version{5, 0, 0}) {
    look_for_packed_sequences(g, position_ids);
  }
  if (!options.eager_attention && !windowed) return kNone;
  const TensorId flags = flags_of(g, windowed, window.value_or(0));
  return mask_of_flags(g, flags);
}

}  // namespace dsplan
