// Decoders as a choice of parts (model/parts.h). The functions follow transformers' modules one by one; a `drop` stands
// where a Python variable or frame lets go of a tensor.
#include <algorithm>

#include "core/error.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/decoders/gemma4.h"
#include "model/graphs/decoders/text_heads.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pairs/preference.h"
#include "model/graphs/pictures/gemma4_tower.h"
#include "model/graphs/pictures/grid_tower.h"
#include "model/graphs/pictures/mllama.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"
#include "model/graphs/trl.h"
#include "model/traits.h"

namespace dsplan {
namespace {

// The language model is one of the root's own, head and all (llama4).
bool is_inside(const DecoderParts& p) { return p.tower != nullptr && p.tower->projection == ProjectorKind::Adapted; }

// Beside a tower it is inside of what holds both.
ModuleId text_body(const GraphBuilder& g, const DecoderParts& p) {
  if (is_inside(p)) return g.child(g.child(g.causal(), "language_model"), p.body);
  const ModuleId body = g.child(g.causal(), p.body);
  return p.tower == nullptr ? body : g.child(body, p.tower->language);
}

// arange(seq), since 5.0 plus the length of a cache, unsqueezed.
TensorId numbered_positions(GraphBuilder& g) {
  TensorId range = arange(g, g.options().seq);
  if (g.options().transformers >= Version{5, 0, 0}) {
    const TensorId shifted = g.make(Op::AddScalar, Shape{g.options().seq}, DType::Int64, {range});
    g.drop({range});
    range = shifted;
  }
  const TensorId row = g.view(range, Shape{1, g.options().seq});
  g.drop({range});
  return row;
}

// The same numbers along each of three axes.
TensorId same_along_axes(GraphBuilder& g) {
  const TensorId row = numbered_positions(g);
  const TensorId same = g.view(row, Shape{3, g.options().micro_batch, g.options().seq}, Op::Expand);
  g.drop({row});
  return same;
}

// PaliGemmaModel's: one more than that.
TensorId positions_from_one(GraphBuilder& g) {
  const TensorId row = numbered_positions(g);
  const TensorId out = g.make(Op::AddScalar, g.shape(row), DType::Int64, {row});
  g.drop({row});
  return out;
}

// glm4v_moe's layers are told of numbers that have three axes; others that have such are told of none.
bool told_of_axes(const DecoderParts& p) { return p.rotary.three_axes && p.experts.router == Router::Fp32Sigmoid; }

// What the batch has of pictures. kNone: nothing of the kind.
using ShownBatch = GridBatch;
ShownBatch shown_batch(GraphBuilder& g, const TowerParts* tower, TensorId ids) {
  const std::int64_t pictures = g.options().images * g.options().micro_batch;
  if (pictures == 0) return {};
  if (tower->projection == ProjectorKind::Crossed) return crossed_batch(g, *tower);
  if (tower->projection == ProjectorKind::Unfolded) return pixtral_batch(g, *tower, pictures);
  if (tower->projection == ProjectorKind::Embedded) return padded_batch(g, *tower, pictures);
  if (!tower->cuts.empty()) return tiled_batch(g, *tower, pictures);
  if (tower->merge > 0) return grid_batch(g, *tower, pictures);
  if (tower->projection == ProjectorKind::Connected) return masked_batch(g, *tower);
  ShownBatch batch;
  batch.pixels = pixel_input(g, *tower, pictures);
  if (tower->sees_itself) batch.types = g.batch_input(g.shape(ids), DType::Int64);
  return batch;
}

// Towers of squares, and those whose patches are not numbered along three axes.
Pictured pictured(GraphBuilder& g, const TowerParts& tower, ModuleId outer, const ShownBatch& batch, TensorId ids,
                  TensorId embedded) {
  if (!tower.cuts.empty()) return show_tiles(g, tower, outer, batch, ids, embedded);
  if (tower.projection == ProjectorKind::Unfolded) return show_pixtral(g, tower, outer, batch, ids, embedded);
  if (tower.projection == ProjectorKind::Connected) return show_connected(g, tower, outer, batch, ids, embedded);
  return show_pictures(g, tower, outer, batch.pixels, ids, embedded);
}

// output(act(gate) * up) of the layer's own, beside what experts give.
Mixed own_shared(GraphBuilder& g, const DecoderParts& p, ModuleId layer, TensorId hidden) {
  Mixed fed;
  if (g.dims().experts > 0) {
    ExpertParts routed = p.experts;
    routed.shared_ffn = 0;
    fed.routed = moe_block(g, routed, g.child(layer, p.experts.block), hidden, {}).out;
  }
  fed.out = mlp_module(g, p, g.child(layer, p.feed_forward), hidden, p.experts.shared_ffn);
  if (fed.routed == kNone) return fed;
  const TensorId sum = g.binary(Op::Add, fed.routed, fed.out);
  g.drop({fed.out});
  fed.out = sum;
  return fed;
}

// Attention, or the mixer that stands in its place.
Attended mixed_tokens(GraphBuilder& g, const DecoderParts& p, ModuleId layer, TensorId normed,
                      const LayerInputs& given) {
  if (!given.recurs) return attention_module(g, p, g.child(layer, p.attention), normed, given);
  if (p.convolution.kernel > 0) {
    return {short_convolution(g, p.convolution, g.child(layer, p.convolution.module), normed), kNone};
  }
  if (p.delta.heads > 0) return {delta_mixer(g, p.delta, g.child(layer, "linear_attn"), normed), kNone};
  return {mamba_mixer(g, p.mamba, g.child(layer, p.mamba.module), normed), kNone};
}

// One norm and one module, whose result takes the name of what the norm gave (nemotron_h). `feed` is the layer's MLP or
// its mixture.
template <class Feed>
TensorId one_module(GraphBuilder& g, const DecoderParts& p, ModuleId layer, TensorId hidden, const LayerInputs& given,
                    const Feed& feed) {
  const ModuleId before = g.child(layer, p.before_attention);
  const TensorId narrow = g.cast(hidden, g.dtype(g.parameter_of(before, "weight")));
  const TensorId normed = norm_module(g, p.norm, before, narrow);
  g.drop({narrow});
  Attended made;
  if (given.mixer == MixerKind::Recurrent) {
    made.flat = mamba_mixer(g, p.mamba, g.child(layer, p.mamba.module), normed);
  } else if (given.mixer == MixerKind::Attention) {
    made = attention_module(g, p, g.child(layer, p.attention), normed, given);
  } else {
    made.flat = feed(normed);
  }
  g.drop({normed});
  const TensorId out = g.binary(Op::Add, hidden, made.flat);
  g.drop({made.flat});
  if (made.weights != kNone) g.drop({made.weights});
  return out;
}

// The head of a language model inside of the root, and the root's loss.
TensorId end_inside(GraphBuilder& g, TensorId hidden, TensorId labels, const std::vector<TensorId>& locals,
                    const std::vector<TensorId>& others) {
  const ModuleId language = g.child(g.causal(), "language_model");
  const TensorId logits = vocabulary_head(g, g.child(language, "lm_head"), hidden);
  g.drop({hidden});
  g.exit(language);
  return returned_loss(g, logits, labels, locals, others);
}

// fully_shard casts what floats of what a layer is given, inside its checkpoint (_fsdp_state.py, _pre_forward), and the
// layer's frame holds it. Complex tables have no second one.
Waves narrowed(GraphBuilder& g, const Waves& given) {
  if (!g.options().casts_given || given.sin == kNone || g.dtype(given.sin) != DType::Float32) return given;
  return {g.cast(given.cos, g.options().dtype), g.cast(given.sin, g.options().dtype)};
}

// kNone where it has no name.
ModuleId named_child(const GraphBuilder& g, ModuleId parent, std::string_view name) {
  return name.empty() ? kNone : g.model().child(parent, name);
}

// Preference trainers that ask for all logits, which `answering` gives.
template <class Answering>
Graph whole_logits_model(GraphBuilder& g, const Answering& answering) {
  const Loss loss = g.options().loss;
  if (loss == Loss::KtoLogits) return whole_tagged_model(g, answering);
  if (loss == Loss::KtoRows) return rowwise_tagged_model(g, answering);
  if (asks_for_prompts(loss)) return rowwise_model_alone(g, answering);
  return row_by_row(loss) ? rowwise_preference_model(g, answering) : whole_preference_model(g, answering);
}

TensorId multiplied(GraphBuilder& g, const DecoderParts& p, TensorId embedded) {
  if (p.embedding_multiplier == 0) return embedded;
  const TensorId scaled = g.unary(Op::MulScalar, embedded, p.embedding_multiplier);
  g.drop({embedded});
  return scaled;
}

// Layers that are not called have regions without arguments, so that those behind them have their own numbers.
void number_behind_tower(const ModelSpec& model, Graph& graph) {
  std::int32_t skipped = model.dims.layers > 0 ? static_cast<std::int32_t>(model.dims.layers) : 0;
  for (const Instruction& one : graph.program) {
    if (one.kind != Instruction::Kind::Enter) continue;
    const std::int32_t layer = model.module_at(one.module()).layer;
    if (layer != kNone) skipped = std::min(skipped, layer);
  }
  graph.regions.insert(graph.regions.begin(), static_cast<std::size_t>(skipped), Region{});
  for (Instruction& one : graph.program) {
    const bool region = one.kind == Instruction::Kind::RegionBegins || one.kind == Instruction::Kind::RegionEnds;
    if (region) one = {one.kind, one.region() + skipped};
  }
}

// By kind of layer: one mask for full attention, one for a sliding window. kNone where there is none of the kind.
struct Masks {
  TensorId full = kNone;
  TensorId sliding = kNone;
};
Masks masks_of(GraphBuilder& g, const DecoderParts& p, TensorId position_ids, TensorId ones) {
  // gpt_oss gives it none, so that nobody looks for packed sequences.
  if (p.sinks || !p.tells_numbers) position_ids = kNone;
  const std::int64_t window = g.dims().sliding_window;
  Masks made;
  const bool by_kind = !p.kinds.empty();
  const bool slides = by_kind ? p.some_slide() || p.both_masks : window > 0;
  if (by_kind || !slides) made.full = attention_mask(g, position_ids, ones);
  if (!slides) return made;
  if (p.chunked) {
    made.sliding = chunk_mask(g, position_ids, window);
    return made;
  }
  const bool has_window = window > 0 || p.empty_window;
  made.sliding = attention_mask(g, position_ids, ones, has_window ? std::optional(window) : std::nullopt);
  return made;
}

class DecoderGraph {
 public:
  DecoderGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), p_(*model.parts), model_(text_body(g_, p_)) {}

