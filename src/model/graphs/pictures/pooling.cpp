// SiglipMultiheadAttentionPoolingHead: one learned place attends to all places of a picture through
// nn.MultiheadAttention, whose projections are one weight that is split. The functions follow the Python statements of
// torch/nn/functional.py, multi_head_attention_forward; a `drop` stands where a variable or frame lets go of a tensor.
#include <cmath>

#include "model/graphs/pictures/tower.h"

namespace dsplan {
namespace {

class PoolingHead {
 public:
  PoolingHead(GraphBuilder& g, const TowerParts& tower, ModuleId module)
      : g_(g), d_(tower.dims), p_(tower.layers), module_(module) {}

  TensorId run(TensorId places) {
    g_.enter(module_);
    rows_ = g_.shape(places).dims[0];
    count_ = g_.shape(places).dims[1];
    const TensorId probe =
        g_.make(Op::Repeat, Shape{rows_, 1, d_.hidden}, g_.dtype(g_.parameter("probe")), {g_.parameter("probe")}, true);
    const TensorId attended = attention(probe, places);
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module_, "layernorm"), attended);
    const TensorId fed = mlp_module(g_, p_, g_.child(module_, "mlp"), normed, d_.ffn);
    const TensorId sum = g_.binary(Op::Add, attended, fed);
    g_.drop({fed, normed, attended, probe});
    const TensorId out = first_place(g_, sum);
    g_.drop({sum});
    g_.exit(module_);
    return out;
  }

 private:
  struct Projected {
    TensorId query = kNone;
    TensorId both = kNone;  // Keys and values, [2, S, B, hidden].
    TensorId keys = kNone;
    TensorId values = kNone;
  };

  // _in_projection_packed, of keys that are the values too.
  Projected projected(TensorId query, TensorId places) {
    const std::int64_t width = d_.hidden;
    const TensorId weight = g_.parameter("in_proj_weight");
    const TensorId bias = g_.parameter("in_proj_bias");
    const auto weights = g_.split(Op::Split, weight, {Shape{width, width}, Shape{2 * width, width}}, 0);
    const auto biases = g_.split(Op::Split, bias, {Shape{width}, Shape{2 * width}}, 0);
    Projected made;
    made.query = g_.linear(query, weights[0], biases[0], width);
    const TensorId flat = biased(places, weights[1], biases[1], 2 * width);
    const Shape apart{2, count_, rows_, width};
    const TensorId turned =
        g_.view_copied_back(flat, apart,
                            {step_reshape({count_, rows_, 2, width}), step_reshape({1, count_, rows_, 2, width}),
                             step_swap(0, 3), step_reshape(apart)});
    made.both = g_.copy(turned);
    g_.drop({turned, flat});
    const auto each = [&](std::int64_t at) {
      const TensorId part = g_.slice(made.both, 0, at, 1);
      const TensorId out = g_.view(part, Shape{count_, rows_, width});
      g_.drop({part});
      return out;
    };
    made.keys = each(0);
    made.values = each(1);
    for (const TensorId one : {weights[0], weights[1], biases[0], biases[1]}) g_.drop({one});
    return made;
  }

  // DeepSpeed's hook hands each argument on as a tensor of its own, so that keys are not the values any more, and each
  // has its third of the weight.
  Projected projected_apart(TensorId query, TensorId keys, TensorId values) {
    const std::int64_t width = d_.hidden;
    const Shape third{width, width};
    const Shape row{width};
    const auto weights = g_.split(Op::Split, g_.parameter("in_proj_weight"), {third, third, third}, 0);
    const auto biases = g_.split(Op::Split, g_.parameter("in_proj_bias"), {row, row, row}, 0);
    Projected made;
    made.query = g_.linear(query, weights[0], biases[0], width);
    made.keys = function_of_places(g_, keys, weights[1], biases[1], width, true);
    made.values = function_of_places(g_, values, weights[2], biases[2], width);
    for (const auto& parts : {weights, biases}) {
      for (const TensorId one : parts) g_.drop({one});
    }
    return made;
  }

