// CLIPModel, SiglipModel: one tower of pictures and one of texts, and a loss that compares each text with all pictures
// of the batch. The functions follow transformers' modules one by one; a `drop` stands where a Python variable or frame
// lets go of a tensor.
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// What a tower returns: the loop holds both as long as the model's outputs.
struct Features {
  TensorId last = kNone;
  TensorId pooled = kNone;  // [B, width]
};

class ContrastedGraph {
 public:
  ContrastedGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), p_(*model.parts), t_(*model.parts->tower) {}

  Graph build() {
    const TensorId ids = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    TensorId pixels = pixel_input(g_, t_, g_.options().micro_batch);
    g_.set_batch({ids, pixels});
    g_.enter_model({&pixels});
    const Features seen = pictures(pixels);
    const Features read = texts(ids);
    const TensorId seen_embeds = over_norm(seen.pooled);
    const TensorId read_embeds = over_norm(read.pooled);
    const TensorId logits = similarity(read_embeds, seen_embeds);
    const TensorId by_picture = g_.view(logits, g_.shape(logits), {step_swap(0, 1)});
    const TensorId loss = sigmoid_ ? pairs_loss(logits) : two_ways_loss(logits);
    return g_.finish(end_model(g_, by_picture, loss,
                               {logits, read_embeds, seen_embeds, read.last, read.pooled, seen.last, seen.pooled}));
  }

 private:
  Features pictures(TensorId pixels) {
    const TowerResult seen = tower_module(g_, t_, g_.child(g_.causal(), t_.module), pixels, false);
    return {seen.last, sigmoid_ ? seen.pooled : projected("visual_projection", seen.pooled)};
  }

  // Uses up `pooled`.
  TensorId projected(std::string_view name, TensorId pooled) {
    const ModuleId module = g_.child(g_.causal(), name);
    const std::int64_t width = g_.shape(g_.parameter_of(unwrapped(g_, module), "weight")).dims[0];
    const TensorId out = linear_module(g_, module, pooled, width);
    g_.drop({pooled});
    return out;
  }

  TensorId embedded(ModuleId body, TensorId ids) {
    const ModuleId module = g_.child(body, "embeddings");
    g_.enter(module);
    const Shape places{1, g_.options().seq};
    const TensorId numbers = g_.view(g_.buffer("position_ids"), places, {step_narrow(1, 0, places.dims[1])});
    const TensorId words = table_module(g_, g_.child(module, "token_embedding"), ids);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const TensorId positions = table_module(g_, g_.child(module, "position_embedding"), numbers);
    const TensorId out = g_.binary(Op::Add, words, positions);
    g_.drop({words, positions, numbers});
    g_.exit(module);
    return out;
  }

  TensorId layers(ModuleId body, TensorId hidden, TensorId mask) {
    const ModuleId encoder = g_.child(body, "encoder");
    LayerInputs given;
    given.turns = false;
    given.mask = mask;
    g_.enter(encoder);
    const TensorId out = run_layers(
        g_, g_.child(encoder, "layers"), hidden, [&](std::size_t) { return std::vector<TensorId>{mask}; },
        [&](ModuleId one, std::size_t, TensorId x) { return tower_layer(g_, p_, d_, one, x, given); });
    g_.exit(encoder);
    return out;
  }

  Features texts(TensorId ids) {
    const ModuleId body = g_.child(g_.causal(), p_.body);
    g_.enter(body);
    const TensorId rows = g_.view(ids, g_.shape(ids));
    const TensorId hidden = embedded(body, rows);
    const TensorId mask = p_.full ? kNone : attention_mask(g_, kNone, kNone);
    const TensorId made = layers(body, g_.keep(hidden), mask);
    Features read;
    read.last = norm_module(g_, p_.norm, g_.child(body, "final_layer_norm"), made);
    read.pooled = sigmoid_ ? headed(body, last_place(read.last)) : at_end(rows, read.last);
    g_.drop({rows, hidden, made});
    if (mask != kNone) g_.drop({mask});
    g_.exit(body);
    if (!sigmoid_) read.pooled = projected("text_projection", read.pooled);
    return read;
  }

  // x[:, -1, :].
  TensorId last_place(TensorId x) {
    const TensorId one = g_.slice(x, 1, g_.options().seq - 1, 1);
    const TensorId out = g_.view(one, Shape{g_.shape(x).dims[0], d_.hidden});
    g_.drop({one});
    return out;
  }

  // Uses up `place`.
  TensorId headed(ModuleId body, TensorId place) {
    const ModuleId module = g_.child(body, "head");
    const TensorId out = linear_module(g_, module, place, biased_features(g_, module));
    g_.drop({place});
    return out;
  }

  // x[arange(B), ids.to(int).argmax()], or where `ids` first are the end's.
  TensorId at_end(TensorId ids, TensorId x) {
    const Shape shape = g_.shape(ids);
    const TensorId range = arange(g_, shape.dims[0]);
    TensorId marks = g_.make(Op::Cast, shape, DType::Int32, {ids});
    if (t_.end_token >= 0) {
      marks =
          rebound(g_, marks, g_.make(Op::Equal, shape, DType::Bool, {marks}, false, static_cast<double>(t_.end_token)));
      marks = rebound(g_, marks, g_.make(Op::Cast, shape, DType::Int32, {marks}));
    }
    const TensorId last = g_.make(Op::Max, Shape{shape.dims[0]}, DType::Int64, {marks});
    g_.drop({marks});
    const TensorId out = g_.make(Op::Index, Shape{shape.dims[0], d_.hidden}, g_.dtype(x), {x, range, last}, true);
    g_.drop({range, last});
    return out;
  }

  // x / x.norm(dim=-1, keepdim=True), which clip writes out.
  TensorId over_norm(TensorId x) {
    const Shape column{g_.shape(x).dims[0], 1};
    TensorId norm = kNone;
    if (sigmoid_) {
      const TensorId wide = g_.widened(x);
      norm = g_.make(Op::Norm, column, g_.dtype(wide), {wide}, true, 2);
      g_.drop({wide});
    } else {
      const TensorId square = g_.unary(Op::PowScalar, x, 2);
      const TensorId sum = g_.make(Op::SumDim, column, g_.dtype(square), {square}, true, 1);
      norm = g_.unary(Op::PowScalar, sum, 0.5);
      g_.drop({square, sum});
    }
    const TensorId out = g_.binary(Op::Div, x, norm);
    g_.drop({norm});
    return out;
  }

  // Of each text with each picture.
  TensorId similarity(TensorId read, TensorId seen) {
    const Shape shape = g_.shape(seen);
    const TensorId turned = g_.view(seen, Shape{shape.dims[1], shape.dims[0]}, {step_swap(0, 1)});
    const TensorId low_turned = g_.lowered(turned);
    const TensorId low_read = g_.lowered(read);
    const TensorId products =
        g_.make(Op::Mm, Shape{shape.dims[0], shape.dims[0]}, g_.dtype(low_read), {low_read, low_turned}, true);
    g_.drop({low_read, low_turned, turned});
    const TensorId scale = g_.unary(Op::Exp, g_.parameter_of(g_.causal(), "logit_scale"));
    TensorId logits = g_.binary(Op::Mul, products, scale);
    g_.drop({scale});
    if (sigmoid_) {
      logits = rebound(g_, logits, g_.binary(Op::Add, logits, g_.parameter_of(g_.causal(), "logit_bias")));
    }
    g_.drop({products});
    return logits;
  }

  // cross_entropy(logits, arange(len(logits))).
  TensorId one_way(TensorId logits, bool strided = false) {
    const TensorId numbers = arange(g_, g_.shape(logits).dims[0]);
    const TensorId log_probabilities = log_softmax(g_, logits, strided);
    const TensorId loss = g_.nll_loss(log_probabilities, numbers, Reduction::Mean).first;
    g_.drop({log_probabilities, numbers});
    return loss;
  }

  TensorId two_ways_loss(TensorId logits) {
    const TensorId captions = one_way(logits);
    const TensorId turned = g_.view(logits, g_.shape(logits), {step_swap(0, 1)});
    const TensorId pictures = one_way(turned, true);
    g_.drop({turned});
    const TensorId sum = g_.binary(Op::Add, captions, pictures);
    const TensorId loss = g_.unary(Op::DivScalar, sum, 2);
    g_.drop({sum, captions, pictures});
    return loss;
  }

  // -logsigmoid(+1 for a text's own picture, -1 for others, times the logits), summed by text.
  TensorId pairs_loss(TensorId logits) {
    const Shape shape = g_.shape(logits);
    const TensorId own = g_.make(Op::Arange, shape, DType::Float32, {});
    const TensorId ones = g_.filled(shape, g_.dtype(logits), 1);
    const TensorId minus = g_.unary(Op::Neg, ones);
    g_.drop({ones});
    const TensorId twice = g_.unary(Op::MulScalar, own, 2);
    const TensorId signs = g_.binary(Op::Add, minus, twice);
    g_.drop({minus, twice});
    const TensorId signed_logits = g_.binary(Op::Mul, signs, logits);
    const TensorId logs = g_.unary(Op::LogSigmoid, signed_logits);
    g_.drop({signed_logits});
    const TensorId sums = g_.make(Op::SumDim, Shape{shape.dims[0]}, g_.dtype(logs), {logs}, true, 1);
    const TensorId each = g_.unary(Op::Neg, sums);
    g_.drop({sums});
    const TensorId loss = g_.make(Op::MeanLast, Shape{}, g_.dtype(each), {each}, true);
    g_.drop({own, signs, logs, each});
    return loss;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  const TowerParts& t_;
  const bool sigmoid_ = t_.pools;
};

}  // namespace

Graph build_contrasted_graph(const ModelSpec& model, const GraphOptions& options) {
  return ContrastedGraph(model, options).build();
}

}  // namespace dsplan