  Graph build() {
    if (scores_in_pieces(g_.options().loss)) {
      return trl_model(g_, [this](TensorId ids, TensorId ones) {
        model_ = text_body(g_, p_);
        return body(ids, ones, {});
      });
    }
    if (of_whole_logits(g_.options().loss)) {
      const auto answering = [this](TensorId ids, TensorId ones) {
        model_ = text_body(g_, p_);
        const TensorId hidden = body(ids, ones, {});
        const TensorId logits = logits_of(hidden);
        g_.drop({hidden});
        return logits;
      };
      return whole_logits_model(g_, answering);
    }
    const Loss wished = g_.options().loss;
    if (wished == Loss::RewardValues || wished == Loss::Weighted) return beside_own_loss();
    if (of_rewards(g_.options().loss)) {
      return reward_model(g_, [this](TensorId ids, TensorId ones) {
        const TensorId hidden = body(ids, ones, {});
        const TensorId rewards = text_logits(g_, p_, ids, hidden, held_);
        g_.drop({hidden});
        for (TensorId held : held_) g_.drop({held});
        return rewards;
      });
    }
    const TensorId ids = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const bool one = g_.options().labels_are_ids;
    TensorId labels = one ? ids : class_labels(g_, p_, ids);
    const bool masked = batch_has_mask(g_.options().transformers);
    const TensorId ones = masked ? g_.batch_input(g_.shape(ids), DType::Int64) : kNone;
    ShownBatch shown = shown_batch(g_, p_.tower.get(), ids);
    std::vector<TensorId> batch{ids,         one ? kNone : labels, ones,          shown.pixels,
                                shown.grids, shown.types,          shown.crossing};
    std::erase(batch, kNone);
    g_.set_batch(batch);
    g_.enter_model({&shown.pixels, &labels});
    TensorId hidden = p_.tower == nullptr     ? body(ids, ones, {})
                      : shown.pixels == kNone ? unshown_body(ids, ones)
                                              : shown_body(ids, shown);
    TensorId divided = kNone;  // By the body's outputs, a variable.
    if (p_.hidden_divisor > 0) {
      divided = hidden;
      hidden = g_.unary(Op::DivScalar, hidden, p_.hidden_divisor);
    }
    if (is_inside(p_)) return g_.finish(end_inside(g_, hidden, labels, held_by_root_, held_));
    if (p_.head == TextHead::LanguageModel) {
      return g_.finish(causal_loss(
          g_, hidden, labels, [&](TensorId x) { return logits_of(x); }, held_, cache_, divided));
    }
    if (divided != kNone) held_.push_back(divided);
    return g_.finish(classes_loss(g_, p_, ids, hidden, labels, held_, true));
  }