  // A product of places that lie picture by picture, then the bias in place.
  TensorId biased(TensorId places, TensorId weight, TensorId bias, std::int64_t features) {
    const TensorId low_places = g_.lowered(places);
    const TensorId low_weight = g_.lowered(weight);
    const TensorId product = product_of_places(g_, low_places, low_weight, features, true);
    g_.drop({low_weight, low_places});
    const TensorId low_bias = g_.lowered(bias);
    const TensorId out = g_.in_place(Op::Add, product, low_bias);
    g_.drop({product, low_bias});
    return out;
  }

  // x.view(L, B * heads, head_dim).transpose(0, 1); uses up `x`. What a product makes of the keys' gradient is turned
  // the other way, and lies as the projection does.
  TensorId by_head(TensorId x, std::int64_t length, bool copied_back = false) {
    const std::int64_t heads = rows_ * d_.heads;
    const Shape made{heads, length, d_.head_dim};
    const std::initializer_list<ViewStep> steps{step_reshape({length, heads, d_.head_dim}), step_swap(0, 1)};
    const TensorId out = copied_back ? g_.view_copied_back(x, made, steps) : g_.view(x, made, steps);
    g_.drop({x});
    return out;
  }

  TensorId attention(TensorId probe, TensorId places) {
    const ModuleId module = g_.child(module_, "attention");
    const bool apart = g_.options().stage3_linear;
    const auto turn = [&] { return g_.view(places, Shape{count_, rows_, d_.hidden}, {step_swap(0, 1)}); };
    const std::vector<TensorId> handed = apart ? std::vector{turn(), turn()} : std::vector<TensorId>{};
    g_.enter(module);
    const TensorId query = g_.view(probe, Shape{1, rows_, d_.hidden}, {step_swap(0, 1)});
    const TensorId turned = apart ? handed.front() : turn();
    const ModuleId output = g_.child(module, "out_proj");
    const TensorId out_weight = asked(g_, output, "weight");
    const TensorId out_bias = asked(g_, output, "bias");
    const Projected made = apart ? projected_apart(query, turned, handed.back()) : projected(query, turned);
    const TensorId q = by_head(made.query, 1);
    const TensorId k = by_head(made.keys, count_);
    const TensorId v = by_head(made.values, count_, true);
    if (!apart) g_.drop({made.both});
    const TensorId scaled = g_.unary(Op::MulScalar, q, 1 / std::sqrt(static_cast<double>(d_.head_dim)));
    const std::int64_t heads = rows_ * d_.heads;
    const TensorId keys = g_.view(k, Shape{heads, d_.head_dim, count_}, {step_swap(1, 2)});
    const TensorId scores = g_.matmul(scaled, keys);
    g_.drop({keys});
    const TensorId weights = g_.unary(Op::Softmax, scores);
    g_.drop({scores});
    const TensorId seen = g_.matmul(weights, v);
    const TensorId flat = g_.view(seen, Shape{rows_, d_.hidden}, {step_swap(0, 1), step_reshape({rows_, d_.hidden})});
    g_.drop({seen});
    const TensorId product = g_.linear(flat, out_weight, out_bias, d_.hidden);
    g_.drop({flat});
    const TensorId row = g_.view(product, Shape{1, rows_, d_.hidden});
    g_.drop({product});
    // What the weights are in the mean over heads, which nobody reads.
    const TensorId whole = g_.view(weights, Shape{rows_, d_.heads, 1, count_});
    g_.drop({weights});
    const TensorId mean = g_.make(Op::MeanLast, Shape{rows_, 1, count_}, g_.dtype(whole), {whole}, true);
    g_.drop({whole, scaled, q, k, v});
    const TensorId out = g_.view(row, Shape{rows_, 1, d_.hidden}, {step_swap(0, 1)});
    g_.drop({row, query, turned});
    if (apart) g_.drop({handed.back()});
    g_.exit(module);
    g_.drop({mean});
    g_.forget(mean);
    return out;
  }

  GraphBuilder& g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
  std::int64_t rows_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace

TensorId pooled_places(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId places) {
  return PoolingHead(g, tower, module).run(places);
}

}  // namespace dsplan
