// deberta-v2 under each of its heads: transformers' DisentangledSelfAttention, module by module. A score is the product
// of query and key, plus what a query says of the distance (c2p), plus what the distance says of the key (p2c).
#include "model/graphs/activations.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/encoders/embedded.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// build_relative_position: how far each pair of places is apart, in int64, by buckets if the model has some. The
// buckets are TorchScript's, operator by operator, as in its first run.
class Distances {
 public:
  Distances(GraphBuilder& g, std::int64_t seq) : g_(g), square_{seq, seq} {}

  TensorId make(bool bucketed) {
    const std::int64_t seq = square_.dims[0];
    const TensorId rows = arange(g_, seq);
    const TensorId columns = arange(g_, seq);
    const TensorId turned = g_.view(rows, Shape{seq, 1});
    const TensorId flat = g_.view(columns, Shape{1, seq});
    const TensorId apart = g_.make(Op::Sub, square_, DType::Int64, {turned, flat});
    g_.drop({turned, flat});
    TensorId out = apart;
    if (bucketed) {
      const TensorId wide = buckets(apart);
      g_.drop({apart});
      out = of(Op::Cast, wide, DType::Int64);
      g_.drop({wide});
    }
    g_.drop({rows, columns});
    return out;
  }

 private:
  TensorId of(Op op, TensorId x, DType dtype) { return g_.make(op, square_, dtype, {x}); }
  TensorId next(Op op, TensorId x, DType dtype) {
    const TensorId out = of(op, x, dtype);
    g_.drop({x});
    return out;
  }

  // make_log_bucket_position, in fp32. A sign is a distance that is clamped to one.
  TensorId buckets(TensorId apart) {
    const TensorId sign = g_.make(Op::Clamp, square_, DType::Int64, {apart}, false, 1);
    const TensorId sizes = sizes_of(apart);
    const TensorId far = far_buckets(sizes);
    const TensorId near = of(Op::Less, sizes, DType::Bool);
    g_.drop({sizes});
    const TensorId wide = of(Op::Cast, apart, DType::Float32);
    const TensorId signed_far = g_.make(Op::Mul, square_, DType::Float32, {far, sign});
    g_.drop({far, sign});
    const TensorId out = g_.make(Op::Where, square_, DType::Float32, {near, wide, signed_far});
    g_.drop({near, wide, signed_far});
    return out;
  }

  // Of those nearer than the middle one number stands for all.
  TensorId sizes_of(TensorId apart) {
    const TensorId before = of(Op::Less, apart, DType::Bool);
    const TensorId behind = of(Op::GreaterEqual, apart, DType::Bool);
    const TensorId near = g_.make(Op::BitwiseOr, square_, DType::Bool, {before, behind});
    g_.drop({before, behind});
    const TensorId middle = g_.filled(Shape{}, DType::Int64, 0);
    const TensorId size = of(Op::Abs, apart, DType::Int64);
    const TensorId out = g_.make(Op::Where, square_, DType::Int64, {near, middle, size});
    g_.drop({near, middle, size});
    return out;
  }

  // ceil(log(size / middle) / log(most / middle) * (middle - 1)) + middle. To round up has no row of its own.
  TensorId far_buckets(TensorId sizes) {
    TensorId x = of(Op::DivScalar, sizes, DType::Float32);
    for (const Op op : {Op::Log, Op::DivScalar, Op::MulScalar, Op::Clamp, Op::AddScalar}) {
      x = next(op, x, DType::Float32);
    }
    return x;
  }

  GraphBuilder& g_;
  Shape square_;
};

// What every layer is given.
struct Given {
  TensorId mask = kNone;
  TensorId apart = kNone;
  TensorId distances = kNone;
};

// DisentangledSelfAttention.
class Disentangled {
 public:
  Disentangled(GraphBuilder& g, const ModelSpec& model) : g_(g), d_(model.dims), kinds_(model.parts->disentangled) {}

