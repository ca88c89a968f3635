#include "model/graphs/adapted_parameters.h"

#include "model/graphs/builder.h"
#include "model/lora.h"

namespace dsplan {
namespace {

struct Change {
  TensorId left = kNone;
  TensorId right = kNone;
};

// ParamWrapper.get_delta_factors: lora_A is [experts * r, in], lora_B is [out, r * experts].
Change factors_of(GraphBuilder& g, TensorId a, TensorId b, TensorId weight, bool turned) {
  const std::int64_t experts = g.shape(weight).dims[0];
  const std::int64_t rank = g.shape(a).dims[0] / experts;
  const std::int64_t in = g.shape(a).dims[1];
  const std::int64_t out = g.shape(b).dims[0];
  const Shape by_expert{experts, rank, in};
  const ViewStep apart = step_reshape({out, rank, experts});
  TensorId left = kNone;
  TensorId right = kNone;
  if (turned) {
    left = g.view_copied_back(a, {experts, in, rank}, {step_reshape(by_expert), step_swap(1, 2)});
    right = g.view_copied_back(b, {experts, rank, out}, {apart, step_swap(0, 2)});
  } else {
    right = g.view(a, by_expert);
    left = g.view_copied_back(b, {experts, out, rank}, {apart, step_swap(0, 2), step_swap(1, 2)});
  }
  const Change made{g.cast(left, g.dtype(weight)), g.cast(right, g.dtype(weight))};
  g.drop({left, right});
  return made;
}

// ParamWrapper.get_delta_weight of a matrix: B A, scaled.
Change whole_change(GraphBuilder& g, TensorId a, TensorId b, TensorId weight) {
  const TensorId low_a = g.lowered(a);  // Arguments are evaluated from the last to the first.
  const TensorId low_b = g.lowered(b);
  const TensorId product = g.make(Op::Mm, g.shape(weight), g.dtype(low_b), {low_b, low_a}, true);
  g.drop({low_b, low_a});
  const TensorId scaled = rebound(g, product, g.unary(Op::MulScalar, product, g.model().dims.adapter_scale));
  return {rebound(g, scaled, g.cast(scaled, g.dtype(weight))), kNone};
}

// _LoraFactorsProxy.forward, or _LoraParameterProxy.forward.
TensorId changed(GraphBuilder& g, TensorId weight, const Change& change) {
  if (change.right == kNone) return g.binary(Op::Add, weight, change.left);
  return g.make(Op::Bmm, g.shape(weight), g.dtype(weight), {change.left, change.right, weight}, true,
                g.model().dims.adapter_scale);
}

}  // namespace

void AdaptedParameters::enter(GraphBuilder& g, ModuleId wrapper, std::string_view leaf) {
  One one;
  one.module = inside_wrappers(g.model(), wrapper);
  one.leaf = leaf;
  one.weight = g.parameter_of(one.module, leaf);
  const TensorId a = g.parameter_of(g.child(g.child(wrapper, "lora_A"), "default"), "weight");
  const TensorId b = g.parameter_of(g.child(g.child(wrapper, "lora_B"), "default"), "weight");
  const bool bank = g.shape(one.weight).rank == 3;
  const bool turned = has_turned_experts(g.model().module_at(one.module));
  const Change change = bank ? factors_of(g, a, b, one.weight, turned) : whole_change(g, a, b, one.weight);
  one.left = change.left;
  one.right = change.right;
  // register_parametrization asks for the value once, to see its shape and dtype.
  const TensorId seen = changed(g, one.weight, change);
  g.drop({seen});
  g.forget(seen);
  active_.push_back(std::move(one));
}

void AdaptedParameters::exit(GraphBuilder& g) {
  const One one = active_.back();
  active_.pop_back();
  if (one.value != kNone) cached_.push_back(one.value);
  if (active_.empty()) {
    for (const TensorId value : cached_) g.drop({value});
    cached_.clear();
  }
  g.drop({one.left});
  if (one.right != kNone) g.drop({one.right});
}

TensorId AdaptedParameters::shown(GraphBuilder& g, ModuleId module, std::string_view leaf) {
  for (One& one : active_) {
    if (one.module != module || one.leaf != leaf) continue;
    if (one.value == kNone) one.value = changed(g, one.weight, {one.left, one.right});
    return one.value;
  }
  return kNone;
}

}  // namespace dsplan
