#include "model/graphs/mixtures/experts.h"

#include <string_view>
#include <vector>

#include "core/error.h"
#include "model/graphs/activations.h"
#include "model/graphs/builder.h"
#include "model/graphs/pieces.h"
#include "model/lora.h"

namespace dsplan {
namespace {

// (up + 1) * gate * sigmoid(alpha * gate) of clamped neighbours (gpt_oss).
TensorId apply_clamped_gate(GraphBuilder& g, TensorId both) {
  constexpr double kAlpha = 1.702;
  constexpr double kLimit = 7;
  const std::int64_t width = g.shape(both).dims[1] / 2;
  const TensorId own_gate = g.slice(both, 1, 0, width, true);
  const TensorId own_up = g.slice(both, 1, 1, width, true);
  const TensorId gate = g.unary(Op::Clamp, own_gate, kLimit, Node::kUpperBound);
  g.drop({own_gate});
  const TensorId up = g.unary(Op::Clamp, own_up, kLimit, Node::kBothBounds);
  g.drop({own_up});
  const TensorId steep = g.unary(Op::MulScalar, gate, kAlpha);
  const TensorId open = g.unary(Op::Sigmoid, steep);
  g.drop({steep});
  const TensorId glu = g.binary(Op::Mul, gate, open);
  g.drop({open});
  const TensorId shifted = g.unary(Op::AddScalar, up, 1);
  const TensorId out = g.binary(Op::Mul, shifted, glu);
  g.drop({shifted, gate, up, glu});
  return out;
}

// A module of the experts', or a function's call (lfm2_moe).
TensorId experts_activation(GraphBuilder& g, ModuleId experts, TensorId x) {
  const ModuleId module = g.model().child(inside_wrappers(g.model(), experts), "act_fn");
  return module == kNone ? activated(g, g.dims().activation, x) : activation_module(g, module, x);
}

// act(gate) * up over the halves of one tensor.
TensorId apply_gate(GraphBuilder& g, ModuleId experts, TensorId both) {
  const std::vector<TensorId> halves = split_last(g, both, equal_widths(g, both, 2));
  const TensorId active = experts_activation(g, experts, halves[0]);
  const TensorId out = g.binary(Op::Mul, active, halves[1]);
  g.drop({active, halves[0], halves[1]});
  return out;
}

// The first product of an expert, of the width that its parameter has, and what becomes of it: gate and values are one
// product, or there is no gate. Lets go of `both`.
const char* first_of(const ExpertParts& parts) { return parts.gated ? "gate_up_proj" : "up_proj"; }
std::int64_t first_width(const ExpertParts& parts) { return parts.gated ? 2 * parts.ffn : parts.ffn; }
TensorId between(GraphBuilder& g, const ExpertParts& parts, ModuleId experts, TensorId both) {
  if (!parts.gated) return rebound(g, both, experts_activation(g, experts, both));
  return rebound(g, both, parts.biased ? apply_clamped_gate(g, both) : apply_gate(g, experts, both));
}

// The rows of `x` by their expert's weight, in its dtype, as autocast knows no such product (_grouped_mm); rows of
// experts that live elsewhere are zeroed. The caller rebinds its
// variable to the product before it masks it: with `consumes`, that is where `x` dies.
// `bias` is added in place, or kNone.
TensorId grouped_linear(GraphBuilder& g, TensorId x, const char* weight, TensorId offsets, TensorId mask, TensorId bias,
                        std::int64_t features, bool consumes) {
  const TensorId bank = g.parameter(weight);
  const TensorId given = g.cast(x, g.dtype(bank));
  TensorId product = g.make(Op::GroupedMatmul, Shape{g.shape(x).dims[0], features}, g.dtype(bank),
                            {given, bank, offsets}, true, bias != kNone ? 1 : 0);
  g.drop({given});
  if (bias != kNone) {
    const TensorId sum = g.in_place(Op::Add, product, bias);
    g.drop({product});
    product = sum;
  }
  if (consumes) g.drop({x});
  const TensorId masked = g.make(Op::MaskedFill, g.shape(product), g.dtype(product), {product, mask}, true);
  g.drop({product});
  return masked;
}

// weighted_out.view(tokens, k, hidden).sum(dim=1), of which autocast makes fp32, and back: what is returned, and the
// variable of the sum.
struct Combined {
  TensorId out;
  TensorId sum;
};
Combined combined(GraphBuilder& g, TensorId weighted, std::int64_t tokens, DType dtype) {
  const Dimensions& d = g.dims();
  // The sum's gradient is expanded over a token's experts: back at one row each it has to be copied, unless it was
  // brought to another dtype.
  const std::int64_t width = g.shape(weighted).dims[1];
  const Shape by_token{tokens, d.experts_per_token, width};
  const DType wide = g.options().autocast ? DType::Float32 : g.dtype(weighted);
  const bool copied = d.experts_per_token > 1 && tokens > 1 && wide == g.dtype(weighted);
  const TensorId grouped = copied ? g.view_copied_back(weighted, by_token) : g.view(weighted, by_token);
  const TensorId sum = g.make(Op::SumDim, Shape{tokens, width}, wide, {grouped}, true, 1);
  g.drop({grouped});
  return {g.cast(sum, dtype), sum};
}

// inv_perm: where each row came from.
TensorId inverse_of(GraphBuilder& g, TensorId order) {
  const Shape rows = g.shape(order);
  const TensorId range = arange(g, rows.dims[0]);
  const TensorId inverse = g.make(Op::IndexPut, rows, DType::Int64, {order, range});
  g.drop({range});
  return inverse;
}

// grouped_mm_experts_forward: one product over the tokens of all experts, sorted by expert. Every shape depends on
// tokens * experts_per_token only, so that routing moves no byte here.
TensorId grouped_experts(GraphBuilder& g, const ExpertParts& parts, ModuleId experts, TensorId hidden,
                         const Routed& routing) {
  const Dimensions& d = g.dims();
  const std::int64_t tokens = g.shape(hidden).dims[0];
  const std::int64_t rows = tokens * d.experts_per_token;
  const TensorId weights = g.view(routing.weights, Shape{rows});
  const TensorId ids = g.view(routing.experts, Shape{rows});
  const auto [sorted, order] = g.select(Op::Sort, ids, Shape{rows});
  const TensorId source =
      g.make(Op::FloorDivScalar, Shape{rows}, DType::Int64, {order}, false, static_cast<double>(d.experts_per_token));
  const std::int64_t width = g.shape(hidden).dims[1];
  const TensorId gathered = g.make(Op::Index, Shape{rows, width}, g.dtype(hidden), {hidden, source}, true);
  g.drop({source});
  const TensorId row_weights = g.make(Op::Index, Shape{rows}, g.dtype(weights), {weights, order}, true);
  const TensorId narrow_ids = g.make(Op::Cast, Shape{rows}, DType::Int32, {sorted});
  const TensorId counts = g.make(Op::Histogram, Shape{d.experts}, DType::Int32, {narrow_ids});
  const TensorId offsets = g.make(Op::CumSum, Shape{d.experts}, DType::Int32, {counts});
  const TensorId flags =
      g.make(Op::GreaterEqual, Shape{rows}, DType::Bool, {sorted}, false, static_cast<double>(d.experts));
  const TensorId mask = g.view(flags, Shape{rows, 1});
  g.drop({flags});
  const auto biases = [&, by = sorted](const char* name, std::int64_t features) {
    const TensorId own = g.parameter(name);
    return g.make(Op::Index, Shape{rows, features}, g.dtype(own), {own, by}, true);
  };
  (void)g.parameter(first_of(parts));  // `selected_weights`: a parameter with adapters is made here.
  const TensorId up_biases = parts.biased ? biases("gate_up_proj_bias", 2 * parts.ffn) : kNone;
  const TensorId selected = g.in_place(Op::MaskedFillInPlace, gathered, mask);
  const TensorId both =
      grouped_linear(g, selected, first_of(parts), offsets, mask, up_biases, first_width(parts), false);
  const TensorId gated = between(g, parts, experts, both);
  (void)g.parameter("down_proj");
  const TensorId down_biases = parts.biased ? biases("down_proj_bias", width) : kNone;
  if (parts.biased) g.drop({up_biases});
  const TensorId projected = grouped_linear(g, gated, "down_proj", offsets, mask, down_biases, width, true);
  const TensorId column = g.view(row_weights, Shape{rows, 1});
  const TensorId weighted = g.binary(Op::Mul, projected, column);
  g.drop({column});
  const TensorId inverse = inverse_of(g, order);
  const TensorId ordered = g.make(Op::Index, g.shape(weighted), g.dtype(weighted), {weighted, inverse}, true);
  g.drop({weighted});
  const Combined made = combined(g, ordered, tokens, g.dtype(hidden));
  g.drop({weights, ids, sorted, order, gathered, selected, row_weights, narrow_ids, counts, offsets, mask});
  if (parts.biased) g.drop({down_biases});
  g.drop({projected, ordered, inverse, made.sum});
  return made.out;
}

// batched_mm_experts_forward: each pair of a token and an expert has a copy of that expert's weights.
class BatchedExperts {
 public:
  BatchedExperts(GraphBuilder& g, const ExpertParts& parts, TensorId hidden)
      : g_(g),
        parts_(parts),
        tokens_(g.shape(hidden).dims[0]),
        width_(g.shape(hidden).dims[1]),
        rows_(tokens_ * g.dims().experts_per_token),
        dtype_(g.dtype(hidden)) {}