  TensorId of(ModuleId self, TensorId hidden, const Given& given) {
    g_.enter(self);
    const TensorId q = projected(self, "query_proj", hidden);
    const TensorId k = projected(self, "key_proj", hidden, !kinds_.of_keys);
    const TensorId v = projected(self, "value_proj", hidden);
    const TensorId columns = turned(k);
    const TensorId scaled = rebound(g_, columns, g_.unary(Op::DivScalar, columns));
    TensorId scores = rebound(g_, scaled, product(q, scaled));
    TensorId distances = kNone;
    TensorId added = kNone;
    if (kinds_.relative) {
      distances = dropout_module(g_, g_.child(self, "pos_dropout"), given.distances, d_.residual_dropout);
      const TensorId rows = g_.view(distances, Shape{1, 2 * kinds_.span, d_.hidden});
      added = distance_scores(self, q, k, given.apart, rows);
      g_.drop({rows});
      scores = rebound(g_, scores, g_.binary(Op::Add, scores, added));
    }
    const Shape by_head{g_.options().micro_batch, d_.heads, g_.options().seq, g_.options().seq};
    scores = rebound(g_, scores, g_.view(scores, by_head));
    const TensorId counted = g_.make(Op::Cast, g_.shape(given.mask), DType::Bool, {given.mask});
    const TensorId others = g_.make(Op::BitwiseNot, g_.shape(counted), DType::Bool, {counted});
    scores = rebound(g_, scores, g_.make(Op::MaskedFill, by_head, g_.dtype(scores), {scores, others}, true));
    g_.drop({others});
    TensorId weights = g_.unary(Op::Softmax, scores);
    weights = rebound(g_, weights, dropout_module(g_, g_.child(self, "dropout"), weights, d_.attention_dropout));
    const TensorId rows = g_.view(weights, by_pairs());
    const TensorId out = merged_heads(g_, rebound(g_, rows, product(rows, v)));
    g_.drop({counted, scores, weights, q, k, v});
    if (kinds_.relative) g_.drop({added, distances});
    g_.exit(self);
    return out;
  }

 private:
  [[nodiscard]] Shape by_pairs() const {
    return Shape{g_.options().micro_batch * d_.heads, g_.options().seq, g_.options().seq};
  }
  // transpose_for_scores: [B, S, H * D] to [B * H, S, D]; uses up `x`. `turns`: the gradient comes turned, so that of
  // one row it is a matrix as it lies.
  TensorId rows_of(TensorId x, bool turns) {
    const Shape from = g_.shape(x);
    const Shape rows{from.dims[0] * d_.heads, from.dims[1], d_.head_dim};
    const bool copies = d_.heads > 1 && from.dims[1] > 1;
    const bool back = copies && !(turns && g_.options().micro_batch == 1);
    const TensorId swapped = by_heads(g_, x, d_.heads, d_.head_dim, back);
    const TensorId copied = rebound(g_, swapped, copies ? g_.copy(swapped) : g_.keep(swapped));
    return rebound(g_, copied, g_.view(copied, rows));
  }

  TensorId projected(ModuleId self, std::string_view name, TensorId x, bool turns = false) {
    return rows_of(linear_module(g_, g_.child(self, name), x, d_.hidden), turns);
  }

  TensorId turned(TensorId x) {
    const Shape from = g_.shape(x);
    return g_.view(x, Shape{from.dims[0], from.dims[2], from.dims[1]}, {step_swap(1, 2)});
  }

  TensorId product(TensorId a, TensorId b) {
    const TensorId low_b = g_.lowered(b);
    const TensorId low_a = g_.lowered(a);
    const Shape shape{g_.shape(a).dims[0], g_.shape(a).dims[1], g_.shape(b).dims[2]};
    const TensorId out = g_.make(Op::Bmm, shape, g_.dtype(low_a), {low_a, low_b}, true);
    g_.drop({low_b, low_a});
    return out;
  }

  // Distances, projected, for each row of the batch.
  TensorId projected_distances(ModuleId self, std::string_view name, TensorId distances) {
    const TensorId one = projected(self, name, distances, true);
    Shape all = g_.shape(one);
    all.dims[0] *= g_.options().micro_batch;
    // Repeated once it is a copy, whose gradient is the copy's.
    if (all == g_.shape(one)) return rebound(g_, one, g_.copy(one));
    return rebound(g_, one, g_.make(Op::Repeat, all, g_.dtype(one), {one}, true));
  }