 private:
  // What every layer is told of the tokens' places: numbers, and waves by kind of layer, or one pair for all.
  struct Positions {
    TensorId ids = kNone;
    Waves waves;
    Waves sliding;
    std::vector<Waves> tables;  // Of each rotary module, where there are several.
  };

  // Trainers that have the model compute its loss besides.
  Graph beside_own_loss() {
    const auto tell = [this](const PairBatch& batch, const Given& given) {
      Told made;
      made.last = body(batch.ids, batch.ones, given);
      made.states = std::exchange(states_, {});
      made.logits = logits_of(made.last);
      made.loss = loss_of_whole(g_, made.logits, batch.told);
      return made;
    };
    if (g_.options().loss == Loss::Weighted) {
      return weighed_model(g_, [&](const WeighedBatch& batch) {
        by_name_ = batch.weights;
        return tell(batch.rows, {.numbers = g_.keep(batch.positions)});
      });
    }
    keeps_states_ = true;
    return valued_model(g_, [&](const PairBatch& batch) { return tell(batch, {}); });
  }

  // Each statement rebinds the variable.
  TensorId logits_of(TensorId hidden) {
    TensorId logits = vocabulary_head(g_, g_.child(g_.causal(), "lm_head"), hidden);
    const auto becomes = [&](TensorId next) {
      g_.drop({logits});
      logits = next;
    };
    if (p_.logits_divisor > 0) becomes(g_.unary(Op::DivScalar, logits, p_.logits_divisor));
    if (p_.logits_multiplier > 0) becomes(g_.unary(Op::MulScalar, logits, p_.logits_multiplier));
    if (p_.wide_logits) becomes(g_.cast(logits, DType::Float32));
    if (d_.final_softcap > 0) {
      becomes(g_.unary(Op::DivScalar, logits, d_.final_softcap));
      becomes(g_.unary(Op::Tanh, logits));
      becomes(g_.unary(Op::MulScalar, logits, d_.final_softcap));
    }
    return logits;
  }

