// sparsemixer of modeling_phimoe.py. Of its nodes only the product of each draw gets a gradient: what leads to the
// others keeps tensors until that product has gone backward, and makes none (Op::SparseMixer).
#include <limits>
#include <vector>

#include "model/graphs/mixtures/experts.h"

namespace dsplan {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// The function's variables that both draws use.
struct Frame {
  TensorId too_far = kNone;
  TensorId places = kNone;
  TensorId factor = kNone;
  TensorId highest = kNone;
};

// One expert for each token, and what it counts.
struct Draw {
  TensorId shares = kNone;
  TensorId chosen = kNone;
  TensorId own_share = kNone;
  TensorId chance = kNone;
  TensorId weight = kNone;
};

class Sampler {
 public:
  Sampler(GraphBuilder& g, const ExpertParts& parts, TensorId scores)
      : g_(g), parts_(parts), scores_(scores), column_{g.shape(scores).dims[0], 1} {}

  Routed run() {
    const Draw first = draw(scores_);
    g_.set_grad_enabled(false);
    const TensorId rest = g_.make(Op::Scatter, g_.shape(scores_), g_.dtype(scores_), {scores_, first.chosen});
    g_.set_grad_enabled(true);
    const Draw second = draw(rest);
    const TensorId weights = g_.cat(first.weight, second.weight);
    g_.drop({first.weight});
    const TensorId experts = g_.cat(first.chosen, second.chosen);
    for (const Draw& one : {first, second}) g_.drop({one.shares, one.chosen, one.own_share, one.chance});
    g_.drop({second.weight, rest, frame_.too_far, frame_.places, frame_.factor});
    forget_highest();
    return {scores_, weights, experts};
  }

 private:
  TensorId then(Op op, TensorId a, TensorId b) {
    const TensorId out = g_.binary(op, a, b);
    g_.drop({a});
    return out;
  }

  // (highest - scores) / max(|scores|, highest) > 2 * spread.
  void judge(TensorId scores) {
    const auto [highest, places] = g_.select(Op::Max, scores, column_);
    rebind(g_, frame_.too_far, highest);
    rebind(g_, frame_.places, places);
    rebind(g_, frame_.factor, then(Op::Maximum, g_.unary(Op::Abs, scores_), highest));
    const TensorId distance = then(Op::Div, g_.binary(Op::Sub, highest, scores), frame_.factor);
    const TensorId flags = g_.make(Op::Greater, g_.shape(scores), DType::Bool, {distance}, false, 2 * parts_.spread);
    g_.drop({distance});
    rebind(g_, frame_.too_far, flags);
  }

  void forget_highest() {
    if (frame_.highest == kNone) return;
    g_.drop({frame_.highest});
    g_.forget(frame_.highest);
  }

  // The highest of what is left minus the logarithm of chance.
  TensorId drawn(TensorId left) {
    const TensorId random = g_.make(Op::Random, g_.shape(left), g_.dtype(left), {});
    const TensorId wide = g_.widened(random);
    const TensorId logarithm = g_.unary(Op::Log, wide);
    g_.drop({random, wide});
    const TensorId apart = g_.binary(Op::Sub, left, logarithm);
    g_.drop({logarithm});
    const auto [highest, places] = g_.select(Op::Max, apart, Shape{column_.dims[0]});
    g_.drop({apart, highest});
    const TensorId chosen = g_.view(places, column_);
    g_.drop({places});
    return chosen;
  }

  // One where the best was drawn or chance says so, else a third.
  TensorId chance(TensorId shares, TensorId chosen) {
    g_.set_grad_enabled(true);  // Its node keeps the places as long as the values have a name.
    const auto [highest, places] = g_.select(Op::Max, scores_, column_);
    g_.set_grad_enabled(false);
    forget_highest();
    frame_.highest = highest;
    rebind(g_, frame_.places, places);
    const TensorId same = g_.make(Op::Equal, column_, DType::Bool, {chosen, places});
    const TensorId random = g_.make(Op::Random, column_, g_.dtype(highest), {});
    const TensorId lucky = g_.make(Op::Greater, column_, DType::Bool, {random}, false, 0.75);
    g_.drop({random});
    const TensorId either = g_.make(Op::BitwiseOr, column_, DType::Bool, {same, lucky});
    g_.drop({same, lucky});
    const TensorId wide = g_.make(Op::AddScalar, column_, DType::Float32, {either}, false, 0.3333);
    const TensorId out = g_.cast(wide, g_.dtype(shares));
    g_.drop({wide, either});
    return out;
  }

  // What a share is taken of: the scores, or those that the first draw has left.
  Draw draw(TensorId from) {
    Draw made;
    g_.set_grad_enabled(false);
    judge(from);
    const TensorId left =
        g_.make(Op::MaskedFill, g_.shape(from), g_.dtype(from), {from, frame_.too_far}, false, kNever);
    made.chosen = drawn(left);
    made.shares = g_.unary(Op::Softmax, left);
    g_.drop({left});
    made.own_share = g_.make(Op::Gather, column_, g_.dtype(made.shares), {made.shares, made.chosen});
    made.chance = chance(made.shares, made.chosen);
    g_.set_grad_enabled(true);
    made.weight = g_.make(Op::SparseMixer, column_, g_.dtype(made.shares),
                          {scores_, made.own_share, made.chosen, made.shares, made.chance, frame_.too_far}, true);
    return made;
  }

  GraphBuilder& g_;
  const ExpertParts& parts_;
  TensorId scores_;
  Shape column_;
  Frame frame_;
};

}  // namespace

Routed route_by_chance(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden) {
  g.enter(gate);
  const TensorId logits = g.linear(hidden, g.parameter("weight"), kNone, g.dims().experts);
  const Routed made = Sampler(g, parts, logits).run();
  g.exit(gate);
  return made;
}

}  // namespace dsplan
