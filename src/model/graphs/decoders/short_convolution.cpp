// lfm2's mixer: a convolution over time between two gates, as transformers runs it where causal_conv1d is not installed
// (modeling_lfm2.py: Lfm2ShortConv, causal_conv1d_fn).
#include "model/graphs/linear.h"
#include "model/graphs/pieces.h"

namespace dsplan {

TensorId short_convolution(GraphBuilder& g, const ConvolutionParts& p, ModuleId module, TensorId hidden) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const std::int64_t width = g.dims().hidden;
  g.enter(module);
  const ModuleId in = g.child(module, "in_proj");
  // Its gradient is joined channel by channel.
  const Shape by_channel{rows, 3 * width, seq};
  TensorId turned = kNone;
  if (rows > 1 && seq > 1) {
    turned = linear_by_column(g, in, hidden, 3 * width, by_channel, {step_swap(1, 2)});
  } else {
    const TensorId projected = linear_module(g, in, hidden, 3 * width);
    turned = g.view(projected, by_channel, {step_swap(1, 2)});
    g.drop({projected});
  }
  const Shape part{rows, width, seq};
  const std::vector<TensorId> parts = g.split(Op::Split, turned, {part, part, part}, 1);
  const TensorId gated = g.binary(Op::Mul, parts[0], parts[2]);
  const TensorId mixed = bare_convolution(g, g.child(module, "conv"), gated, p.kernel);
  const TensorId narrow = g.cast(mixed, g.dtype(gated));
  g.drop({mixed, gated});
  const TensorId product = g.binary(Op::Mul, parts[1], narrow);
  const TensorId by_token = g.view(product, Shape{rows, seq, width}, {step_swap(1, 2)});
  g.drop({product});
  const TensorId out = linear_module(g, g.child(module, "out_proj"), by_token, width);
  g.drop({by_token, narrow, turned, parts[0], parts[1], parts[2]});
  g.exit(module);
  return out;
}

}  // namespace dsplan