  TensorId norm(ModuleId parent, std::string_view name, TensorId x) {
    const ModuleId module = g_.child(parent, name);
    if (g_.model().module_at(module).type != "Identity") {
      return norm_module(g_, p_.norm, module, x);
    }
    g_.enter(module);
    g_.exit(module);
    return g_.keep(x);
  }

  // The layer's MLP or its mixture.
  Mixed feed(ModuleId layer, TensorId hidden) {
    if (p_.own_shared) return own_shared(g_, p_, layer, hidden);
    const ModuleId block = g_.model().child(layer, p_.experts.block);
    const bool mixes = block != kNone && g_.model().child(block, "experts") != kNone;
    const ModuleId module = mixes ? block : g_.child(layer, p_.feed_forward);
    if (!mixes) return {mlp_module(g_, p_, module, hidden, d_.ffn), kNone};
    return moe_block(g_, p_.experts, module, hidden,
                     [&](ModuleId shared, TensorId x) { return mlp_module(g_, p_, shared, x, p_.experts.shared_ffn); });
  }

  // Adds a sublayer's output to the residual stream: normed first, then dropped out or scaled within the sum.
  TensorId join(ModuleId layer, std::string_view post_norm, std::string_view dropout, TensorId residual,
                TensorId branch) {
    if (!post_norm.empty()) {
      const TensorId normed = norm(layer, post_norm, branch);
      g_.drop({branch});
      branch = normed;
    }
    TensorId added = dropout_module(g_, named_child(g_, layer, dropout), branch, d_.residual_dropout);
    if (p_.rebinds_dropout) {
      g_.drop({branch});
      branch = g_.keep(added);
    }
    if (p_.residual_multiplier > 0) {
      const TensorId scaled = g_.unary(Op::MulScalar, added, p_.residual_multiplier);
      g_.drop({added});
      added = scaled;
    }
    const TensorId out = g_.binary(Op::Add, residual, added);
    g_.drop({added, branch});
    return out;
  }