  TensorId run(ModuleId experts, TensorId hidden, const Routed& routed) {
    const std::int64_t each = g_.dims().experts_per_token;
    const TensorId selected = repeated(hidden, each);
    const TensorId weights = g_.view(routed.weights, Shape{rows_});
    const TensorId chosen = g_.view(routed.experts, Shape{rows_});
    ids_ = g_.unary(Op::Clamp, chosen);
    g_.drop({chosen});
    const TensorId both = product(selected, first_of(parts_), first_width(parts_));
    const TensorId gated = between(g_, parts_, experts, both);
    const TensorId projected = product(gated, "down_proj", width_);
    g_.drop({gated});
    const TensorId column = g_.view(weights, Shape{rows_, 1});
    const TensorId weighted = g_.binary(Op::Mul, projected, column);
    g_.drop({column});
    const Combined made = combined(g_, weighted, tokens_, dtype_);
    g_.drop({selected, weights, ids_, weights_, projected, weighted});
    if (parts_.biased) g_.drop({biases_});
    g_.drop({made.sum});
    return made.out;
  }

 private:
  // x.repeat_interleave(times, dim=0): an expanded view, copied.
  TensorId repeated(TensorId x, std::int64_t times) {
    const TensorId column = g_.view(x, Shape{tokens_, 1, width_});
    const TensorId spread = g_.view(column, Shape{tokens_, times, width_}, Op::Expand);
    const TensorId copied = g_.copy(spread);
    const TensorId out = g_.view(copied, Shape{rows_, width_});
    g_.drop({column, spread, copied});
    return out;
  }

