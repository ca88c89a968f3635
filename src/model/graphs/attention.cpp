// Attention as transformers calls it: through scaled_dot_product_attention, whose math kernel is composed of operators,
// or composed of products ("eager").
//
// Layouts decide where PyTorch copies. Projected heads are views of [B, S, H, D] and stay so through rotation; a
// product wants [B * H, S, D], which such a view is only with one row, one head or one token. What a reshape copies in
// forward it copies in backward as well, because there the gradient comes in the layout that the view was made from.
#include "model/graphs/attention.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"
#include "model/traits.h"

namespace dsplan {
namespace {

enum class Layout : std::uint8_t { Plain, ByToken, Repeated };

struct Heads {
  TensorId tensor = kNone;
  Layout layout = Layout::Plain;
};

std::int64_t batch_of(const GraphBuilder& g, TensorId x) { return g.shape(x).dims[0]; }
std::int64_t heads_of(const GraphBuilder& g, TensorId x) { return g.shape(x).dims[1]; }
std::int64_t seq_of(const GraphBuilder& g, TensorId x) { return g.shape(x).dims[2]; }

Heads by_token(GraphBuilder& g, TensorId x) {
  const bool plain = heads_of(g, x) == 1 || seq_of(g, x) == 1;
  return {g.keep(x), plain ? Layout::Plain : Layout::ByToken};
}

Heads as_they_lie(GraphBuilder& g, TensorId x, bool by_head) {
  return by_head ? Heads{g.keep(x), Layout::Plain} : by_token(g, x);
}

double scale_of(const GraphBuilder& g, const AttentionCall& call) {
  return call.scale > 0 ? call.scale : 1 / std::sqrt(static_cast<double>(g.dims().head_dim));
}

// [B, own, S, D] as [B, heads, S, D], each head several times in a row; its gradient is a sum.
TensorId with_repeated_heads(GraphBuilder& g, TensorId x, std::int64_t heads) {
  const Shape own = g.shape(x);
  const Shape apart{own.dims[0], own.dims[1], 1, own.dims[2], own.dims[3]};
  Shape shape = own;
  shape.dims[1] = heads;
  return g.view_copied_back(x, shape, {step_reshape(apart), step_repeat(2, heads / own.dims[1]), step_reshape(shape)});
}

// One head for each of the query's: expand, whose gradient is a sum, then a reshape that copies, unless there is but
// one head to repeat (repeat_kv in every modeling file).
// `shared`: what the sum is seen through, x[:, :, None], makes a difference, since others add to it.
Heads repeated(GraphBuilder& g, TensorId x, std::int64_t heads, bool by_head, bool shared = false) {
  const std::int64_t own = heads_of(g, x);
  if (own == heads) return as_they_lie(g, x, by_head);
  const TensorId seen = shared ? g.view(x, g.shape(x)) : g.keep(x);
  const TensorId expanded = with_repeated_heads(g, seen, heads);
  g.drop({seen});
  if (own == 1) return {expanded, Layout::Repeated};
  const TensorId copied = g.copy(expanded);
  g.drop({expanded});
  return {copied, Layout::Plain};
}

// x.contiguous(), rebinding the variable.
void make_plain(GraphBuilder& g, Heads& x) {
  if (x.layout == Layout::Plain) return;
  const TensorId copied = g.copy(x.tensor);
  g.drop({x.tensor});
  x = {copied, Layout::Plain};
}

// What matmul's reshape to [B * H, ...] makes of an operand; to be dropped after the product.
TensorId flattened(GraphBuilder& g, const Heads& x) {
  const bool merges = x.layout == Layout::Plain || batch_of(g, x.tensor) == 1;
  return merges ? g.keep(x.tensor) : g.copy(x.tensor);
}

// output.transpose(1, 2).contiguous() from [B, H, S, D] in that layout, or from a part of such, and reshape to
// [B, S, H * D].
TensorId joined(GraphBuilder& g, TensorId output, bool part = false) {
  const Shape& shape = g.shape(output);
  const Shape flat{shape.dims[0], shape.dims[2], shape.dims[1] * shape.dims[3]};
  const bool copies = part || (shape.dims[1] > 1 && shape.dims[2] > 1);
  const TensorId swapped = g.view(output, flat, {step_swap(1, 2), step_reshape(flat)});
  const TensorId result = copies ? g.copy(swapped) : g.keep(swapped);
  g.drop({swapped});
  return result;
}

// What each score becomes first; `held` takes the number that stands where nobody sees.
TensorId scaled(GraphBuilder& g, const AttentionCall& call, TensorId product, std::vector<TensorId>& held) {
  if (call.divisor > 0) return g.unary(Op::DivScalar, product, call.divisor);
  if (call.seen == kNone) return g.unary(Op::MulScalar, product, scale_of(g, call));
  held.push_back(g.filled(Shape{}, g.dtype(product), lowest_number(g.dtype(product))));
  return g.make(Op::Where, g.shape(product), g.dtype(product), {call.seen, product, held.back()}, true);
}

// matmul(query, key.transpose(2, 3)) * scaling, soft-capping, + mask: each statement rebinds the variable.
TensorId scores(GraphBuilder& g, const AttentionCall& call, const Heads& query, const Heads& key,
                std::vector<TensorId>& held) {
  const Heads low_key{g.lowered(key.tensor), key.layout};
  const Heads low_query{g.lowered(query.tensor), query.layout};
  const TensorId q = flattened(g, low_query);
  const TensorId k = flattened(g, low_key);
  Shape turned = g.shape(k);
  std::swap(turned.dims[2], turned.dims[3]);
  const TensorId k_turned = g.view(k, turned, {step_swap(2, 3)});
  const TensorId product = g.matmul(q, k_turned);
  g.drop({q, k, k_turned, low_query.tensor, low_key.tensor});
  TensorId weights = scaled(g, call, product, held);
  g.drop({product});
  const auto becomes = [&](TensorId next) {
    g.drop({weights});
    weights = next;
  };
  if (call.softcap > 0) {
    becomes(g.unary(Op::DivScalar, weights, call.softcap));
    becomes(g.unary(Op::Tanh, weights));
    becomes(g.unary(Op::MulScalar, weights, call.softcap));
  }
  if (call.bias != kNone) becomes(g.binary(Op::Add, weights, call.bias));
  if (call.mask != kNone) becomes(g.binary(Op::Add, weights, call.mask));
  return weights;
}

// softmax(dtype=float32).to(query.dtype): bf16 is copied to fp32 first, the fp16 kernel writes fp32 itself
// (aten/src/ATen/native/SoftMax.cpp). Under autocast a mask in fp32 has made the scores wider than the query is.
TensorId wide_softmax(GraphBuilder& g, TensorId weights, DType as) {
  TensorId wide = kNone;
  if (g.dtype(weights) == DType::Float16) {
    wide = g.make(Op::Softmax, g.shape(weights), DType::Float32, {weights}, true);
  } else {
    const TensorId upcast = g.cast(weights, DType::Float32);
    wide = g.unary(Op::Softmax, upcast);
    g.drop({upcast});
  }
  const TensorId result = g.cast(wide, as);
  g.drop({wide, weights});
  return result;
}

// softmax(), then .type(value.dtype): two statements, so that the scores are gone when the weights are brought back.
TensorId plain_softmax(GraphBuilder& g, TensorId weights, DType as) {
  const TensorId soft = g.unary(Op::Softmax, weights);
  g.drop({weights});
  const TensorId result = g.cast(soft, as);
  g.drop({soft});
  return result;
}

// gpt_oss: softmax(cat(weights, sinks) - its maximum), of which the sinks' column is dropped again. `held` takes what
// the function's variables hold until it returns; `weights` stay the caller's.
TensorId softened_with_sinks(GraphBuilder& g, TensorId sinks, TensorId weights, std::vector<TensorId>& held) {
  const Shape shape = g.shape(weights);
  const Shape row{shape.dims[0], shape.dims[1], shape.dims[2], 1};
  const TensorId column = g.view(sinks, Shape{1, shape.dims[1], 1, 1});
  const TensorId spread = g.view(column, row, Op::Expand);
  g.drop({column});
  const TensorId joint = g.cat(weights, spread);
  const auto [highest, places] = g.select(Op::Max, joint, row);
  g.drop({places});
  const TensorId centred = g.binary(Op::Sub, joint, highest);
  g.drop({joint, highest});
  const TensorId soft = g.make(Op::Softmax, g.shape(centred), g.dtype(centred), {centred}, true);
  const TensorId scores = g.slice(soft, 3, 0, shape.dims[3]);
  held.insert(held.end(), {spread, centred, soft});
  return scores;
}

// granite_swa: sigmoid((logsumexp(weights) - sinks).to(float32)). `held` takes the sums, which have a name.
TensorId outweighed_sinks(GraphBuilder& g, TensorId sinks, TensorId weights, std::vector<TensorId>& held) {
  const Shape shape = g.shape(weights);
  const Shape sums{shape.dims[0], shape.dims[1], shape.dims[2]};
  const TensorId lse = g.make(Op::LogSumExp, sums, g.dtype(weights), {weights}, true);
  const TensorId column = g.view(sinks, Shape{1, shape.dims[1], 1});
  const TensorId apart = g.binary(Op::Sub, lse, column);
  g.drop({column});
  const TensorId wide = g.cast(apart, DType::Float32);
  g.drop({apart});
  const TensorId scale = g.unary(Op::Sigmoid, wide);
  g.drop({wide});
  held.push_back(lse);
  return scale;
}

// output * scale.unsqueeze(-1).to(output.dtype), rebinding the variable.
TensorId scaled_by_sinks(GraphBuilder& g, TensorId output, TensorId scale) {
  const Shape& sums = g.shape(scale);
  const TensorId column = g.view(scale, Shape{sums.dims[0], sums.dims[1], sums.dims[2], 1});
  const TensorId narrow = g.cast(column, g.dtype(output));
  g.drop({column});
  const TensorId scaled = g.binary(Op::Mul, output, narrow);
  g.drop({narrow, output});
  return scaled;
}

TensorId softened(GraphBuilder& g, const AttentionCall& call, TensorId weights) {
  if (call.softmax == SoftmaxKind::Wide) return wide_softmax(g, weights, g.dtype(call.q));
  if (call.softmax == SoftmaxKind::Values) return plain_softmax(g, weights, g.dtype(call.v));
  const TensorId soft = g.unary(Op::Softmax, weights);
  g.drop({weights});
  return soft;
}

Heads brought_to_fp32(GraphBuilder& g, const AttentionCall& call, const Heads& x) {
  if (!call.wide) return x;
  return {rebound(g, x.tensor, g.cast(x.tensor, DType::Float32)), x.layout};
}

// eager_attention_forward. The result's layout is that of the product; the weights go back to the caller.
Attended eager(GraphBuilder& g, const AttentionCall& call) {
  const std::int64_t heads = heads_of(g, call.q);
  const Heads query = brought_to_fp32(g, call, as_they_lie(g, call.q, call.by_head));
  const Heads key =
      brought_to_fp32(g, call, repeated(g, call.k, heads, call.by_head || call.keys_by_head, call.shared));
  const Heads value = repeated(g, call.v, heads, call.values_by_head, call.shared);
  std::vector<TensorId> held;
  TensorId weights = scores(g, call, query, key, held);
  const TensorId own = weights;
  const bool sinks = call.sinks != kNone && !call.sinks_scale;
  const TensorId scale = call.sinks_scale ? outweighed_sinks(g, call.sinks, own, held) : kNone;
  weights = sinks ? softened_with_sinks(g, call.sinks, own, held) : softened(g, call, own);
  TensorId dropped = call.dropped_by == kNone ? g.dropout(weights, call.dropout)
                                              : dropout_module(g, call.dropped_by, weights, call.dropout);
  g.drop({weights});
  if (sinks) {
    const TensorId narrow = g.cast(dropped, g.dtype(value.tensor));
    g.drop({dropped, own});
    dropped = narrow;
  }
  const Heads low_value{g.lowered(value.tensor), value.layout};
  const TensorId low_weights = g.lowered(dropped);
  const TensorId v = flattened(g, low_value);
  const TensorId product = g.matmul(low_weights, v);
  g.drop({v, low_weights, low_value.tensor});
  const bool copied_back = batch_of(g, product) > 1 && heads > 1 && seq_of(g, product) > 1;
  const Shape shape = g.shape(product);
  TensorId output = copied_back ? g.view_copied_back(product, shape) : g.view(product, shape);
  g.drop({product});
  if (scale != kNone) {
    output = scaled_by_sinks(g, output, scale);
    held.push_back(scale);
  }
  const auto let_go = [&] {
    g.drop({query.tensor, key.tensor});
    for (TensorId one : held) g.drop({one});
  };
  if (call.wide) let_go();  // By a function of their own, which has returned.
  const TensorId flat = joined(g, output);
  g.drop({output, value.tensor});
  if (!call.wide) let_go();
  return {flat, dropped};
}

bool expands_heads(const GraphOptions& options) { return !keeps_heads_grouped(options.transformers, options.torch); }
bool copies_operands(const GraphOptions& options) {
  return options.transformers >= Version{4, 48, 0} && options.transformers < Version{4, 54, 0};
}

constexpr std::int64_t kAligned = 8;  // Elements.

// A mask that masks what flags leave unset: 0 or minus infinity by element, in the query's dtype, and for the
// memory-efficient kernel padded where its rows are not aligned (convert_boolean_attn_mask, preprocess_mask).
TensorId bias_of_flags(GraphBuilder& g, TensorId flags, TensorId q) {
  const DType dtype = g.dtype(q);
  if (g.dtype(flags) != DType::Bool) return g.keep(flags);  // Added as it is.
  const Shape shape{batch_of(g, q), 1, seq_of(g, q), seq_of(g, q)};
  const TensorId minimum = g.filled(Shape{}, dtype, -std::numeric_limits<double>::infinity());
  const TensorId zero = g.filled(Shape{}, dtype, 0);
  const TensorId bias = g.make(Op::MaskedFill, shape, dtype, {zero, flags, minimum});
  g.drop({zero, minimum});
  return bias;
}

TensorId added_bias(GraphBuilder& g, TensorId flags, TensorId q) {
  const DType dtype = g.dtype(q);
  TensorId bias = bias_of_flags(g, flags, q);
  Shape shape = g.shape(bias);
  const std::int64_t over = shape.dims[3] % kAligned;
  if (over != 0 && g.options().attention != AttentionKernel::CuDnn) {
    shape.dims[3] += kAligned - over;
    const TensorId padded = g.make(Op::Pad, shape, dtype, {bias});
    g.drop({bias});
    bias = padded;
  }
  return bias;
}

// create_position_bias_mask of integrations/sdpa_attention.py: the lowest number where a token does not see another.
TensorId masked_bias(GraphBuilder& g, const AttentionCall& call) {
  const Shape& shape = g.shape(call.bias);
  const std::int64_t queries = shape.dims[2];
  if (call.full || queries == 1) return g.keep(call.bias);
  const TensorId rows = arange(g, queries);
  const TensorId columns = arange(g, shape.dims[3]);
  const Shape square{1, 1, queries, shape.dims[3]};
  const TensorId seen = g.make(Op::GreaterEqual, square, DType::Bool, {rows, columns});
  g.drop({rows, columns});
  const TensorId lowest = g.filled(Shape{}, g.dtype(call.bias), lowest_number(g.dtype(call.k)));
  const TensorId masked = g.make(Op::Where, shape, g.dtype(call.bias), {seen, call.bias, lowest}, true);
  g.drop({lowest, seen});
  return masked;
}

// preprocess_mask: rows that are not aligned, or in which elements do not follow each other, are padded, by a whole
// step where they are aligned; then each row of the batch sees the same.
TensorId spread_bias(GraphBuilder& g, const AttentionCall& call, TensorId bias) {
  const Shape shape = g.shape(bias);
  // What `where` makes of one head lies in rows.
  const bool strided = call.strided_bias && (call.full || heads_of(g, bias) > 1);
  Shape whole = shape;
  whole.dims[0] = batch_of(g, call.q);
  TensorId own = g.keep(bias);
  if (g.options().attention == AttentionKernel::CuDnn) return own;  // Which takes it as it is.
  if (strided || shape.dims[3] % kAligned != 0) {
    Shape wide = shape;
    wide.dims[3] += kAligned - shape.dims[3] % kAligned;
    const TensorId padded = g.make(Op::Pad, wide, g.dtype(own), {own}, true);
    g.drop({own});
    own = g.slice(padded, 3, 0, shape.dims[3]);
    g.drop({padded});
  }
  const TensorId spread = g.view(own, whole, Op::Expand);
  g.drop({own});
  return spread;
}

// The kernel with a bias; the function's variable for what is masked lives until it returns.
TensorId biased_kernel(GraphBuilder& g, const AttentionCall& call) {
  const TensorId masked = masked_bias(g, call);
  const TensorId low_mask = g.lowered(masked);
  const TensorId low_v = g.lowered(call.v);
  const TensorId low_k = g.lowered(call.k);
  const TensorId low_q = g.lowered(call.q);
  const TensorId bias = spread_bias(g, call, low_mask);
  const TensorId output = g.attention(low_q, low_k, low_v, bias, call.dropout, {false, 0, true, call.scale});
  g.drop({bias, low_q, low_k, low_v, low_mask, masked});
  return output;
}

// With columns of zeros behind each head: a copy, head by head.
TensorId padded(GraphBuilder& g, TensorId x, std::int64_t columns) {
  Shape shape = g.shape(x);
  shape.dims[3] += columns;
  return g.make(Op::Pad, shape, g.dtype(x), {x}, true);
}

// Flash wants aligned heads: operands are padded, and of the result only the own columns are seen (attention.cpp,
// pad_last_dim and post_process_flash_output).
TensorId padded_flash(GraphBuilder& g, const Heads& query, const Heads& key, const Heads& value,
                      const AttentionCall& call) {
  const TensorId low_v = g.lowered(value.tensor);
  const TensorId low_k = g.lowered(key.tensor);
  const TensorId low_q = g.lowered(query.tensor);
  const std::int64_t width = g.shape(low_q).dims[3];
  const std::int64_t columns = kAligned - width % kAligned;
  const TensorId q = padded(g, low_q, columns);
  const TensorId k = padded(g, low_k, columns);
  const TensorId v = padded(g, low_v, columns);
  const bool by_head = heads_of(g, q) > 1 && seq_of(g, q) > 1;
  const TensorId whole = g.attention(q, k, v, kNone, call.dropout, {by_head, columns, call.full, call.scale});
  const TensorId output = g.slice(whole, 3, 0, width);
  g.drop({whole, v, k, q, low_q, low_k, low_v});
  return output;
}

TensorId fused_kernel(GraphBuilder& g, const Heads& query, const Heads& key, const Heads& value,
                      const AttentionCall& call) {
  if (call.mask == kNone) {
    if (pads_heads(g.options(), g.shape(query.tensor).dims[3], false)) {
      return padded_flash(g, query, key, value, call);
    }
    const bool several = heads_of(g, query.tensor) > 1 && seq_of(g, query.tensor) > 1;
    const bool by_head = query.layout == Layout::Plain && several;
    return g.attention(query.tensor, key.tensor, value.tensor, kNone, call.dropout,
                       {by_head, 0, call.full, call.scale});
  }
  const TensorId low_mask = g.lowered(call.mask);
  const TensorId low_v = g.lowered(value.tensor);
  const TensorId low_k = g.lowered(key.tensor);
  const TensorId low_q = g.lowered(query.tensor);
  const TensorId bias = added_bias(g, low_mask, low_q);
  const TensorId output = g.attention(low_q, low_k, low_v, bias, call.dropout, {false, 0, call.full, call.scale});
  g.drop({bias, low_q, low_k, low_v, low_mask});
  return output;
}

// The memory-efficient kernel's result lies token by token, those of flash and cuDNN as they find the query.
bool lies_by_token(const GraphOptions& options, const AttentionCall& call) {
  if (options.attention == AttentionKernel::CuDnn) return false;
  return call.by_head && (options.attention == AttentionKernel::MemoryEfficient || call.mask != kNone);
}

// sdpa_attention_forward.
Attended fused(GraphBuilder& g, const AttentionCall& call) {
  const std::int64_t heads = heads_of(g, call.q);
  Heads query = as_they_lie(g, call.q, call.by_head);
  // Heads stay grouped only where no mask is given, and they are not too wide (use_gqa_in_sdpa).
  const bool repeats = expands_heads(g.options()) || call.mask != kNone || g.shape(call.q).dims[3] > kWidestHeads;
  const bool keys = call.by_head || call.keys_by_head;
  Heads key = repeats ? repeated(g, call.k, heads, keys, call.shared) : as_they_lie(g, call.k, keys);
  const bool values = g.options().use_cache;
  Heads value = repeats ? repeated(g, call.v, heads, values, call.shared) : as_they_lie(g, call.v, values);
  if (copies_operands(g.options())) {
    for (Heads* operand : {&query, &key, &value}) make_plain(g, *operand);
  }
  const bool biased = call.bias != kNone;
  const TensorId output = biased ? biased_kernel(g, call) : fused_kernel(g, query, key, value, call);
  TensorId flat = kNone;
  if (!biased && pads_heads(g.options(), g.shape(query.tensor).dims[3], call.mask != kNone)) {
    flat = joined(g, output, true);
  } else if (query.layout == Layout::ByToken || lies_by_token(g.options(), call)) {
    // Laid out as [B, S, H, D] already: transpose and reshape are views.
    const Shape joint{batch_of(g, output), seq_of(g, output), heads * g.shape(output).dims[3]};
    flat = g.view(output, joint, {step_swap(1, 2), step_reshape(joint)});
  } else {
    flat = joined(g, output);
  }
  g.drop({output, query.tensor, key.tensor, value.tensor});
  return {flat, kNone};
}

// ones(S, S).tril(), then 0 or minus infinity by element, in fp32.
TensorId causal_bias(GraphBuilder& g, std::int64_t seq) {
  const Shape square{seq, seq};
  const TensorId ones = g.filled(square, DType::Bool, 1);
  const TensorId flags = g.make(Op::Tril, square, DType::Bool, {ones});
  g.drop({ones});
  const TensorId minimum = g.filled(Shape{}, DType::Float32, -std::numeric_limits<double>::infinity());
  const TensorId zero = g.filled(Shape{}, DType::Float32, 0);
  const TensorId bias = g.make(Op::MaskedFill, square, DType::Float32, {zero, flags, minimum});
  g.drop({zero, minimum, flags});
  return bias;
}

// One head for each of the query's, by repeat_interleave: always a copy.
Heads interleaved(GraphBuilder& g, const Heads& x, std::int64_t heads) {
  if (heads_of(g, x.tensor) == heads) return {g.keep(x.tensor), x.layout};
  const TensorId expanded = with_repeated_heads(g, x.tensor, heads);
  const TensorId copied = g.copy(expanded);
  g.drop({expanded});
  return {copied, Layout::Plain};
}

// What matmul does with one head that all queries share: it is expanded.
Heads spread(GraphBuilder& g, const Heads& x, std::int64_t heads) {
  if (heads_of(g, x.tensor) == heads) return {g.keep(x.tensor), x.layout};
  return {with_repeated_heads(g, x.tensor, heads), Layout::Repeated};
}

// query * s, (key * s) turned, their product, + mask in place if there is one, a softmax that knows rows masked whole.
TensorId math_weights(GraphBuilder& g, const Heads& query, const Heads& key, TensorId bias, double root) {
  const Heads scaled_key{g.unary(Op::MulScalar, key.tensor, root), key.layout};
  const Heads spread_key = spread(g, scaled_key, heads_of(g, query.tensor));
  const TensorId q = flattened(g, query);
  const TensorId k = flattened(g, spread_key);
  Shape turned = g.shape(k);
  std::swap(turned.dims[2], turned.dims[3]);
  const TensorId k_turned = g.view(k, turned, {step_swap(2, 3)});
  const TensorId product = g.matmul(q, k_turned);
  g.drop({q, k, k_turned, scaled_key.tensor, spread_key.tensor});
  const TensorId masked = bias == kNone ? g.keep(product) : g.in_place(Op::Add, product, bias);
  g.drop({product});
  const TensorId weights = g.safe_softmax(masked);
  g.drop({masked});
  return weights;
}

// What the composite function returns: the weighted values [B, H, S, D] and the weights, in the dtype that the caller
// had.
struct MathResult {
  TensorId output;
  TensorId weights;
};
MathResult math_output(GraphBuilder& g, TensorId weights, const Heads& value, DType origin) {
  const TensorId returned =
      g.dtype(weights) == origin ? g.keep(weights) : g.make(Op::Cast, g.shape(weights), origin, {weights});
  const Heads spread_value = spread(g, value, heads_of(g, weights));
  const TensorId v = flattened(g, spread_value);
  const TensorId product = g.matmul(weights, v);
  g.drop({v, spread_value.tensor});
  const bool copied_back = batch_of(g, product) > 1 && heads_of(g, product) > 1 && seq_of(g, product) > 1;
  const Shape shape = g.shape(product);
  const TensorId viewed = copied_back ? g.view_copied_back(product, shape) : g.view(product, shape);
  g.drop({product});
  const TensorId output = g.cast(viewed, origin);
  g.drop({viewed});
  return {output, returned};
}

// _scaled_dot_product_attention_math of half operands works in fp32, with q and k scaled by the root each. `learned` is
// a bias of all rows, in any dtype.
TensorId math_kernel(GraphBuilder& g, const AttentionCall& call, TensorId learned) {
  DSPLAN_CHECK(learned == kNone || call.mask == kNone, "a mask beside a learned bias");
  const std::int64_t heads = heads_of(g, call.q);
  const TensorId low_bias = learned == kNone ? kNone : g.lowered(learned);
  const TensorId low_v = g.lowered(call.v);
  const TensorId low_k = g.lowered(call.k);
  const TensorId low_q = g.lowered(call.q);
  const DType origin = g.dtype(low_q);
  g.set_autocast_enabled(false);
  const TensorId given = call.mask == kNone ? low_bias : bias_of_flags(g, call.mask, low_q);
  const TensorId wide_q = g.cast(low_q, DType::Float32);
  const TensorId wide_k = g.cast(low_k, DType::Float32);
  const TensorId wide_v = g.cast(low_v, DType::Float32);
  const TensorId scaled_q = g.unary(Op::MulScalar, wide_q, std::sqrt(scale_of(g, call)));
  const TensorId bias = given != kNone || call.full ? given : causal_bias(g, seq_of(g, call.q));
  const Heads query = as_they_lie(g, scaled_q, call.by_head);
  const Heads own_key = as_they_lie(g, wide_k, call.by_head || call.keys_by_head);
  const Heads own_value = as_they_lie(g, wide_v, call.values_by_head);
  const bool spreads = call.mask != kNone;  // Which says that no head is repeated beforehand.
  const Heads key = spreads ? Heads{g.keep(own_key.tensor), own_key.layout} : interleaved(g, own_key, heads);
  const Heads value = spreads ? Heads{g.keep(own_value.tensor), own_value.layout} : interleaved(g, own_value, heads);
  const TensorId weights = math_weights(g, query, key, bias, std::sqrt(scale_of(g, call)));
  const TensorId dropped = g.dropout(weights, call.dropout);
  g.drop({weights});
  const auto [output, returned] = math_output(g, dropped, value, origin);
  // Last declared, first dropped; then the caller lets go of the weights.
  g.drop({dropped, key.tensor, value.tensor, own_key.tensor, own_value.tensor, query.tensor, scaled_q});
  if (bias != kNone) g.drop({bias});
  g.drop({wide_v, wide_k, wide_q, returned, low_q, low_k, low_v});
  g.set_autocast_enabled(true);
  return output;
}

Attended math(GraphBuilder& g, const AttentionCall& call) {
  const TensorId learned = call.bias == kNone ? kNone : masked_bias(g, call);
  const TensorId output = math_kernel(g, call, learned);
  const TensorId flat = joined(g, output);
  g.drop({output});
  if (learned != kNone) g.drop({learned});
  return {flat, kNone};
}

}  // namespace

TensorId by_heads(GraphBuilder& g, TensorId flat, std::int64_t heads, std::int64_t width, bool copied_back) {
  const Shape own = g.shape(flat);
  const std::int64_t seq = own.dims[own.rank - 2U];  // In front of it may stand a dimension of one.
  const Shape by_token{own.dims[0], seq, heads, width};
  const Shape by_head{own.dims[0], heads, seq, width};
  const std::initializer_list<ViewStep> steps{step_reshape(by_token), step_swap(1, 2)};
  const bool copied = copied_back && heads > 1 && seq > 1;
  const TensorId out = copied ? g.view_copied_back(flat, by_head, steps) : g.view(flat, by_head, steps);
  g.drop({flat});
  return out;
}

TensorId heads_before_tokens(GraphBuilder& g, TensorId x) {
  const Shape own = g.shape(x);
  const TensorId out = g.view(x, Shape{own.dims[0], own.dims[2], own.dims[1], own.dims[3]}, {step_swap(1, 2)});
  g.drop({x});
  return out;
}

TensorId merged_heads(GraphBuilder& g, TensorId x) {
  const Dimensions& d = g.dims();
  const std::int64_t seq = g.options().seq;
  const Shape by_head{g.options().micro_batch, d.heads, seq, d.head_dim};
  const Shape flat{by_head.dims[0], seq, d.hidden};
  const bool copies = d.heads > 1 && seq > 1;
  const std::initializer_list<ViewStep> steps{step_reshape(by_head), step_swap(1, 2), step_reshape(flat)};
  const bool copied_back = copies && by_head.dims[0] > 1;
  const TensorId swapped = copied_back ? g.view_copied_back(x, flat, steps) : g.view(x, flat, steps);
  const TensorId out = copies ? g.copy(swapped) : g.keep(swapped);
  g.drop({swapped, x});
  return out;
}

Attended attend(GraphBuilder& g, const AttentionCall& call) {
  if (g.options().eager_attention) return eager(g, call);
  DSPLAN_CHECK(call.sinks == kNone, "no kernel takes sinks");
  return g.options().math_attention && !call.fused ? math(g, call) : fused(g, call);
}

bool pads_heads(const GraphOptions& options, std::int64_t head_dim, bool masked) {
  const bool flash = !options.eager_attention && !options.math_attention && options.attention == AttentionKernel::Flash;
  return flash && !masked && head_dim % kAligned != 0;
}

bool queries_come_back_by_head(const GraphOptions& options, const Dimensions& dims, bool masked) {
  if (options.eager_attention || options.math_attention || pads_heads(options, dims.head_dim, masked)) return true;
  return copies_operands(options);
}

// A product's gradient of the turned keys is a view of the projection's, but of one row only it is a matrix.
bool keys_come_back_by_head(const GraphOptions& options, const Dimensions& dims, bool masked) {
  const bool composed = options.eager_attention || options.math_attention;
  if (composed && dims.heads == dims.kv_heads) return options.micro_batch > 1;
  return values_come_back_by_head(options, dims, masked);
}

bool values_come_back_by_head(const GraphOptions& options, const Dimensions& dims, bool masked) {
  if (options.use_cache || queries_come_back_by_head(options, dims, masked)) return true;
  return (expands_heads(options) || masked) && dims.heads != dims.kv_heads;
}

}  // namespace dsplan