  TensorId serial_layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    const bool first = !p_.before_attention.empty();
    const TensorId normed = first ? norm(module, p_.before_attention, hidden) : g_.keep(hidden);
    const Attended attended = mixed_tokens(g_, p_, module, normed, given);
    const bool held = p_.residual == Residual::SerialHeld;
    const bool named = p_.residual == Residual::SerialNamed;
    if (held || named) {
      g_.keep(attended.flat);
    } else {
      g_.drop({normed});
    }
    const TensorId middle = join(module, p_.after_attention, p_.attention_dropout, hidden, attended.flat);
    if (named) g_.drop({normed});
    const TensorId second = p_.before_mlp.empty() ? g_.keep(middle) : norm(module, p_.before_mlp, middle);
    const Mixed fed = feed(module, second);
    // A second result of the block takes the name of the attention's.
    if (fed.weights != kNone && attended.weights != kNone) g_.drop({attended.weights});
    g_.drop({second});
    const TensorId out = join(module, p_.after_mlp, p_.mlp_dropout, middle, fed.out);
    g_.drop({middle});
    if (held) g_.drop({normed, attended.flat});
    if (named) g_.drop({attended.flat});
    if (fed.routed != kNone) g_.drop({fed.routed});
    if (fed.weights != kNone) {
      g_.drop({fed.weights});
    } else if (attended.weights != kNone) {
      g_.drop({attended.weights});
    }
    return out;
  }