  // The variables `selected_weights` and `selected_biases` are bound anew before their product is made.
  TensorId product(TensorId x, std::string_view name, std::int64_t features) {
    const Shape& own = g_.shape(g_.parameter(name));
    const Shape copies{rows_, own.dims[1], own.dims[2]};
    const TensorId weights = g_.make(Op::Index, copies, g_.dtype(g_.parameter(name)), {g_.parameter(name), ids_}, true);
    rebind(g_, weights_, weights);
    if (parts_.biased) {
      const TensorId bias = g_.parameter(std::string(name) + "_bias");
      rebind(g_, biases_, g_.make(Op::Index, Shape{rows_, features}, g_.dtype(bias), {bias, ids_}, true));
    }
    const std::int64_t in = g_.shape(x).dims[1];
    const TensorId seen = g_.view(x, parts_.biased ? Shape{rows_, 1, in} : Shape{rows_, in, 1});
    const TensorId made = parts_.biased ? stacked(seen, weights, Shape{rows_, 1, features})
                                        : stacked(weights, seen, Shape{rows_, features, 1});
    g_.drop({seen});
    TensorId out = g_.view(made, Shape{rows_, features});
    g_.drop({made});
    if (parts_.biased) {
      const TensorId sum = g_.in_place(Op::Add, out, biases_);
      g_.drop({out});
      out = sum;
    }
    return out;
  }

  TensorId stacked(TensorId a, TensorId b, Shape shape) {
    const TensorId low_b = g_.lowered(b);
    const TensorId low_a = g_.lowered(a);
    const TensorId out = g_.make(Op::Bmm, shape, g_.dtype(low_a), {low_a, low_b}, true);
    g_.drop({low_a, low_b});
    return out;
  }

