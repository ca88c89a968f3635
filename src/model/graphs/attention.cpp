// Attention as transformers calls it: through scaled_dot_product_attention, or composed of products ("eager").
//
// Layouts decide where PyTorch copies. Projected heads are views of [B, S, H, D] and stay so through rotation; a
// product wants [B * H, S, D], which such a view is only with one row, one head or one token. What a reshape copies in
// forward it copies in backward as well, because there the gradient comes in the layout that the view was made from.
#include "model/graphs/attention.h"

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

// One head for each of the query's: expand, whose gradient is a sum, then a reshape that copies, unless there is but
// one head to repeat (repeat_kv in every modeling file).
Heads repeated(GraphBuilder& g, TensorId x, std::int64_t heads) {
  const std::int64_t own = heads_of(g, x);
  if (own == heads) return by_token(g, x);
  Shape shape = g.shape(x);
  shape.dims[1] = heads;
  const TensorId expanded = g.view_copied_back(x, shape);
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

// output.transpose(1, 2).contiguous() from [B, H, S, D] in that layout, and reshape to [B, S, H * D].
TensorId joined(GraphBuilder& g, TensorId output) {
  const Shape& shape = g.shape(output);
  const Shape flat{shape.dims[0], shape.dims[2], shape.dims[1] * shape.dims[3]};
  const bool copies = shape.dims[1] > 1 && shape.dims[2] > 1;
  const TensorId swapped = g.view(output, flat);
  const TensorId result = copies ? g.copy(swapped) : g.keep(swapped);
  g.drop({swapped});
  return result;
}

// matmul(query, key.transpose(2, 3)) * scaling, soft-capping, + mask: each statement rebinds the variable.
TensorId scores(GraphBuilder& g, const AttentionCall& call, const Heads& query, const Heads& key) {
  const Heads low_key{g.lowered(key.tensor), key.layout};
  const Heads low_query{g.lowered(query.tensor), query.layout};
  const TensorId q = flattened(g, low_query);
  const TensorId k = flattened(g, low_key);
  Shape turned = g.shape(k);
  std::swap(turned.dims[2], turned.dims[3]);
  const TensorId k_turned = g.view(k, turned);
  const TensorId product = g.matmul(q, k_turned);
  g.drop({q, k, k_turned, low_query.tensor, low_key.tensor});
  TensorId weights = g.unary(Op::MulScalar, product);
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
  if (call.mask != kNone) becomes(g.binary(Op::Add, weights, call.mask));
  return weights;
}

// softmax(dtype=float32).to(dtype): bf16 is copied to fp32 first, the fp16 kernel writes fp32 itself
// (aten/src/ATen/native/SoftMax.cpp).
TensorId wide_softmax(GraphBuilder& g, TensorId weights) {
  const DType narrow = g.dtype(weights);
  TensorId wide = kNone;
  if (narrow == DType::Float16) {
    wide = g.make(Op::Softmax, g.shape(weights), DType::Float32, {weights}, true);
  } else {
    const TensorId upcast = g.cast(weights, DType::Float32);
    wide = g.unary(Op::Softmax, upcast);
    g.drop({upcast});
  }
  const TensorId result = g.cast(wide, narrow);
  g.drop({wide, weights});
  return result;
}

// softmax().type(value.dtype).
TensorId plain_softmax(GraphBuilder& g, TensorId weights, DType as) {
  const TensorId soft = g.unary(Op::Softmax, weights);
  const TensorId result = g.cast(soft, as);
  g.drop({soft, weights});
  return result;
}

// eager_attention_forward. The result's layout is that of the product; the weights go back to the caller.
Attended eager(GraphBuilder& g, const AttentionCall& call) {
  const std::int64_t heads = heads_of(g, call.q);
  const Heads query = by_token(g, call.q);
  const Heads key = repeated(g, call.k, heads);
  const Heads value = repeated(g, call.v, heads);
  TensorId weights = scores(g, call, query, key);
  weights = call.wide_softmax ? wide_softmax(g, weights) : plain_softmax(g, weights, g.dtype(call.v));
  const TensorId dropped = g.dropout(weights, call.dropout);
  g.drop({weights});
  const Heads low_value{g.lowered(value.tensor), value.layout};
  const TensorId low_weights = g.lowered(dropped);
  const TensorId v = flattened(g, low_value);
  const TensorId product = g.matmul(low_weights, v);
  g.drop({v, low_weights, low_value.tensor});
  const bool copied_back = batch_of(g, product) > 1 && heads > 1 && seq_of(g, product) > 1;
  const Shape shape = g.shape(product);
  const TensorId output = copied_back ? g.view_copied_back(product, shape) : g.view(product, shape);
  g.drop({product});
  const TensorId flat = joined(g, output);
  g.drop({output, query.tensor, key.tensor, value.tensor});
  return {flat, dropped};
}

bool expands_heads(const GraphOptions& options) {
  return options.transformers < Version{4, 54, 0} || options.torch < Version{2, 5, 0};
}
bool copies_operands(const GraphOptions& options) {
  return options.transformers >= Version{4, 48, 0} && options.transformers < Version{4, 54, 0};
}

// sdpa_attention_forward. The flash and memory-efficient kernels lay out their result as they find the query.
Attended fused(GraphBuilder& g, const AttentionCall& call) {
  const std::int64_t heads = heads_of(g, call.q);
  Heads query = by_token(g, call.q);
  const bool repeats = expands_heads(g.options());
  Heads key = repeats ? repeated(g, call.k, heads) : by_token(g, call.k);
  Heads value = repeats ? repeated(g, call.v, heads) : by_token(g, call.v);
  if (copies_operands(g.options())) {
    for (Heads* operand : {&query, &key, &value}) make_plain(g, *operand);
  }
  const TensorId output = g.attention(query.tensor, key.tensor, value.tensor);
  TensorId flat = kNone;
  if (query.layout == Layout::ByToken) {
    // Laid out as [B, S, H, D] already: transpose and reshape are views.
    flat = g.view(output, Shape{batch_of(g, output), seq_of(g, output), heads * g.shape(output).dims[3]});
  } else {
    flat = joined(g, output);
  }
  g.drop({output, query.tensor, key.tensor, value.tensor});
  return {flat, kNone};
}

}  // namespace

Attended attend(GraphBuilder& g, const AttentionCall& call) {
  return g.options().eager_attention ? eager(g, call) : fused(g, call);
}

bool values_come_back_by_head(const GraphOptions& options, std::int64_t heads, std::int64_t kv_heads) {
  if (options.eager_attention) return true;
  return copies_operands(options) || (expands_heads(options) && heads != kv_heads);
}

}  // namespace dsplan