  // Both branches start from the layer's input; each rebinds its variable when it is dropped out.
  TensorId parallel_layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    const TensorId normed = norm(module, p_.before_attention, hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, p_.attention), normed, given);
    const bool two = p_.residual == Residual::ParallelTwoNorms;
    if (two) g_.drop({normed});
    const TensorId from_attention =
        dropout_module(g_, named_child(g_, module, p_.attention_dropout), attended.flat, d_.residual_dropout);
    g_.drop({attended.flat});
    const TensorId second = two ? norm(module, p_.before_mlp, hidden) : normed;
    const TensorId fed = feed(module, second).out;
    if (two) g_.drop({second});
    const TensorId from_mlp = dropout_module(g_, named_child(g_, module, p_.mlp_dropout), fed, d_.residual_dropout);
    g_.drop({fed});
    const bool residual_first = p_.residual == Residual::ParallelResidual;
    const TensorId left = residual_first ? hidden : two ? from_mlp : from_attention;
    const TensorId right = two || residual_first ? from_attention : from_mlp;
    const TensorId sum = g_.binary(Op::Add, left, right);
    const TensorId out = g_.binary(Op::Add, sum, residual_first ? from_mlp : hidden);
    g_.drop({sum, from_attention, from_mlp});
    if (!two) g_.drop({normed});
    if (attended.weights != kNone) g_.drop({attended.weights});
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    g_.enter(module);
    if (given.crosses) {
      const TensorId out = crossing_layer(g_, p_, module, hidden, crossed_);
      g_.exit(module);
      return out;
    }
    if (p_.residual == Residual::OneModule) {
      const TensorId out = one_module(g_, p_, module, hidden, given, [&](TensorId x) { return feed(module, x).out; });
      g_.exit(module);
      return out;
    }
    const bool serial =
        p_.residual == Residual::Serial || p_.residual == Residual::SerialHeld || p_.residual == Residual::SerialNamed;
    const TensorId out = serial ? serial_layer(module, hidden, given) : parallel_layer(module, hidden, given);
    g_.exit(module);
    return out;
  }

  TensorId embed(TensorId ids) {
    const ModuleId module = g_.child(model_, p_.embedding);
    const TensorId out = p_.scaled_embedding ? scaled_words(g_, module, ids) : words_module(g_, module, ids);
    if (g_.options().inputs_require_grad) g_.require_grad(out);
    return p_.multiplies_late ? out : multiplied(g_, p_, out);
  }

  // Layers are not told of numbers that have three axes.
  Positions turned(TensorId position_ids, TensorId along_axes) {
    Positions at;
    if (p_.none_turns()) {
      at.ids = position_ids;
      return at;
    }
    const ModuleId module = g_.child(model_, p_.rotary_module);
    if (p_.rotary.three_axes && along_axes == kNone) {  // The same numbers along each axis (qwen3_5 of text alone).
      at.ids = position_ids;
      const TensorId same = g_.view(position_ids, Shape{3, g_.options().micro_batch, g_.options().seq}, Op::Expand);
      at.waves = three_axes_tables(g_, p_.rotary, module, same);
      g_.drop({same});
      return at;
    }
    if (along_axes != kNone) {
      at.waves = three_axes_tables(g_, p_.rotary, module, along_axes);
      return at;
    }
    at.ids = position_ids;
    if (!p_.tables.empty()) {
      for (const ModuleId one : modules_of(g_.model(), g_.child(model_, "rotary_embs"))) {
        at.tables.push_back(rotary_tables(g_, p_.rotary, one, at.ids));
      }
      return at;
    }
    if (!p_.tables_by_kind) {
      at.waves = rotary_tables(g_, p_.rotary, module, at.ids);
      return at;
    }
    if (p_.some_see_all()) at.waves = rotary_tables(g_, p_.rotary, module, at.ids, "full_attention_");
    if (p_.some_slide()) at.sliding = rotary_tables(g_, p_.rotary, module, at.ids, "sliding_attention_");
    return at;
  }

  LayerInputs given_to(std::size_t index, const Positions& at, const Masks& masked) {
    const bool slides = d_.sliding_window > 0 && p_.kind(index) == LayerKind::Sliding;
    LayerInputs given;
    given.ids = at.ids;
    given.waves = slides && p_.tables_by_kind ? at.sliding : at.waves;
    if (!at.tables.empty() && p_.turns(index)) given.waves = at.tables[static_cast<std::size_t>(p_.tables[index])];
    given.mask = slides ? masked.sliding : masked.full;
    given.turns = p_.turns(index);
    given.slides = slides;
    given.recurs = p_.recurs(index);
    given.crosses = p_.crosses(index);
    if (!p_.mixers.empty()) given.mixer = p_.mixers[index];
    if (given.recurs) given.mask = kNone;
    if (g_.options().use_cache) given.cache = &cache_;
    return given;
  }

  TensorId layers(TensorId hidden, TensorId own, const Positions& at, const Masks& masked) {
    if (p_.sharing.used) {
      return sharing_layers(
          g_, p_, g_.child(model_, "layers"), hidden, own,
          [&](std::size_t index) { return given_to(index, at, masked); }, held_by_body_);
    }
    const auto keywords = [&](std::size_t index) {
      const LayerInputs given = given_to(index, at, masked);
      const TensorId numbers = axes_ != kNone ? axes_ : p_.tells_numbers ? given.ids : kNone;
      return std::vector<TensorId>{given.waves.cos, given.waves.sin, numbers,       given.mask,
                                   crossed_.states, crossed_.mask,   crossed_.rows, by_name_};
    };
    TensorId raw = kNone;  // What the last layer returned, where something was added to a copy of it.
    if (keeps_states_) states_.push_back(g_.keep(hidden));
    const TensorId out = run_layers(
        g_, g_.child(model_, "layers"), hidden, keywords,
        [&](ModuleId module, std::size_t index, TensorId x) {
          const LayerInputs given = given_to(index, at, masked);
          const Waves narrow = narrowed(g_, given.waves);
          LayerInputs told = given;
          told.waves = narrow;
          const TensorId made = layer(module, x, told);
          if (narrow.cos != given.waves.cos) g_.drop({narrow.cos, narrow.sin});
          return made;
        },
        [&](std::size_t index, TensorId x) {
          if (raw != kNone) g_.drop({raw});
          raw = index < deep_.size() ? g_.keep(x) : kNone;
          if (keeps_states_) states_.push_back(g_.keep(x));
          return index < deep_.size() ? with_deep(g_, x, deep_flags_, deep_[index]) : x;
        });
    if (raw != kNone) held_by_body_.push_back(raw);
    return out;
  }

  // What the language model is given: what it would embed, number and mask, or kNone where it does so itself.
  struct Given {
    TensorId embedded = kNone;
    TensorId positions = kNone;  // Along three axes.
    TensorId full = kNone;
    TensorId sliding = kNone;
    bool masked = false;
    TensorId numbers = kNone;  // Of tokens.
    TensorId own = kNone;      // What a second embedding gives each layer.
    bool counts_axes = false;  // It numbers tokens itself, and along three axes (qwen2_vl without pictures).
  };

  // Gemma4Model, whose pictures' tokens are embedded as padding first.
  TensorId padded_body(ModuleId outer, TensorId ids, const ShownBatch& batch) {
    const PaddedWords words = padded_words(g_, *p_.tower, ids);
    const TensorId embedded = embed(words.ids);
    Given given;
    TensorId alone = kNone;
    std::vector<TensorId> held = words.films;
    held.insert(held.end(), {words.shown, words.other, words.ids});
    if (p_.sharing.own_width > 0) {
      alone = words_alone(g_, g_.child(model_, p_.embedding), words, embedded);
      given.own = own_words(g_, p_, model_, words.ids);
      held.push_back(g_.keep(given.own));
    }
    given.embedded = embedded;
    if (batch.pixels != kNone) {
      const PaddedShown shown = show_padded(g_, *p_.tower, outer, batch, words.shown, embedded);
      held.push_back(shown.count);
      held_.push_back(shown.features);
      given.embedded = shown.merged;
    }
    given.numbers = numbered_positions(g_);
    given.masked = true;
    if (batch.types != kNone && p_.tower->sees_itself) {
      const PictureMasks made = near_picture_masks(g_, batch.types, given.numbers, d_.sliding_window);
      given.full = made.full;
      given.sliding = made.sliding;
      held.push_back(made.blocks);
    } else {
      const Masks made = masks_of(g_, p_, given.numbers, kNone);
      given.full = made.full;
      given.sliding = made.sliding;
    }
    const TensorId hidden = body(ids, kNone, given);
    if (alone != kNone) {
      g_.drop({alone});
      g_.forget(alone);
    }
    for (const TensorId one : held) g_.drop({one});
    return hidden;
  }

  // The text's embedding and the pictures among it, then the language model.
  TensorId shown_body(TensorId ids, const ShownBatch& batch) {
    if (is_inside(p_)) {  // `end_inside` leaves the language model.
      const Pictured shown = show_pictures(g_, *p_.tower, g_.causal(), batch.pixels, ids, embed(ids));
      held_by_root_ = {g_.keep(shown.merged), shown.flags, shown.flat, shown.features};
      held_.push_back(shown.returned);
      g_.enter(g_.child(g_.causal(), "language_model"));
      return body(ids, kNone, {.embedded = shown.merged});
    }
    const ModuleId outer = g_.child(g_.causal(), p_.body);
    g_.enter(outer);
    TensorId hidden = kNone;
    const bool unfolded = p_.tower->projection == ProjectorKind::Unfolded;
    if (p_.tower->projection == ProjectorKind::Crossed) {
      crossed_ = show_crossed(g_, *p_.tower, outer, batch);
      hidden = body(ids, kNone, {});
      let_go(g_, crossed_);
    } else if (p_.tower->projection == ProjectorKind::Embedded) {
      hidden = padded_body(outer, ids, batch);
    } else if (p_.tower->merge > 0 && !unfolded) {
      const GridShown shown = show_grids(g_, *p_.tower, outer, batch, ids, embed(ids));
      const TensorId positions = grid_positions(g_, *p_.tower);
      deep_ = shown.deep;
      deep_flags_ = shown.flags;
      hidden = body(ids, kNone, {.embedded = shown.merged, .positions = positions});
      for (const std::vector<TensorId>& list : {shown.held, shown.deep}) {
        for (const TensorId one : list) g_.drop({one});
      }
      if (shown.flags != kNone) g_.drop({shown.flags});
      g_.drop({positions});
    } else {
      const TensorId embedded = embed(ids);
      const TensorId numbers = p_.tower->shows_prefix ? positions_from_one(g_) : kNone;
      const Pictured shown = pictured(g_, *p_.tower, outer, batch, ids, embedded);
      PictureMasks made;
      if (numbers != kNone) {
        made = prefix_masks(g_, batch.types, numbers, d_.sliding_window);
      } else if (batch.types != kNone) {
        made = picture_masks(g_, batch.types, d_.sliding_window);
      }
      hidden = body(ids, kNone,
                    {.embedded = shown.merged,
                     .full = made.full,
                     .sliding = made.sliding,
                     .masked = batch.types != kNone,
                     .numbers = numbers});
      if (shown.flags != kNone) g_.drop({shown.flags});
      if (made.blocks != kNone) g_.drop({made.blocks});
      held_.push_back(shown.features);
    }
    g_.exit(outer);
    return hidden;
  }

  // The same of a batch without pictures: what holds both embeds the text all the same.
  TensorId unshown_body(TensorId ids, TensorId ones) {
    const TensorId embedded = is_inside(p_) ? embed(ids) : kNone;
    if (is_inside(p_)) {
      held_by_root_ = {g_.keep(embedded)};
      g_.enter(g_.child(g_.causal(), "language_model"));
      return body(ids, ones, {.embedded = embedded});
    }
    const ModuleId outer = g_.child(g_.causal(), p_.body);
    g_.enter(outer);
    TensorId hidden = kNone;
    if (p_.tower->projection == ProjectorKind::Embedded) {
      hidden = padded_body(outer, ids, {});
    } else {
      Given given;
      given.embedded = embed(ids);
      given.counts_axes = p_.rotary.three_axes && !p_.rotary.mixed_axes;
      given.masked = p_.tower->sees_itself;  // Gemma3Model, which tells masks of no numbers.
      if (given.masked) {
        const Masks made = masks_of(g_, p_, kNone, ones);
        given.full = made.full;
        given.sliding = made.sliding;
      }
      hidden = body(ids, ones, given);
    }
    g_.exit(outer);
    return hidden;
  }

  TensorId body(TensorId ids, TensorId ones, const Given& given) {
    g_.enter(model_);
    TensorId embedded = given.embedded == kNone ? embed(ids) : given.embedded;
    TensorId own = kNone;
    if (p_.sharing.own_width > 0) {
      const TensorId words = given.own == kNone ? own_words(g_, p_, model_, ids) : given.own;
      own = p_.altup.inputs > 0 ? own_inputs_by_buffers(g_, p_.sharing, model_, words, embedded)
                                : own_inputs(g_, p_.sharing, model_, words, embedded);
      held_by_body_.push_back(own);
    }
    const TensorId along_axes = given.counts_axes ? same_along_axes(g_) : given.positions;
    const TensorId position_ids = given.numbers != kNone ? given.numbers
                                  : along_axes == kNone  ? numbered_positions(g_)
                                                         : kNone;
    const Masks masked = given.masked ? Masks{given.full, given.sliding} : masks_of(g_, p_, position_ids, ones);
    if (p_.multiplies_late) embedded = multiplied(g_, p_, embedded);
    TensorId hidden = p_.inner_dropout ? g_.dropout(embedded, d_.embedding_dropout)
                                       : dropout_module(g_, named_child(g_, model_, p_.embedding_dropout), embedded,
                                                        d_.embedding_dropout);
    if (p_.rebinds_embedding) {
      g_.drop({embedded});
      embedded = g_.keep(hidden);
    }
    Several several;
    if (p_.altup.inputs > 0) hidden = rebound(g_, hidden, several_of(g_, model_, embedded, several));
    const Positions at = turned(position_ids, along_axes);
    axes_ = told_of_axes(p_) ? along_axes : kNone;
    if (p_.norms_embedding) hidden = rebound(g_, hidden, norm(model_, p_.final_norm, hidden));
    hidden = layers(hidden, own, at, masked);
    if (p_.altup.inputs > 0) hidden = one_of(g_, model_, hidden, several);
    const TensorId normed = norm(model_, p_.final_norm, hidden);
    g_.drop({hidden});
    for (TensorId one :  // As the arguments are, then the variables: position_ids comes before inputs_embeds.
         {at.ids, embedded, masked.full, masked.sliding, at.waves.cos, at.waves.sin, at.sliding.cos, at.sliding.sin}) {
      if (one != kNone) g_.drop({one});
    }
    if (given.counts_axes) g_.drop({along_axes});
    for (const Waves& one : at.tables) g_.drop({one.cos, one.sin});
    for (const TensorId one : held_by_body_) g_.drop({one});
    drop_several(g_, several);
    held_by_body_.clear();
    g_.exit(model_);
    if (keeps_states_) {  // In the last one's place there is what the body returns.
      g_.drop({states_.back()});
      states_.pop_back();
    }
    return normed;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId model_;
  std::vector<TensorId> held_;          // By the variables of the root's forward.
  std::vector<TensorId> held_by_root_;  // Beside outputs.
  std::vector<TensorId> cache_;         // Keys and values, layer by layer.
  std::vector<TensorId> held_by_body_;  // By those of the language model's.
  bool keeps_states_ = false;
  std::vector<TensorId> states_;  // output_hidden_states: the first layer's input, and what each returned.
  TensorId axes_ = kNone;         // Numbers along three axes, where layers are told of them.
  std::vector<TensorId> deep_;    // Added to the first layers' results where `deep_flags_` are set (qwen3_vl).
  TensorId deep_flags_ = kNone;
  Crossed crossed_;           // What layers look at (mllama).
  TensorId by_name_ = kNone;  // What they are given beside and make nothing of.
};

}  // namespace

Graph build_decoder_graph(const ModelSpec& model, const GraphOptions& options) {
  Graph graph = DecoderGraph(model, options).build();
  const TowerParts* tower = model.parts->tower.get();
  if (tower != nullptr && tower->beside_text() && options.images == 0) number_behind_tower(model, graph);
  return graph;
}

}  // namespace dsplan