  GraphBuilder& g_;
  const ExpertParts& parts_;
  std::int64_t tokens_;
  std::int64_t width_;
  std::int64_t rows_;
  DType dtype_;
  TensorId ids_ = kNone;
  TensorId weights_ = kNone;
  TensorId biases_ = kNone;
};

// The loop over experts that are hit, a class's own forward (modeling_mixtral.py, and 46 others word by word; gpt_oss).
// Each expert is given its own tokens; the loop's variables hold the last one's tensors until the function returns.
class ExpertLoop {
 public:
  ExpertLoop(GraphBuilder& g, const ExpertParts& parts, ModuleId experts, TensorId hidden, const Routed& routed)
      : g_(g), parts_(parts), experts_(experts), hidden_(hidden), routed_(routed) {}

  TensorId run(const std::vector<std::int64_t>& tokens) {
    const Shape chosen = g_.shape(routed_.experts);
    const std::int64_t experts = g_.dims().experts;
    out_ = g_.filled(g_.shape(hidden_), g_.dtype(hidden_), 0);
    const TensorId zeros = g_.filled(Shape{chosen.dims[0], chosen.dims[1], experts}, DType::Int64, 0);
    const TensorId column = g_.view(routed_.experts, Shape{chosen.dims[0], chosen.dims[1], 1});
    const TensorId marks = g_.in_place(Op::Scatter, zeros, column, 2, 1);
    g_.drop({column, zeros});
    const TensorId counts = g_.make(Op::SumDim, Shape{experts}, DType::Int64, {marks});
    const TensorId flags = g_.make(Op::GreaterEqual, Shape{experts}, DType::Bool, {counts}, false, 1);
    g_.drop({counts});
    std::int64_t hits = 0;
    for (const std::int64_t count : tokens) hits += count > 0 ? 1 : 0;
    const TensorId hit = g_.make(Op::NonZero, Shape{hits, 1}, DType::Int64, {flags});
    g_.drop({flags}, hit);
    for (const std::int64_t count : tokens) {
      if (count > 0) expert(marks, hit, count);
    }
    g_.drop({marks, hit});
    for (TensorId* variable : {&places_, &rows_, &state_, &gate_, &up_, &both_, &hidden_of_expert_, &gated_, &plain_}) {
      if (*variable != kNone) g_.drop({*variable});
    }
    return out_;
  }

 private:
  void expert(TensorId marks, TensorId hit, std::int64_t count) {
    const Dimensions& d = g_.dims();
    const std::int64_t tokens = g_.shape(hidden_).dims[0];
    const TensorId none = g_.make(Op::Equal, Shape{}, DType::Bool, {hit}, false, static_cast<double>(d.experts));
    g_.drop({none}, none);
    const TensorId own = g_.view(marks, Shape{d.experts_per_token, tokens}, Op::Select);
    const TensorId found = g_.make(Op::NonZero, Shape{count, 2}, DType::Int64, {own}, false, lies_apart(own) ? 1 : 0);
    const std::vector<TensorId> columns = g_.split(Op::Unbind, found, {Shape{count}, Shape{count}}, 1);
    g_.drop({own, found}, found);
    rebind(g_, places_, columns[0]);
    rebind(g_, rows_, columns[1]);
    rebind(g_, state_, g_.make(Op::Index, Shape{count, d.hidden}, g_.dtype(hidden_), {hidden_, rows_}, true));
    parts_.biased ? clamped() : gated();
    const TensorId column = g_.view(routed_.weights, Shape{tokens, d.experts_per_token, 1});
    const TensorId weights =
        g_.make(Op::Index, Shape{count, 1}, g_.dtype(routed_.weights), {column, rows_, places_}, true);
    g_.drop({column});
    const TensorId weighted = g_.binary(Op::Mul, parts_.biased ? plain_ : hidden_of_expert_, weights);
    g_.drop({weights});
    rebind(g_, hidden_of_expert_, weighted);
    const TensorId narrow = g_.cast(weighted, g_.dtype(hidden_));
    rebind(g_, out_, g_.in_place(Op::IndexAdd, out_, rows_, 0, 0, narrow));
    g_.drop({narrow});
  }

