// The tower of llama4: patches by unfolding and one product, a class token behind them, places turned by a table, and
// at its end two by two places side by side. The functions follow transformers' modules one by one; a `drop` stands
// where a Python variable or frame lets go of a tensor.
#include "model/graphs/activations.h"
#include "model/graphs/linear.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class LlamaTower {
 public:
  LlamaTower(GraphBuilder& g, const TowerParts& tower, ModuleId module)
      : g_(g), t_(tower), d_(tower.dims), module_(module) {}

  TowerResult run(TensorId pixels) {
    g_.enter(module_);
    const TensorId embedded = placed(behind_token(patches(pixels)));
    const ModuleId rotary = g_.child(module_, "rotary_embedding");
    g_.enter(rotary);
    const TensorId table = g_.buffer("freqs_ci");
    g_.exit(rotary);
    LayerInputs given;
    given.waves.cos = g_.view(table, Shape{1, d_.max_positions, d_.head_dim / 2, 2});
    const TensorId seen = layers(embedded, given);
    g_.drop({embedded});
    const TensorId normed = norm_module(g_, NormKind::Layer, g_.child(module_, "layernorm_post"), seen);
    const TensorId whole = g_.slice(normed, 1, 0, d_.max_positions - 1);
    g_.drop({normed});
    TowerResult result;
    result.last = adapted(whole);
    g_.drop({seen, given.waves.cos});
    g_.exit(module_);
    return result;
  }

 private:
  TensorId patches(TensorId pixels) {
    const std::int64_t side = d_.image / t_.patch;
    const std::int64_t pictures = g_.shape(pixels).dims[0];
    const std::int64_t wide = t_.channels * t_.patch * t_.patch;
    const ModuleId module = g_.child(module_, "patch_embedding");
    g_.enter(module);
    const ModuleId unfold = g_.child(module, "unfold");
    g_.enter(unfold);
    const TensorId columns =
        g_.make(Op::Unfold, Shape{pictures, wide, side * side}, g_.dtype(pixels), {pixels}, true, 0);
    g_.exit(unfold);
    const TensorId places = g_.view(columns, Shape{pictures, side * side, wide}, {step_swap(1, 2)});
    g_.drop({columns});
    const ModuleId linear = g_.child(module, "linear");
    const TensorId out = linear_of_columns(linear, places);
    g_.drop({places});
    g_.exit(module);
    if (g_.options().inputs_require_grad) g_.require_grad(out);
    return out;
  }

  // Patches lie column by column, under autocast too.
  TensorId linear_of_columns(ModuleId linear, TensorId places) {
    g_.enter(linear);
    const TensorId low_weight = g_.lowered(g_.parameter("weight"));
    const TensorId low_places = g_.lowered(places);
    TensorId out = product_of_places(g_, low_places, low_weight, d_.hidden, true);
    g_.drop({low_places, low_weight});
    // Their gradient is a part of each picture's, without that of the token behind them, but where it is cast.
    const TensorId token = g_.parameter_of(module_, "class_embedding");
    if (g_.shape(places).dims[0] > 1 && g_.dtype(out) == g_.dtype(token)) {
      const TensorId rows = g_.view_copied_back(out, g_.shape(out));
      g_.drop({out});
      out = rows;
    }
    g_.exit(linear);
    return out;
  }

  TensorId behind_token(TensorId places) {
    const Shape token{g_.shape(places).dims[0], 1, d_.hidden};
    token_ = g_.view(g_.parameter("class_embedding"), token, Op::Expand);
    const TensorId joint = g_.cat(places, token_, Op::Cat, 1);
    g_.drop({places});
    return joint;
  }

  // A dimension of one stands between pictures and places.
  TensorId placed(TensorId places) {
    const Shape shape = g_.shape(places);
    const TensorId apart = g_.view(places, Shape{shape.dims[0], 1, shape.dims[1], shape.dims[2]});
    g_.drop({places});
    const TensorId sum = g_.binary(Op::Add, apart, g_.parameter("positional_embedding_vlm"));
    g_.drop({apart});
    const TensorId normed = norm_module(g_, NormKind::Layer, g_.child(module_, "layernorm_pre"), sum);
    g_.drop({sum});
    const TensorId out = g_.view(normed, shape);
    g_.drop({normed});
    return out;
  }

  // A layer is called with keywords alone.
  TensorId layers(TensorId embedded, const LayerInputs& given) {
    const ModuleId encoder = g_.child(module_, "model");
    g_.enter(encoder);
    TensorId hidden = g_.keep(embedded);
    for (const ModuleId one : modules_of(g_.model(), g_.child(encoder, "layers"))) {
      const std::int32_t region = g_.begin_region({{}, {hidden, given.waves.cos}, {}, {}});
      const TensorId out = tower_layer(g_, t_.layers, d_, one, hidden, given);
      g_.end_region(region);
      g_.drop({hidden});
      hidden = out;
    }
    g_.exit(encoder);
    return hidden;
  }

  // Llama4VisionPixelShuffleMLP; uses up `places`.
  TensorId adapted(TensorId places) {
    const ModuleId adapter = g_.child(module_, "vision_adapter");
    const ModuleId mlp = g_.child(adapter, "mlp");
    const ModuleId act = g_.child(mlp, "activation_fn");
    const auto activated_by = [&](TensorId x) {
      g_.enter(act);
      const TensorId out = activated(g_, d_.activation, x);
      g_.exit(act);
      g_.drop({x});
      return out;
    };
    const std::int64_t width = g_.shape(g_.parameter_of(g_.child(mlp, "fc2"), "weight")).dims[0];
    g_.enter(adapter);
    const TensorId beside = places_beside(g_, t_, g_.keep(places));
    g_.enter(mlp);
    const TensorId first = activated_by(linear_module(g_, g_.child(mlp, "fc1"), beside, width));
    const TensorId kept = g_.dropout(first, d_.residual_dropout);
    g_.drop({first});
    const TensorId out = activated_by(linear_module(g_, g_.child(mlp, "fc2"), kept, width));
    g_.drop({kept});
    g_.exit(mlp);
    g_.drop({beside, places});
    g_.exit(adapter);
    if (token_ != kNone) g_.drop({token_});
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  ModuleId module_;
  TensorId token_ = kNone;
};

}  // namespace

TowerResult llama_tower(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels) {
  return LlamaTower(g, tower, module).run(pixels);
}

}  // namespace dsplan
