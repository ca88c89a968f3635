// The tower of internvl, whose layers scale what they add. The functions follow transformers' modules one by one; a
// `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/builder.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class InternTower {
 public:
  InternTower(GraphBuilder& g, const TowerParts& tower, ModuleId module)
      : g_(g), t_(tower), d_(tower.dims), p_(tower.layers), module_(module) {}

  TowerResult run(TensorId pixels) {
    g_.enter(module_);
    const TensorId embedded = embeddings(pixels);
    const ModuleId encoder = g_.child(module_, "encoder");
    g_.enter(encoder);
    TowerResult result;
    result.last = run_layers(
        g_, g_.child(encoder, "layer"), g_.keep(embedded), [](std::size_t) { return std::vector<TensorId>{}; },
        [&](ModuleId one, std::size_t, TensorId x) { return layer(one, x); });
    g_.exit(encoder);
    const ModuleId norm = g_.child(module_, "layernorm");  // An Identity.
    g_.enter(norm);
    g_.exit(norm);
    g_.drop({embedded});
    g_.exit(module_);
    return result;
  }

 private:
  // Each patch a place, which what trains nothing before it asks a gradient for.
  TensorId patches(ModuleId module, TensorId pixels) {
    const TensorId out = patches_module(g_, module, d_.image / t_.patch, pixels);
    if (g_.options().inputs_require_grad) g_.require_grad(out);
    return out;
  }

  TensorId embeddings(TensorId pixels) {
    const ModuleId module = g_.child(module_, "embeddings");
    g_.enter(module);
    const TensorId out = behind_class_token(g_, d_, module, patches(g_.child(module, "patch_embeddings"), pixels));
    g_.exit(module);
    return out;
  }

  // parameter * x, which takes the name of x.
  TensorId scaled(std::string_view leaf, TensorId x) {
    const TensorId out = g_.binary(Op::Mul, g_.parameter(leaf), x);
    g_.drop({x});
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden) {
    g_.enter(module);
    LayerInputs given;
    given.turns = false;
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, p_.before_attention), hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, p_.attention), normed, given);
    g_.drop({normed});
    const TensorId first = scaled("lambda_1", attended.flat);
    const TensorId middle = g_.binary(Op::Add, first, hidden);
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, p_.before_mlp), middle);
    const TensorId fed = mlp_module(g_, p_, g_.child(module, "mlp"), second, d_.ffn);
    g_.drop({second});
    const TensorId dropped = dropout_module(g_, g_.child(module, "dropout"), fed, d_.residual_dropout);
    g_.drop({fed});
    const TensorId last = scaled("lambda_2", dropped);
    const TensorId out = g_.binary(Op::Add, last, middle);
    g_.drop({last, middle, first});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  GraphBuilder& g_;
  const TowerParts& t_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId module_;
};

}  // namespace

TowerResult intern_tower(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels) {
  return InternTower(g, tower, module).run(pixels);
}

}  // namespace dsplan
