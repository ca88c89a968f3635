// ViT under its classifier: patches through a convolution, a class token before them, then layers with norms before
// their sublayers. A picture is its patches and that token, so that the sequence's length is the model's own.
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class VitGraph {
 public:
  VitGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), p_(*model.parts), body_(g_.child(g_.causal(), "vit")) {}

  Graph build() {
    const std::int64_t channels = g_.shape(patch_weight()).dims[1];
    const std::int64_t rows = g_.options().micro_batch;
    TensorId pixels = g_.batch_input(Shape{rows, channels, d_.image, d_.image}, DType::Float32);
    const TensorId labels = g_.batch_input(Shape{rows}, DType::Int64);
    g_.set_batch({pixels, labels});
    g_.enter_model({&pixels});
    const TensorId hidden = body(pixels);
    const TensorId pooled = first_place(g_, hidden);
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "classifier"), pooled, d_.labels);
    const TensorId loss = class_loss(g_, logits, labels);
    g_.drop({hidden, pooled});
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  [[nodiscard]] ModuleId patches() const { return g_.child(g_.child(body_, "embeddings"), "patch_embeddings"); }
  TensorId patch_weight() { return g_.parameter_of(g_.child(patches(), "projection"), "weight"); }

  TensorId embeddings(TensorId pixels) {
    const ModuleId module = g_.child(body_, "embeddings");
    g_.enter(module);
    const std::int64_t side = d_.image / g_.shape(patch_weight()).dims[2];
    const TensorId out = behind_class_token(g_, d_, module, patches_module(g_, patches(), side, pixels));
    g_.exit(module);
    return out;
  }

  // dropout, then the sum, each rebinding the variable.
  TensorId join(ModuleId layer, TensorId branch, TensorId residual) {
    const TensorId dropped = dropout_module(g_, g_.child(layer, "dropout"), branch, d_.residual_dropout);
    g_.drop({branch});
    const TensorId out = g_.binary(Op::Add, dropped, residual);
    g_.drop({dropped});
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden) {
    g_.enter(module);
    LayerInputs given;
    given.turns = false;
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, "layernorm_before"), hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, "attention"), normed, given);
    g_.drop({normed});
    const TensorId middle = join(module, attended.flat, hidden);
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, "layernorm_after"), middle);
    const TensorId fed = mlp_module(g_, p_, g_.child(module, "mlp"), second, d_.ffn);
    g_.drop({second});
    const TensorId out = join(module, fed, middle);
    g_.drop({middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  TensorId body(TensorId pixels) {
    g_.enter(body_);
    const TensorId own = g_.options().autocast ? g_.keep(pixels) : g_.cast(pixels, g_.options().dtype);
    const TensorId embedded = embeddings(own);
    const TensorId hidden = run_layers(
        g_, g_.child(body_, "layers"), g_.keep(embedded), [](std::size_t) { return std::vector<TensorId>{}; },
        [&](ModuleId module, std::size_t, TensorId x) { return layer(module, x); });
    const TensorId out = norm_module(g_, p_.norm, g_.child(body_, "layernorm"), hidden);
    g_.drop({hidden, embedded, own});
    g_.exit(body_);
    return out;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId body_;
};

}  // namespace

Graph build_vit_graph(const ModelSpec& model, const GraphOptions& options) { return VitGraph(model, options).build(); }

}  // namespace dsplan