  // clamp(apart + span, 0, 2 * span - 1), or of minus apart.
  TensorId places_of(TensorId apart, bool backwards) {
    const Shape square = g_.shape(apart);
    TensorId x = g_.keep(apart);
    if (backwards) x = rebound(g_, x, g_.make(Op::Neg, square, DType::Int64, {x}));
    x = rebound(g_, x, g_.make(Op::AddScalar, square, DType::Int64, {x}, false, static_cast<double>(kinds_.span)));
    return rebound(g_, x, g_.make(Op::Clamp, square, DType::Int64, {x}));
  }

  // What `rows` say of each distance, picked for each pair. Then over the root of a head's width. Where each pair looks
  // is worked out behind the product or, backwards, before it.
  struct Picked {
    TensorId places = kNone;  // Variables until the function returns.
    TensorId scores = kNone;
    TensorId scaled = kNone;
  };
  Picked picked(TensorId rows, TensorId distances, TensorId apart, bool backwards) {
    TensorId places = backwards ? places_of(apart, true) : kNone;
    const TensorId columns = turned(distances);
    const TensorId all = product(rows, columns);
    if (!backwards) places = places_of(apart, false);
    const TensorId spread = g_.view(places, by_pairs(), Op::Expand);
    const TensorId chosen = g_.make(Op::Gather, by_pairs(), g_.dtype(all), {all, spread}, true);
    g_.drop({columns, spread, all});
    const TensorId scores = backwards ? rebound(g_, chosen, turned(chosen)) : chosen;
    return {places, scores, g_.unary(Op::DivScalar, scores)};
  }

  TensorId distance_scores(ModuleId self, TensorId q, TensorId k, TensorId apart, TensorId distances) {
    const bool shared =
        g_.model().child(self, "pos_key_proj") == kNone && g_.model().child(self, "pos_query_proj") == kNone;
    TensorId of_keys = kNone;
    TensorId of_queries = kNone;
    if (shared) of_keys = projected_distances(self, "query_proj", distances);
    if (shared || kinds_.of_queries) {
      of_queries = projected_distances(self, shared ? "key_proj" : "pos_key_proj", distances);
    }
    if (!shared && kinds_.of_keys) of_keys = projected_distances(self, "pos_query_proj", distances);
    TensorId sum = kNone;
    std::vector<TensorId> held;
    if (kinds_.of_queries) {
      const Picked one = picked(q, of_queries, apart, false);
      held.insert(held.end(), {one.places, one.scores});
      sum = rebound(g_, one.scaled, g_.unary(Op::AddScalar, one.scaled));
    }
    if (kinds_.of_keys) {
      const Picked one = picked(k, of_keys, apart, true);
      held.insert(held.end(), {one.places, one.scores});
      const TensorId joint = sum == kNone ? g_.unary(Op::AddScalar, one.scaled) : g_.in_place(Op::Add, sum, one.scaled);
      if (sum != kNone) g_.drop({sum});
      sum = rebound(g_, one.scaled, joint);
    }
    for (const TensorId one : {of_keys, of_queries}) {
      if (one != kNone) g_.drop({one});
    }
    for (const TensorId one : held) g_.drop({one});
    return sum;
  }

  GraphBuilder& g_;
  const Dimensions& d_;
  const DisentangledParts& kinds_;
};

