// DINOv2 under its classifier: transformers' Dinov2ForImageClassification, module by module. Of pictures of another
// size than the learned positions' the sequence says how many patches they have; positions are resampled to as many.
#include <cmath>

#include "model/graphs/attention.h"
#include "model/graphs/builder.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class Dinov2Graph {
 public:
  Dinov2Graph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options),
        d_(model.dims),
        p_(*model.parts),
        body_(g_.child(g_.causal(), "dinov2")),
        side_(std::llround(std::sqrt(static_cast<double>(options.seq - 1)))) {}

  Graph build() {
    const std::int64_t channels = g_.shape(patch_weight()).dims[1];
    const std::int64_t rows = g_.options().micro_batch;
    const std::int64_t image = own() ? d_.image : side_ * g_.shape(patch_weight()).dims[2];
    TensorId pixels = g_.batch_input(Shape{rows, channels, image, image}, DType::Float32);
    const TensorId labels = g_.batch_input(Shape{rows}, DType::Int64);
    g_.set_batch({pixels, labels});
    g_.enter_model({&pixels});
    const TensorId hidden = body(pixels);
    const TensorId token = first_place(g_, hidden);
    const TensorId patches = g_.slice(hidden, 1, 1, g_.options().seq - 1);
    const TensorId mean = g_.make(Op::MeanLast, Shape{rows, d_.hidden}, g_.dtype(patches), {patches}, true);
    const TensorId read = g_.cat(token, mean);
    g_.drop({mean});
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "classifier"), read, d_.labels);
    const TensorId loss = class_loss(g_, logits, labels);
    g_.drop({hidden, pooled_, token, patches, read});
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  [[nodiscard]] ModuleId embedder() const { return g_.child(g_.child(body_, "embeddings"), "patch_embeddings"); }
  // The size of the learned positions.
  [[nodiscard]] bool own() const { return g_.options().seq == d_.max_positions; }
  TensorId patch_weight() { return g_.parameter_of(g_.child(embedder(), "projection"), "weight"); }

  // What the convolution is given is a temporary of its call.
  TensorId patches(TensorId pixels) {
    const TensorId own = g_.cast(pixels, g_.dtype(patch_weight()));
    const TensorId out = patches_module(g_, embedder(), side_, own);
    g_.drop({own});
    return out;
  }

  // interpolate_pos_encoding: those of patches as a picture in fp32, bicubic.
  TensorId positions() {
    const TensorId learned = g_.parameter("position_embeddings");
    if (own()) return g_.keep(learned);
    const std::int64_t places = d_.max_positions - 1;
    const std::int64_t side = std::llround(std::sqrt(static_cast<double>(places)));
    const TensorId first = g_.slice(learned, 1, 0, 1);
    const TensorId rest = g_.slice(learned, 1, 1, places);
    const Shape grid{1, side, side, d_.hidden};
    const Shape turned{1, d_.hidden, side, side};
    const TensorId picture = g_.view(rest, turned, {step_reshape(grid), step_swap(1, 3), step_swap(2, 3)});
    g_.drop({rest});
    const TensorId wide = g_.cast(picture, DType::Float32);
    const TensorId made = g_.make(Op::Interpolate, Shape{1, d_.hidden, side_, side_}, DType::Float32, {wide}, true);
    g_.drop({wide});
    const TensorId narrow = g_.cast(made, g_.dtype(learned));
    g_.drop({made, picture});
    const Shape flat{1, side_ * side_, d_.hidden};
    const TensorId spread = g_.view(narrow, flat, {step_swap(2, 3), step_swap(1, 3), step_reshape(flat)});
    g_.drop({narrow});
    const TensorId out = g_.cat(first, spread, Op::Cat, 1);
    g_.drop({first, spread});
    return out;
  }

  TensorId embeddings(TensorId pixels) {
    const ModuleId module = g_.child(body_, "embeddings");
    g_.enter(module);
    const TensorId out = behind_class_token(g_, d_, module, patches(pixels), [&] { return positions(); });
    g_.exit(module);
    return out;
  }

  Attended attention(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const auto heads = [&](const char* name, bool copied) {
      return by_heads(g_, linear_module(g_, g_.child(module, name), hidden, d_.hidden), d_.heads, d_.head_dim, copied);
    };
    AttentionCall call;
    call.k = heads("key", keys_come_back_by_head(g_.options(), d_, false));
    call.v = heads("value", values_come_back_by_head(g_.options(), d_, false));
    call.q = heads("query", queries_come_back_by_head(g_.options(), d_, false));
    call.softmax = SoftmaxKind::Bare;
    call.dropout = d_.attention_dropout;
    call.full = true;
    const Attended attended = attend(g_, call);
    g_.drop({call.q, call.k, call.v});
    g_.exit(module);
    return attended;
  }

  // Dinov2Attention, whose variables hold what attention gives.
  TensorId attended(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const Attended made = attention(g_.child(module, "attention"), hidden);
    const ModuleId output = g_.child(module, "output");
    g_.enter(output);
    const TensorId dense = linear_module(g_, g_.child(output, "dense"), made.flat, d_.hidden);
    const TensorId out = dropout_module(g_, g_.child(output, "dropout"), dense, d_.residual_dropout);
    g_.drop({dense});
    g_.exit(output);
    g_.drop({made.flat});
    if (made.weights != kNone) g_.drop({made.weights});
    g_.exit(module);
    return out;
  }

  TensorId gated(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId both = linear_module(g_, g_.child(module, "weights_in"), hidden, 2 * d_.ffn);
    const std::vector<TensorId> halves = split_last(g_, both, equal_widths(g_, both, 2));
    const TensorId active = g_.unary(Op::Silu, halves[0]);
    const TensorId product = g_.binary(Op::Mul, active, halves[1]);
    g_.drop({active});
    const TensorId out = linear_module(g_, g_.child(module, "weights_out"), product, d_.hidden);
    g_.drop({both, halves[0], halves[1], product});
    g_.exit(module);
    return out;
  }

  TensorId feed(ModuleId layer, TensorId hidden) {
    const ModuleId module = g_.child(layer, "mlp");
    const bool gates = g_.model().child(module, "weights_in") != kNone;
    return gates ? gated(module, hidden) : mlp_module(g_, p_, module, hidden, d_.ffn);
  }

  // Rebinds the variable.
  TensorId scaled(ModuleId module, TensorId x) {
    g_.enter(module);
    const TensorId out = g_.binary(Op::Mul, x, g_.parameter("lambda1"));
    g_.exit(module);
    g_.drop({x});
    return out;
  }

  TensorId joined(ModuleId layer, TensorId branch, TensorId residual) {
    const ModuleId path = g_.child(layer, "drop_path");
    g_.enter(path);
    g_.exit(path);
    return g_.binary(Op::Add, branch, residual);
  }

  TensorId layer(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, "norm1"), hidden);
    const TensorId branch = scaled(g_.child(module, "layer_scale1"), attended(g_.child(module, "attention"), normed));
    const TensorId middle = joined(module, branch, hidden);
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, "norm2"), middle);
    const TensorId fed = rebound(g_, second, feed(module, second));
    const TensorId added = scaled(g_.child(module, "layer_scale2"), fed);
    const TensorId out = joined(module, added, middle);
    g_.drop({added, normed, branch, middle});
    g_.exit(module);
    return out;
  }

  TensorId body(TensorId pixels) {
    g_.enter(body_);
    const TensorId embedded = embeddings(pixels);
    const ModuleId encoder = g_.child(body_, "encoder");
    g_.enter(encoder);
    const TensorId hidden = run_layers(
        g_, g_.child(encoder, "layer"), g_.keep(embedded), [](std::size_t) { return std::vector<TensorId>{}; },
        [&](ModuleId module, std::size_t, TensorId x) { return layer(module, x); });
    g_.exit(encoder);
    const TensorId out = norm_module(g_, p_.norm, g_.child(body_, "layernorm"), hidden);
    pooled_ = first_place(g_, out);  // The body's second result, which no loss reads.
    g_.forget(pooled_);
    g_.drop({hidden, embedded});
    g_.exit(body_);
    return out;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId body_;
  std::int64_t side_;  // Patches.
  TensorId pooled_ = kNone;
};

}  // namespace

Graph build_dinov2_graph(const ModelSpec& model, const GraphOptions& options) {
  return Dinov2Graph(model, options).build();
}

}  // namespace dsplan
