#include "model/graphs/encoders/sublayers.h"

#include <string>

#include "model/graphs/linear.h"
#include "model/graphs/pieces.h"

namespace dsplan {

Sublayers::Sublayers(const ModelSpec& model, const GraphOptions& options, bool norms_first)
    : options_(options),
      g_(model, options_),
      d_(model.dims),
      body_(g_.child(g_.causal(), "model")),
      norms_first_(norms_first) {}

// What a sublayer is given.
TensorId Sublayers::given(ModuleId layer, std::string_view name, TensorId hidden) {
  return norms_first_ ? norm(layer, name, hidden) : g_.keep(hidden);
}

// residual + dropout(x), rebinding the variable, and the norm behind the sum.
TensorId Sublayers::joined(ModuleId layer, std::string_view name, TensorId x, TensorId residual) {
  x = rebound(g_, x, g_.dropout(x, d_.residual_dropout));
  x = rebound(g_, x, g_.binary(Op::Add, residual, x));
  return norms_first_ ? x : rebound(g_, x, norm(layer, name, x));
}

// One sublayer of attention; its weights are a variable of the layer until it returns or has others.
TensorId Sublayers::attended(ModuleId layer, std::string_view name, TensorId hidden, TensorId encoded, TensorId mask) {
  const std::string own = std::string(name) + "_layer_norm";
  const TensorId normed = given(layer, own, hidden);
  const bool cross = encoded != kNone;
  const Attended made = attention(g_.child(layer, name), normed, cross ? encoded : normed, mask, cross || encodes_);
  g_.drop({normed});
  if (weights_ != kNone) g_.drop({weights_});
  weights_ = made.weights;
  return joined(layer, own, made.flat, hidden);
}

TensorId Sublayers::feed_forward(ModuleId layer, TensorId hidden) {
  const ModuleId first = g_.child(layer, "fc1");
  const std::int64_t ffn = biased_features(g_, first);
  const TensorId normed = given(layer, "final_layer_norm", hidden);
  TensorId x = linear_module(g_, first, normed, ffn);
  x = rebound(g_, x, activation_module(g_, g_.child(layer, "activation_fn"), x));
  g_.drop({normed});
  if (g_.model().parts != nullptr) x = rebound(g_, x, g_.dropout(x, g_.model().parts->activation_dropout));
  x = rebound(g_, x, linear_module(g_, g_.child(layer, "fc2"), x, d_.hidden));
  return joined(layer, "final_layer_norm", x, hidden);
}

TensorId Sublayers::layer(ModuleId module, TensorId x, TensorId encoded, TensorId mask) {
  g_.enter(module);
  TensorId hidden = attended(module, "self_attn", x, kNone, mask);
  if (encoded != kNone) hidden = rebound(g_, hidden, attended(module, "encoder_attn", hidden, encoded, kNone));
  hidden = rebound(g_, hidden, feed_forward(module, hidden));
  if (weights_ != kNone) g_.drop({weights_});
  weights_ = kNone;
  g_.exit(module);
  return hidden;
}

}  // namespace dsplan
