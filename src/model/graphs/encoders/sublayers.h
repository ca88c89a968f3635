// Layers of whisper and of bart's relatives: attention, in the decoder attention over what the encoder made, and two
// products, each with a norm before it or behind its sum; for src/model/graphs/*.cpp only.
#pragma once

#include <string_view>

#include "model/graphs/attention.h"
#include "model/graphs/builder.h"

namespace dsplan {

class Sublayers {
 public:
  Sublayers(const Sublayers&) = delete;
  Sublayers& operator=(const Sublayers&) = delete;

 protected:
  Sublayers(const ModelSpec& model, const GraphOptions& options, bool norms_first);
  virtual ~Sublayers() = default;

  // The attention module of a layer. `source`: what keys and values are made of; `full`: each token sees every other.
  virtual Attended attention(ModuleId module, TensorId hidden, TensorId source, TensorId mask, bool full) = 0;
  virtual TensorId norm(ModuleId parent, std::string_view name, TensorId x) = 0;

  // `encoded`: what the encoder made; kNone in the encoder itself.
  TensorId layer(ModuleId module, TensorId x, TensorId encoded, TensorId mask);

  GraphOptions options_;
  GraphBuilder g_;
  const Dimensions& d_;
  ModuleId body_;
  bool encodes_ = true;

 private:
  TensorId given(ModuleId layer, std::string_view name, TensorId hidden);
  TensorId joined(ModuleId layer, std::string_view name, TensorId x, TensorId residual);
  TensorId attended(ModuleId layer, std::string_view name, TensorId hidden, TensorId encoded, TensorId mask);
  TensorId feed_forward(ModuleId layer, TensorId hidden);

  bool norms_first_;
  TensorId weights_ = kNone;
};

}  // namespace dsplan