  void gated() {
    const TensorId both = through("gate_up_proj", state_, 2 * parts_.ffn);
    const std::vector<TensorId> halves = split_last(g_, both, equal_widths(g_, both, 2));
    g_.drop({both});
    rebind(g_, gate_, halves[0]);
    rebind(g_, up_, halves[1]);
    const TensorId active = experts_activation(g_, experts_, gate_);
    const TensorId product = g_.binary(Op::Mul, active, up_);
    g_.drop({active});
    rebind(g_, hidden_of_expert_, product);
    rebind(g_, hidden_of_expert_, through("down_proj", hidden_of_expert_, g_.dims().hidden));
  }

  void clamped() {
    rebind(g_, both_, through("gate_up_proj", state_, 2 * parts_.ffn));
    rebind(g_, gated_, apply_clamped_gate(g_, both_));
    rebind(g_, plain_, through("down_proj", gated_, g_.dims().hidden));
  }

  // The marks of one expert lie as many apart as there are experts.
  [[nodiscard]] bool lies_apart(TensorId own) const {
    return g_.dims().experts > 1 && g_.shape(own).elements().value() > 1;
  }

  // nn.functional.linear over one expert's part of the weight; gpt_oss multiplies and adds by itself.
  TensorId through(std::string_view name, TensorId x, std::int64_t features) {
    const TensorId weight = part_of(name);
    if (!parts_.biased) {
      const TensorId out = g_.linear(x, weight, kNone, features);
      g_.drop({weight});
      return out;
    }
    const TensorId low_weight = g_.lowered(weight);
    const TensorId low_x = g_.lowered(x);
    const Shape shape{g_.shape(x).dims[0], features};
    const TensorId product = g_.make(Op::Mm, shape, g_.dtype(low_x), {low_x, low_weight}, true);
    g_.drop({low_x, low_weight, weight});
    const TensorId bias = part_of(std::string(name) + "_bias");
    const TensorId out = g_.binary(Op::Add, product, bias);
    g_.drop({product, bias});
    return out;
  }

  TensorId part_of(std::string_view name) {
    const TensorId whole = g_.parameter(name);
    Shape part;
    for (std::uint8_t i = 1; i < g_.shape(whole).rank; ++i) part.dims[part.rank++] = g_.shape(whole).dims[i];
    return g_.view(whole, part, Op::Select);
  }

  GraphBuilder& g_;
  const ExpertParts& parts_;
  ModuleId experts_;
  TensorId hidden_;
  const Routed& routed_;
  TensorId out_ = kNone;
  // The loop's variables.
  TensorId places_ = kNone;
  TensorId rows_ = kNone;
  TensorId state_ = kNone;
  TensorId gate_ = kNone;
  TensorId up_ = kNone;
  TensorId both_ = kNone;  // gpt_oss, as are the last two.
  TensorId hidden_of_expert_ = kNone;
  TensorId gated_ = kNone;
  TensorId plain_ = kNone;
};

// Which of the model's mixtures it is, from 0.
std::size_t number_of(const GraphBuilder& g, ModuleId experts) {
  std::size_t before = 0;
  for (ModuleId module = 0; module < experts; ++module) {
    if (is_mixture(g.model().module_at(module))) ++before;
  }
  return before;
}

}  // namespace

TensorId run_experts(GraphBuilder& g, const ExpertParts& parts, ModuleId experts, TensorId hidden,
                     const Routed& routed) {
  g.enter(experts);
  TensorId out = kNone;
  switch (g.options().experts) {
    case ExpertsImplementation::GroupedMm: out = grouped_experts(g, parts, experts, hidden, routed); break;
    case ExpertsImplementation::BatchedMm: out = BatchedExperts(g, parts, hidden).run(experts, hidden, routed); break;
    case ExpertsImplementation::Loop: {
      const Dimensions& d = g.dims();
      const std::vector<std::int64_t> tokens = tokens_of_experts(
          g.options().routing, number_of(g, experts), {g.shape(hidden).dims[0], d.experts_per_token, d.experts});
      out = ExpertLoop(g, parts, experts, hidden, routed).run(tokens);
      break;
    }
  }
  g.exit(experts);
  return out;
}

}  // namespace dsplan
