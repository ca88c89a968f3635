// Sparse blocks as transformers 5.17 runs them on CUDA: the router in fp32, then its experts (experts.cpp).
#include <limits>
#include <tuple>

#include "core/error.h"
#include "model/graphs/linear.h"
#include "model/graphs/mixtures/experts.h"
#include "model/graphs/pieces.h"

namespace dsplan {

// The fp16 kernel makes fp32 itself.
TensorId wide_probabilities(GraphBuilder& g, TensorId logits) {
  if (g.dtype(logits) == DType::Float16) {
    return g.make(Op::Softmax, g.shape(logits), DType::Float32, {logits}, true);
  }
  const TensorId wide = g.cast(logits, DType::Float32);
  const TensorId probabilities = g.unary(Op::Softmax, wide);
  g.drop({wide});
  return probabilities;
}

TensorId divided_by_sum(GraphBuilder& g, TensorId weights) {
  const TensorId sum = g.make(Op::SumDim, Shape{g.shape(weights).dims[0], 1}, DType::Float32, {weights}, true);
  const TensorId divided = g.in_place(Op::Div, weights, sum);
  g.drop({sum, weights});
  return divided;
}

namespace {

// A sum's, which autocast makes in fp32.
DType summed_dtype(const GraphBuilder& g, TensorId x) { return g.options().autocast ? DType::Float32 : g.dtype(x); }

// softmax(logits.float()), or softmax(logits, dtype=float32).
TensorId probabilities_of(GraphBuilder& g, Router router, TensorId logits) {
  if (router == Router::Softmax) return wide_probabilities(g, logits);
  const TensorId wide = g.cast(logits, DType::Float32);
  const TensorId probabilities = g.unary(Op::Softmax, wide);
  g.drop({wide});
  return probabilities;
}

// The largest logits, then a softmax over them alone: in fp32, and back, or as they are.
Routed route_late(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden) {
  const Dimensions& d = g.dims();
  const bool wide = parts.router == Router::LateSoftmax;
  g.enter(gate);
  const TensorId narrow = g.linear(hidden, g.parameter("weight"), g.parameter("bias"), d.experts);
  const TensorId logits = wide ? g.cast(narrow, DType::Float32) : g.keep(narrow);
  g.drop({narrow});
  const auto [top, experts] = g.select(Op::TopK, logits, Shape{g.shape(hidden).dims[0], d.experts_per_token});
  // A dtype that is named stays under autocast.
  const TensorId soft = wide ? g.unary(Op::Softmax, top) : g.make(Op::Softmax, g.shape(top), g.dtype(top), {top}, true);
  const TensorId weights = wide ? g.cast(soft, g.dtype(hidden)) : g.keep(soft);
  g.drop({soft, top});
  g.exit(gate);
  return {logits, weights, experts};
}

// hunyuan_v1_moe: the product is a Linear of the gate's own, in fp32 unless somebody has cast its weight.
Routed route_by_module(GraphBuilder& g, ModuleId gate, TensorId hidden) {
  const Dimensions& d = g.dims();
  const ModuleId linear = g.child(gate, "wg");
  g.enter(gate);
  const TensorId flat = g.view(hidden, g.shape(hidden));
  const TensorId seen = g.cast(flat, g.dtype(g.parameter_of(unwrapped(g, linear), "weight")));
  g.drop({flat});
  const TensorId logits = linear_module(g, linear, seen, d.experts);
  const TensorId probabilities = probabilities_of(g, Router::Softmax, logits);
  const auto [top, experts] = g.select(Op::TopK, probabilities, Shape{g.shape(hidden).dims[0], d.experts_per_token});
  g.drop({probabilities});
  const TensorId divided = divided_by_sum(g, top);
  const TensorId weights = g.cast(divided, g.dtype(logits));
  g.drop({divided, seen});
  g.exit(gate);
  return {logits, weights, experts};
}

// Which experts is decided with a bias added to the scores, with what weight by the scores alone. The values that topk
// gives have a name until the gate returns.
struct Biased {
  TensorId values = kNone;
  TensorId experts = kNone;
  TensorId weights = kNone;
};

// `named`: the sum has a name as well, which the caller lets go of.
Biased chosen_with(GraphBuilder& g, TensorId scores, TensorId sum, bool named) {
  const Shape chosen{g.shape(scores).dims[0], g.dims().experts_per_token};
  Biased made;
  std::tie(made.values, made.experts) = g.select(Op::TopK, sum, chosen);
  if (!named) g.drop({sum});
  made.weights = g.make(Op::Gather, chosen, g.dtype(scores), {scores, made.experts}, true);
  return made;
}

void let_go(GraphBuilder& g, const Biased& made) {
  g.drop({made.values});
  g.forget(made.values);
}

// minimax_m2; `bias` is the block's.
Routed route_by_sigmoid(GraphBuilder& g, ModuleId gate, TensorId hidden, TensorId bias) {
  g.enter(gate);
  const TensorId flat = g.view(hidden, g.shape(hidden));
  const TensorId logits = g.linear(flat, g.parameter("weight"), kNone, g.dims().experts);
  const TensorId wide = g.cast(logits, DType::Float32);
  const TensorId scores = g.unary(Op::Sigmoid, wide);
  g.drop({wide});
  const TensorId sum = g.binary(Op::Add, scores, bias);
  const Biased made = chosen_with(g, scores, sum, true);
  const TensorId weights = divided_by_sum(g, made.weights);
  g.forget(sum);
  g.drop({flat, scores, sum});
  let_go(g, made);
  g.exit(gate);
  return {logits, weights, made.experts};
}

// lfm2_moe. Where a bias decides, what topk gives lies in a variable that nobody reads.
Routed route_narrow(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden, TensorId bias) {
  constexpr double kLeast = 1e-6;
  const Shape chosen{g.shape(hidden).dims[0], g.dims().experts_per_token};
  g.enter(gate);
  const TensorId logits = g.linear(hidden, g.parameter("weight"), kNone, g.dims().experts);
  TensorId weights = g.unary(Op::Sigmoid, logits);
  Biased made;
  TensorId sum = kNone;
  if (bias != kNone) {
    sum = g.binary(Op::Add, weights, bias);
    std::tie(made.values, made.experts) = g.select(Op::TopK, sum, chosen);
    const TensorId gathered = g.make(Op::Gather, chosen, g.dtype(weights), {weights, made.experts}, true);
    g.drop({weights});
    weights = g.cast(gathered, g.dtype(logits));
    g.drop({gathered});
  } else {
    const auto [top, experts] = g.select(Op::TopK, weights, chosen);
    made.experts = experts;
    weights = rebound(g, weights, top);
  }
  if (parts.normalised) {
    const TensorId total = g.make(Op::SumDim, Shape{chosen.dims[0], 1}, summed_dtype(g, weights), {weights}, true);
    const TensorId shifted = g.unary(Op::AddScalar, total, kLeast);
    g.drop({total});
    weights = rebound(g, weights, g.binary(Op::Div, weights, shifted));
    g.drop({shifted});
  }
  weights = rebound(g, weights, g.unary(Op::MulScalar, weights, parts.scale));
  if (sum != kNone) {
    g.forget(sum);
    g.drop({sum});
    let_go(g, made);
  }
  g.exit(gate);
  return {logits, weights, made.experts};
}

// hy_v3; `bias` is the block's.
Routed route_wide(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden, TensorId bias) {
  constexpr double kLeast = 1e-20;
  g.enter(gate);
  const TensorId flat = g.view(hidden, g.shape(hidden));
  const TensorId wide = g.cast(flat, DType::Float32);
  const TensorId weight = g.cast(g.parameter("weight"), DType::Float32);
  const TensorId logits = g.linear(wide, weight, kNone, g.dims().experts);
  g.drop({wide, weight});
  const TensorId scores = g.unary(Op::Sigmoid, logits);
  const TensorId sum = g.binary(Op::Add, scores, bias);
  const Biased made = chosen_with(g, scores, sum, true);
  const TensorId total =
      g.make(Op::SumDim, Shape{g.shape(scores).dims[0], 1}, summed_dtype(g, made.weights), {made.weights}, true);
  const TensorId shifted = g.unary(Op::AddScalar, total, kLeast);
  g.drop({total});
  const TensorId divided = g.binary(Op::Div, made.weights, shifted);
  g.drop({shifted, made.weights});
  const TensorId weights = rebound(g, divided, g.unary(Op::MulScalar, divided, parts.scale));
  g.forget(sum);
  g.drop({flat, scores, sum});
  let_go(g, made);
  g.exit(gate);
  return {logits, weights, made.experts};
}

// cohere2_moe: each statement rebinds the variable.
Routed route_of_top(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden) {
  const Shape chosen{g.shape(hidden).dims[0], g.dims().experts_per_token};
  g.enter(gate);
  const TensorId logits = g.linear(hidden, g.parameter("weight"), kNone, g.dims().experts);
  const auto [top, experts] = g.select(Op::TopK, logits, chosen);
  TensorId weights = top;
  if (parts.router == Router::TopSoftmax) {
    weights = rebound(g, weights, wide_probabilities(g, weights));
  } else {
    weights = rebound(g, weights, g.unary(Op::Sigmoid, weights));
    if (parts.normalised) {
      const TensorId total = g.make(Op::SumDim, Shape{chosen.dims[0], 1}, summed_dtype(g, weights), {weights}, true);
      weights = rebound(g, weights, g.binary(Op::Div, weights, total));
      g.drop({total});
    }
  }
  weights = rebound(g, weights, g.cast(weights, g.dtype(hidden)));
  g.exit(gate);
  return {logits, weights, experts};
}

// ernie4_5_moe; the bias is added by a module.
Routed route_with_statics(GraphBuilder& g, ModuleId gate, TensorId hidden) {
  constexpr double kLeast = 1e-12;
  const Shape shape{g.shape(hidden).dims[0], g.dims().experts};
  const ModuleId statics = g.child(gate, "moe_statics");
  g.enter(gate);
  g.set_autocast_enabled(false);
  const TensorId wide = g.cast(hidden, DType::Float32);
  const TensorId weight = g.cast(g.parameter("weight"), DType::Float32);
  const TensorId logits = g.linear(wide, weight, kNone, g.dims().experts);
  g.drop({wide, weight});
  const TensorId scores = g.unary(Op::Softmax, logits);
  g.enter(statics);
  const TensorId bias = g.view(g.parameter("e_score_correction_bias"), Shape{shape.dims[1]});
  const TensorId sum = g.binary(Op::Add, scores, bias);
  g.drop({bias});
  g.exit(statics);
  const Biased made = chosen_with(g, scores, sum, false);
  g.drop({scores});
  const TensorId total = g.make(Op::SumDim, Shape{shape.dims[0], 1}, DType::Float32, {made.weights}, true);
  const TensorId bounded = g.unary(Op::Clamp, total, kLeast, Node::kLowerBound);
  g.drop({total});
  const TensorId divided = g.binary(Op::Div, made.weights, bounded);
  g.drop({bounded, made.weights});
  const TensorId weights = g.cast(divided, g.dtype(hidden));
  let_go(g, made);
  g.forget(sum);
  g.drop({divided});
  g.set_autocast_enabled(true);
  g.exit(gate);
  return {logits, weights, made.experts};
}

Routed route(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden) {
  switch (parts.router) {
    case Router::Sampled: return route_by_chance(g, parts, gate, hidden);
    case Router::LateSoftmax:
    case Router::BareSoftmax: return route_late(g, parts, gate, hidden);
    case Router::Module: return route_by_module(g, gate, hidden);
    case Router::Fp32Biased: return route_with_statics(g, gate, hidden);
    case Router::NarrowSigmoid:
      return route_narrow(g, parts, gate, hidden, parts.corrected ? g.buffer("expert_bias") : kNone);
    case Router::TopSoftmax:
    case Router::TopSigmoid: return route_of_top(g, parts, gate, hidden);
    case Router::WideSigmoid: return route_wide(g, parts, gate, hidden, g.buffer("e_score_correction_bias"));
    case Router::Sigmoid: return route_by_sigmoid(g, gate, hidden, g.buffer("e_score_correction_bias"));
    default: break;
  }
  const Dimensions& d = g.dims();
  const std::int64_t tokens = g.shape(hidden).dims[0];
  g.enter(gate);
  const TensorId flat = g.view(hidden, g.shape(hidden));
  const TensorId logits = g.linear(flat, g.parameter("weight"), kNone, d.experts);
  const TensorId probabilities = probabilities_of(g, parts.router, logits);
  const auto [top, experts] = g.select(Op::TopK, probabilities, Shape{tokens, d.experts_per_token});
  TensorId weights = top;
  if (parts.normalised) weights = divided_by_sum(g, top);
  if (parts.router == Router::Softmax) {
    const TensorId narrow = g.cast(weights, g.dtype(logits));
    g.drop({weights});
    weights = narrow;
  }
  g.drop({flat, probabilities});
  g.exit(gate);
  return {logits, weights, experts};
}

// What lives to the end of the gate's call: its variables, and autograd nodes that no loss will ask, by what they made.
struct GateFrame {
  std::vector<TensorId> held;
  std::vector<TensorId> unasked;
};

// The experts that may not be chosen, [tokens, experts]: those of groups other than the best by `keys`.
TensorId kept_out(GraphBuilder& g, const ExpertParts& parts, TensorId keys, GateFrame& frame) {
  const std::int64_t tokens = g.shape(keys).dims[0];
  const Shape each{tokens, parts.groups, g.dims().experts / parts.groups};
  const Shape by_group{tokens, parts.groups};
  const TensorId grouped = g.view(keys, each);
  const DType dtype = g.dtype(keys);
  const bool pairs = parts.router != Router::Fp32Softmax;  // The two highest of each group count, or the highest.
  const auto [values, places] =
      pairs ? g.select(Op::TopK, grouped, Shape{tokens, parts.groups, 2}) : g.select(Op::Max, grouped, by_group);
  g.drop({places});
  const TensorId best = pairs ? g.make(Op::SumDim, by_group, dtype, {values}, true, 2) : g.keep(values);
  g.drop({grouped, values});
  frame.unasked.push_back(values);
  const auto [unread, chosen] = g.select(Op::TopK, best, Shape{tokens, parts.kept_groups});
  g.drop({unread});
  g.forget(unread);
  const TensorId zeros = g.filled(by_group, dtype, 0);
  const TensorId marks = g.in_place(Op::Scatter, zeros, chosen, 1, 1);
  const TensorId column = g.view(marks, Shape{tokens, parts.groups, 1});
  const TensorId spread = g.view(column, each, Op::Expand);
  // One group is one element that stands for all.
  const TensorId copied = parts.groups > 1 ? g.copy(spread) : g.keep(spread);
  const TensorId mask = g.view(copied, g.shape(keys));
  const TensorId kept = g.cast(mask, DType::Bool);
  const TensorId out = g.make(Op::Equal, g.shape(keys), DType::Bool, {kept}, false, 0);
  g.drop({column, spread, copied, zeros, kept});
  frame.held.insert(frame.held.end(), {best, chosen, marks, mask});
  return out;
}

// The experts with the highest `keys`, which are used up, among those that may be chosen, and their weights by
// `scores`. `never`: what stands in the place of the others' keys.
std::pair<TensorId, TensorId> best_of(GraphBuilder& g, const ExpertParts& parts, TensorId scores, TensorId keys,
                                      double never, GateFrame& frame) {
  const Shape chosen_shape{g.shape(scores).dims[0], g.dims().experts_per_token};
  const DType dtype = g.dtype(scores);
  const TensorId out = kept_out(g, parts, keys, frame);
  const TensorId masked = g.make(Op::MaskedFill, g.shape(keys), g.dtype(keys), {keys, out}, true, never);
  g.drop({keys, out});
  frame.unasked.push_back(masked);
  const auto [unread, experts] = g.select(Op::TopK, masked, chosen_shape);
  g.drop({unread});
  g.forget(unread);
  frame.held.insert(frame.held.end(), {scores, masked});
  TensorId weights = g.make(Op::Gather, chosen_shape, dtype, {scores, experts}, true);
  if (parts.normalised) {
    const TensorId sum = g.make(Op::SumDim, Shape{chosen_shape.dims[0], 1}, summed_dtype(g, weights), {weights}, true);
    const TensorId shifted = g.unary(Op::AddScalar, sum, 1e-20);
    g.drop({sum});
    const TensorId divided = g.in_place(Op::Div, weights, shifted);
    g.drop({weights});
    weights = divided;
    frame.held.push_back(shifted);
  }
  return {weights, experts};
}

// deepseek_v3: which experts is decided by sigmoid plus a bias, with what weight by the sigmoid alone.
std::pair<TensorId, TensorId> by_sigmoid(GraphBuilder& g, const ExpertParts& parts, TensorId logits, GateFrame& frame) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const TensorId scores = g.unary(Op::Sigmoid, logits);
  const TensorId biased = g.binary(Op::Add, scores, g.buffer("e_score_correction_bias"));
  return best_of(g, parts, scores, biased, kNever, frame);
}

// mistral4: both by a softmax.
std::pair<TensorId, TensorId> by_groups(GraphBuilder& g, const ExpertParts& parts, TensorId logits, GateFrame& frame) {
  const TensorId scores = g.unary(Op::Softmax, logits);
  return best_of(g, parts, scores, g.keep(scores), 0, frame);
}

// deepseek_v2.
std::pair<TensorId, TensorId> by_softmax(GraphBuilder& g, const ExpertParts& parts, TensorId logits, GateFrame& frame) {
  TensorId scores = g.unary(Op::Softmax, logits);
  if (parts.groups > 0) {
    const TensorId out = kept_out(g, parts, scores, frame);
    const TensorId masked = g.make(Op::MaskedFill, g.shape(scores), DType::Float32, {scores, out}, true);
    g.drop({scores, out});
    scores = masked;
  }
  frame.held.push_back(scores);
  return g.select(Op::TopK, scores, Shape{g.shape(logits).dims[0], g.dims().experts_per_token});
}

std::pair<TensorId, TensorId> by_router(GraphBuilder& g, const ExpertParts& parts, TensorId logits, GateFrame& frame) {
  switch (parts.router) {
    case Router::Fp32Sigmoid: return by_sigmoid(g, parts, logits, frame);
    case Router::GroupedSoftmax: return by_groups(g, parts, logits, frame);
    default: return by_softmax(g, parts, logits, frame);
  }
}

// The gate of deepseek: product and choice in fp32, or as they are (mistral4).
Routed route_by_group(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden) {
  g.enter(gate);
  const Shape shape = g.shape(hidden);
  const TensorId flat = g.view(hidden, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  const bool widens = parts.router != Router::GroupedSoftmax;
  const TensorId seen = widens ? g.cast(flat, DType::Float32) : g.keep(flat);
  const TensorId weight = g.parameter("weight");
  const TensorId seen_weight = widens ? g.cast(weight, DType::Float32) : g.keep(weight);
  const TensorId logits = g.linear(seen, seen_weight, kNone, g.dims().experts);
  g.drop({seen, seen_weight});
  GateFrame frame;
  const auto [weights, experts] = by_router(g, parts, logits, frame);
  const TensorId scaled = g.unary(Op::MulScalar, weights, parts.scale);
  g.drop({weights, flat});
  for (TensorId one : frame.held) g.drop({one});
  for (TensorId one : frame.unasked) g.forget(one);
  g.exit(gate);
  return {logits, scaled, experts};
}

// kNone: there is none.
void call_identity(GraphBuilder& g, ModuleId module) {
  if (module == kNone) return;
  g.enter(module);
  g.exit(module);
}

// What experts give, which see latents of the rows where there are such; uses up `flat`.
TensorId seen_by_experts(GraphBuilder& g, const ExpertParts& parts, ModuleId block, TensorId flat,
                         const Routed& routing) {
  const ModuleId experts = g.child(block, "experts");
  if (parts.latent == 0) {
    call_identity(g, g.model().child(block, "fc1_latent_proj"));
    const TensorId rows = rebound(g, flat, run_experts(g, parts, experts, flat, routing));
    call_identity(g, g.model().child(block, "fc2_latent_proj"));
    return rows;
  }
  const TensorId seen = rebound(g, flat, linear_module(g, g.child(block, "fc1_latent_proj"), flat, parts.latent));
  const TensorId given = rebound(g, seen, run_experts(g, parts, experts, seen, routing));
  return rebound(g, given, linear_module(g, g.child(block, "fc2_latent_proj"), given, g.dims().hidden));
}

// The routed experts, then the shared one (deepseek).
TensorId moe_beside_shared(GraphBuilder& g, const ExpertParts& parts, ModuleId block, TensorId hidden,
                           const SharedExpert& shared) {
  const Shape shape = g.shape(hidden);
  g.enter(block);
  const Routed routing = route_by_group(g, parts, g.child(block, "gate"), hidden);
  const TensorId flat = g.view(hidden, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  const TensorId rows = seen_by_experts(g, parts, block, flat, routing);
  const TensorId mixed = g.view(rows, shape);
  g.drop({rows});
  const TensorId beside = shared(g.child(block, "shared_experts"), hidden);
  const TensorId out = g.binary(Op::Add, mixed, beside);
  g.drop({mixed, beside, routing.logits, routing.weights, routing.experts});
  g.exit(block);
  return out;
}

// What the block gives, and what its second variable holds until it returns.
struct Joined {
  TensorId out = kNone;
  TensorId held = kNone;
};

// hy_v3: routed + shared(rows), in fp32 and back if `wide_sum`.
Joined joined_named(GraphBuilder& g, const ExpertParts& parts, TensorId routed, TensorId rows, ModuleId module,
                    const SharedExpert& shared) {
  if (!parts.wide_sum) {
    const TensorId beside = shared(module, rows);
    const TensorId out = g.binary(Op::Add, routed, beside);
    g.drop({beside});
    return {out, routed};
  }
  const TensorId wide = g.cast(routed, DType::Float32);
  const TensorId beside = shared(module, rows);
  const TensorId wide_beside = g.cast(beside, DType::Float32);
  g.drop({beside});
  const TensorId sum = g.binary(Op::Add, wide, wide_beside);
  g.drop({wide, wide_beside});
  const TensorId out = g.cast(sum, g.dtype(rows));
  g.drop({sum});
  return {out, routed};
}

// cohere2_moe: the sum, or the mean, takes the routed experts' name.
Joined joined_behind(GraphBuilder& g, const ExpertParts& parts, TensorId routed, TensorId rows, ModuleId module,
                     const SharedExpert& shared) {
  const TensorId beside = shared(module, rows);
  TensorId out = g.binary(Op::Add, routed, beside);
  if (parts.averaged) out = rebound(g, out, g.unary(Op::DivScalar, out, 2));
  g.drop({routed});
  return {out, beside};
}

// qwen2_moe: sigmoid(gate(x)) * shared(x), which takes its name.
Joined joined_gated(GraphBuilder& g, ModuleId block, TensorId routed, TensorId rows, TensorId beside) {
  const TensorId open = linear_module(g, g.child(block, "shared_expert_gate"), rows, 1);
  const TensorId share = g.unary(Op::Sigmoid, open);
  g.drop({open});
  const TensorId scaled = g.binary(Op::Mul, share, beside);
  g.drop({share, beside});
  return {rebound(g, routed, g.binary(Op::Add, routed, scaled)), scaled};
}

// Adds what the shared expert gives of the rows: `beside`, or it is asked here.
Joined with_shared(GraphBuilder& g, const ExpertParts& parts, ModuleId block, TensorId routed, TensorId rows,
                   TensorId beside, const SharedExpert& shared) {
  switch (parts.shared) {
    case SharedPlace::RowsNamed:
      return joined_named(g, parts, routed, rows, g.child(block, parts.shared_module), shared);
    case SharedPlace::RowsBehind:
      return joined_behind(g, parts, routed, rows, g.child(block, parts.shared_module), shared);
    case SharedPlace::Rows: return {rebound(g, routed, g.binary(Op::Add, routed, beside)), beside};
    default: return joined_gated(g, block, routed, rows, beside);
  }
}

}  // namespace

// sigmoid(gate(x)) * shared(x) is added to what the routed experts give (qwen2_moe).
Mixed moe_block(GraphBuilder& g, const ExpertParts& parts, ModuleId block, TensorId hidden,
                const SharedExpert& shared) {
  if (parts.router == Router::Scattered) return every_expert(g, block, hidden, shared);
  if (parts.shared == SharedPlace::Behind) return {moe_beside_shared(g, parts, block, hidden, shared), kNone};
  const Shape shape = g.shape(hidden);
  g.enter(block);
  const bool has_shared = parts.shared_ffn > 0;
  const ModuleId beside_module = has_shared ? g.child(block, parts.shared_module) : kNone;
  const bool whole = has_shared && parts.shared == SharedPlace::Whole;
  const bool behind = parts.shared == SharedPlace::RowsNamed || parts.shared == SharedPlace::RowsBehind;
  const TensorId around = whole ? shared(beside_module, hidden) : kNone;
  const TensorId flat = g.view(hidden, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  TensorId beside = has_shared && !whole && !behind ? shared(beside_module, flat) : kNone;
  const Routed routing = route(g, parts, g.child(block, parts.gate), flat);
  TensorId mixed = run_experts(g, parts, g.child(block, "experts"), flat, routing);
  if (has_shared && !whole) {
    const Joined made = with_shared(g, parts, block, mixed, flat, beside, shared);
    mixed = made.out;
    beside = made.held;
  }
  TensorId out = g.view(mixed, shape);
  if (whole) {
    const TensorId sum = g.binary(Op::Add, out, around);
    g.drop({out, around});
    out = sum;
  }
  const bool held = parts.router == Router::BareSoftmax;  // By the layer, as a second result.
  if (held) g.keep(routing.weights);
  g.drop({mixed, flat});
  if (parts.logits_last) {  // granitemoe: top_k_index, top_k_weights, _ = self.router(...)
    g.drop({routing.experts, routing.weights, routing.logits});
  } else {
    g.drop({routing.logits, routing.weights, routing.experts});
  }
  if (beside != kNone) g.drop({beside});
  g.exit(block);
  return {out, held ? routing.weights : kNone};
}

}  // namespace dsplan