class DebertaGraph {
 public:
  DebertaGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options),
        d_(model.dims),
        kinds_(model.parts->disentangled),
        body_(g_.child(g_.causal(), "deberta")),
        encoder_(g_.child(body_, "encoder")) {}

  Graph build() {
    const TextBatch batch = begin_text(g_);
    const TensorId hidden = body(batch.ids);
    if (batch.of_text) return end_text(hidden, batch);
    const TensorId logits = batch.words ? word_logits(hidden) : token_logits(hidden);
    const TensorId loss = class_loss(g_, logits, batch.labels);
    g_.drop({hidden});
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  [[nodiscard]] ModuleId root(std::string_view name) const { return g_.child(g_.causal(), name); }

  TensorId table(ModuleId parent, std::string_view name, TensorId ids) {
    return table_module(g_, g_.child(parent, name), ids);
  }

  // Zeros in the place of positions that nobody learned live as long as positions would.
  TensorId embeddings(TensorId ids, TensorId ones, TensorId types) {
    const ModuleId module = g_.child(body_, "embeddings");
    g_.enter(module);
    const bool placed = g_.model().child(module, "position_embeddings") != kNone;
    const bool typed = g_.model().child(module, "token_type_embeddings") != kNone;
    const TensorId numbers = g_.slice(g_.buffer("position_ids"), 1, 0, g_.options().seq);
    const TensorId words = table(module, "word_embeddings", ids);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const TensorId places =
        placed ? table(module, "position_embeddings", numbers) : g_.filled(g_.shape(words), g_.dtype(words), 0);
    TensorId sum = placed ? g_.binary(Op::Add, words, places) : g_.keep(words);
    const TensorId kinds = typed ? table(module, "token_type_embeddings", types) : kNone;
    if (typed) sum = rebound(g_, sum, g_.binary(Op::Add, sum, kinds));
    sum = rebound(g_, sum, norm_module(g_, NormKind::Layer, g_.child(module, "LayerNorm"), sum));
    const TensorId column = g_.view(ones, Shape{g_.options().micro_batch, g_.options().seq, 1});
    const TensorId mask = g_.cast(column, g_.dtype(sum));
    g_.drop({column});
    sum = rebound(g_, sum, g_.binary(Op::Mul, sum, mask));
    sum = rebound(g_, sum, dropout_module(g_, g_.child(module, "dropout"), sum, d_.embedding_dropout));
    g_.drop({mask, words, places, numbers});
    if (typed) g_.drop({kinds});
    g_.exit(module);
    return sum;
  }

  // LayerNorm(dropout(dense(x)) + residual).
  TensorId output(ModuleId module, TensorId x, TensorId residual) {
    g_.enter(module);
    TensorId out = linear_module(g_, g_.child(module, "dense"), x, d_.hidden);
    out = rebound(g_, out, dropout_module(g_, g_.child(module, "dropout"), out, d_.residual_dropout));
    const TensorId sum = g_.binary(Op::Add, out, residual);
    const TensorId normed = norm_module(g_, NormKind::Layer, g_.child(module, "LayerNorm"), sum);
    g_.drop({sum, out});
    g_.exit(module);
    return normed;
  }

  TensorId layer(ModuleId module, TensorId hidden, const Given& given) {
    g_.enter(module);
    const ModuleId around = g_.child(module, "attention");
    g_.enter(around);
    const TensorId attended = Disentangled(g_, g_.model()).of(g_.child(around, "self"), hidden, given);
    const TensorId middle = rebound(g_, attended, output(g_.child(around, "output"), attended, hidden));
    g_.exit(around);
    const ModuleId intermediate = g_.child(module, "intermediate");
    g_.enter(intermediate);
    const TensorId wide = linear_module(g_, g_.child(intermediate, "dense"), middle, d_.ffn);
    const TensorId active =
        rebound(g_, wide, activation_module(g_, g_.child(intermediate, "intermediate_act_fn"), wide));
    g_.exit(intermediate);
    const TensorId out = output(g_.child(module, "output"), active, middle);
    g_.drop({active, middle});
    g_.exit(module);
    return out;
  }

  // ConvLayer: LayerNorm(act(dropout(conv(embedded))) + hidden). Two permutes make its gradient come token by token.
  TensorId convolved(ModuleId module, TensorId embedded, TensorId hidden, TensorId ones) {
    g_.enter(module);
    const Shape by_token = g_.shape(hidden);
    const Shape by_channel{by_token.dims[0], by_token.dims[2], by_token.dims[1]};
    const bool copies = by_token.dims[1] > 1 && by_token.dims[2] > 1;
    const TensorId turned = g_.view(embedded, by_channel, {step_swap(1, 2)});
    const TensorId given = rebound(g_, turned, copies ? g_.copy(turned) : g_.keep(turned));
    const ModuleId inner = g_.child(module, "conv");
    g_.enter(inner);
    const TensorId made = convolution(g_, by_channel, given, copies);
    g_.exit(inner);
    g_.drop({given});
    const TensorId back = rebound(g_, made, g_.view(made, by_token, {step_swap(1, 2)}));
    TensorId out = rebound(g_, back, copies ? g_.copy(back) : g_.keep(back));
    const TensorId missing = g_.unary(Op::AddScalar, ones);
    const TensorId flags = rebound(g_, missing, g_.make(Op::Cast, g_.shape(ones), DType::Bool, {missing}));
    const TensorId column = g_.view(flags, Shape{by_token.dims[0], by_token.dims[1], 1});
    const TensorId spread = rebound(g_, column, g_.view(column, by_token, Op::Expand));
    out = rebound(g_, out, g_.in_place(Op::MaskedFillInPlace, out, spread));
    g_.drop({spread});
    const TensorId dropped = dropout_module(g_, g_.child(module, "dropout"), out, d_.residual_dropout);
    const TensorId active = rebound(g_, dropped, activated(g_, kinds_.convolution, dropped));
    out = rebound(g_, out, active);
    const TensorId sum = g_.binary(Op::Add, hidden, out);
    const TensorId wide = norm_module(g_, NormKind::Layer, g_.child(module, "LayerNorm"), sum);
    const TensorId normed = rebound(g_, wide, g_.cast(wide, g_.dtype(sum)));
    const TensorId counted = g_.view(ones, Shape{by_token.dims[0], by_token.dims[1], 1});
    const TensorId mask = rebound(g_, counted, g_.cast(counted, g_.dtype(normed)));
    const TensorId masked = g_.binary(Op::Mul, normed, mask);
    g_.drop({out, flags, sum, normed, mask, hidden});
    g_.exit(module);
    return masked;
  }

  // The table of distances is read without a call of its module.
  Given given_of(TensorId ones) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    Given given;
    const TensorId of_keys = g_.view(ones, Shape{batch, 1, 1, seq});
    const TensorId of_queries = g_.view(ones, Shape{batch, 1, seq, 1});
    given.mask = g_.binary(Op::Mul, of_keys, of_queries);
    g_.drop({of_keys, of_queries});
    if (!kinds_.relative) return given;
    given.apart = Distances(g_, seq).make(kinds_.bucketed);
    const TensorId rows = asked(g_, g_.child(encoder_, "rel_embeddings"), "weight");
    const ModuleId norm = g_.model().child(encoder_, "LayerNorm");
    if (norm == kNone) {
      given.distances = g_.keep(rows);
      return given;
    }
    // ZeRO-3's hook detaches what a module is given, and a parameter's memory stays with that.
    const TensorId handed = g_.options().stage3_linear ? g_.view(rows, g_.shape(rows)) : g_.keep(rows);
    given.distances = norm_module(g_, NormKind::Layer, norm, handed);
    g_.drop({handed});
    return given;
  }

  // The model asks for the states behind every layer, and holds them until it returns.
  TensorId body(TensorId ids) {
    g_.enter(body_);
    const TensorId ones = g_.filled(g_.shape(ids), DType::Float32, 1);
    const TensorId types = g_.filled(g_.shape(ids), DType::Int64, 0);
    const TensorId embedded = embeddings(ids, ones, types);
    g_.enter(encoder_);
    const Given given = given_of(ones);
    std::vector<TensorId> states;
    TensorId hidden = g_.keep(embedded);
    for (const ModuleId module : modules_of(g_.model(), g_.child(encoder_, "layer"))) {
      std::vector<TensorId> named;
      if (kinds_.relative) named = {given.apart, given.distances};
      const std::int32_t region = g_.begin_region({{hidden, given.mask}, std::move(named), {}, {}});
      const TensorId out = layer(module, hidden, given);
      g_.end_region(region);
      hidden = rebound(g_, hidden, out);
      if (states.empty() && !kinds_.convolution.empty()) {
        hidden = convolved(g_.child(encoder_, "conv"), embedded, hidden, ones);
      }
      states.push_back(g_.keep(hidden));
    }
    g_.drop({given.mask});
    if (kinds_.relative) g_.drop({given.apart, given.distances});
    g_.exit(encoder_);
    for (const TensorId one : states) g_.drop({one});
    g_.drop({embedded, ones, types});
    g_.exit(body_);
    return hidden;
  }

  TensorId word_logits(TensorId hidden) {
    const ModuleId head = root("cls");
    const ModuleId predictions = g_.child(head, "predictions");
    const ModuleId transform = g_.child(predictions, "transform");
    for (const ModuleId module : {head, predictions, transform}) g_.enter(module);
    TensorId x = linear_module(g_, g_.child(transform, "dense"), hidden, d_.hidden);
    x = rebound(g_, x, activation_module(g_, g_.child(transform, "transform_act_fn"), x));
    x = rebound(g_, x, norm_module(g_, NormKind::Layer, g_.child(transform, "LayerNorm"), x));
    g_.exit(transform);
    x = rebound(g_, x, linear_module(g_, g_.child(predictions, "decoder"), x, d_.vocab));
    g_.exit(predictions);
    g_.exit(head);
    return x;
  }

  TensorId token_logits(TensorId hidden) {
    const TensorId dropped = dropout_module(g_, root("dropout"), hidden, d_.classifier_dropout);
    return rebound(g_, dropped, linear_module(g_, root("classifier"), dropped, d_.labels));
  }

  // ContextPooler, of the first token.
  TensorId pooled(TensorId hidden) {
    const ModuleId pooler = root("pooler");
    g_.enter(pooler);
    const TensorId token = first_place(g_, hidden);
    const TensorId first =
        rebound(g_, token, dropout_module(g_, g_.child(pooler, "dropout"), token, kinds_.pooler_dropout));
    TensorId out = linear_module(g_, g_.child(pooler, "dense"), first, d_.hidden);
    out = rebound(g_, out, activated(g_, kinds_.pooler_activation, out));
    g_.drop({first});
    g_.exit(pooler);
    return out;
  }

  // Without problem_type the rows that have a label are looked for, here all of them, and their loss is in fp32.
  Graph end_text(TensorId hidden, const TextBatch& batch) {
    TensorId x = pooled(hidden);
    x = rebound(g_, x, dropout_module(g_, root("dropout"), x, d_.classifier_dropout));
    TensorId logits = linear_module(g_, root("classifier"), x, d_.labels);
    const TensorId labels = batch.labels;
    TensorId loss = kNone;
    if (!kinds_.names_problem && batch.number) {  // logits = logits.view(-1).to(labels.dtype)
      const TensorId row = g_.view(logits, g_.shape(labels));
      logits = rebound(g_, logits, g_.cast(row, DType::Float32));
      g_.drop({row});
    }
    if (kinds_.names_problem || batch.number) {
      loss = loss_of_text(g_, batch, logits);
    } else {
      const std::int64_t rows = g_.options().micro_batch;
      const TensorId flags = g_.make(Op::GreaterEqual, Shape{rows}, DType::Bool, {labels});
      const TensorId labelled = g_.make(Op::Arange, Shape{rows, 1}, DType::Int64, {});
      g_.drop({flags});
      const TensorId spread = g_.view(labelled, g_.shape(logits), Op::Expand);
      const TensorId chosen = g_.make(Op::Gather, g_.shape(logits), g_.dtype(logits), {logits, spread}, true);
      const TensorId column = g_.view(labelled, Shape{rows});
      const TensorId targets = g_.make(Op::Gather, Shape{rows}, DType::Int64, {labels, column});
      g_.drop({spread, column});
      loss = class_loss(g_, chosen, targets, true);
      g_.drop({chosen, targets, labelled});
    }
    g_.drop({x, hidden});
    return g_.finish(end_model(g_, logits, loss));
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DisentangledParts& kinds_;
  ModuleId body_;
  ModuleId encoder_;
};

}  // namespace

Graph build_deberta_graph(const ModelSpec& model, const GraphOptions& options) {
  return DebertaGraph(model, options).build();
}

}  // namespace dsplan
