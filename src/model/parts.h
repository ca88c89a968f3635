// How a decoder is put together: what a family chooses of each part. Its file in model/families fills this from the
// config, and the operator graph is made from it, so that one more family costs a page. A name that is empty is a
// module that the family does not have. Names and formulas are those of transformers 5.17.0.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"

namespace dsplan {

enum class NormKind : std::uint8_t {
  Rms,            // In fp32, back to the input's dtype, times the weight (llama).
  RmsPlusOne,     // In fp32, times one plus the weight in fp32, back (gemma).
  RmsWide,        // In fp32, times the weight, then back (olmo2).
  RmsLast,        // In fp32 without variables, back, which the weight multiplies, if there is one (llama4).
  RmsWideWeight,  // The same, with the weight brought to fp32 behind the norm (helium).
  RmsPower,       // The mean's root by pow(-0.5), times the weight in fp32, if there is one, back (gemma4).
  RmsBare,        // In fp32 without variables, back, without a weight (nanochat).
  Layer,          // nn.LayerNorm.
  LayerBare,      // Without weight and bias, in fp32, back (olmo).
  LayerPlusOne,   // nn.functional.layer_norm with one plus the weight (nemotron).
  Centred,        // Mean and variance as operators in fp32 (cohere).
};

// Where queries and keys are normalised.
enum class HeadNorm : std::uint8_t {
  None,
  ByToken,        // Each head before it changes places with the tokens, right behind its projection (qwen3).
  WholeBehind,    // All heads together, behind all three projections, or an Identity (internvl).
  ByHead,         // Each head after that, behind all three projections (gemma3).
  BehindByToken,  // As ByToken, behind all three projections (cohere).
  Whole,          // All heads together, right behind the projection (olmo2).
  AfterRotary,    // Each head, behind the rotation (hunyuan).
};

enum class Projections : std::uint8_t {
  Separate,
  Fused,        // One product: queries, keys, values (phi3).
  FusedHeads,   // One product: query, key and value of each head together (gpt_neox).
  FusedThirds,  // One product: queries, keys, values, brought apart by one call (modernbert).
  ByToken,      // Separate, turned and normed before heads and tokens change places (llama4).
  FusedGroups,  // One product: of each group of heads its queries, a key and a value (falcon's new architecture).
  Latent,       // From latents of low rank, with a rotated part that all heads share (deepseek: LatentParts).
};

// How much of a head turns, and what is joined on behind.
enum class RotaryPart : std::uint8_t {
  Whole,
  Joined,        // The rest is joined on to queries, then keys are turned (phi3).
  JoinedLast,    // Both are turned, then both joined (gpt_neox).
  JoinedAtOnce,  // The same, and the parts' names are gone once the results are there (nemotron).
  Held,          // By the attention itself, whose variables hold the parts (phi).
};

// By which function scaled frequencies are computed (transformers modeling_rope_utils.py).
// Lengths: each forward asks how long its rows are, and leaves the table as it is up to max_position_embeddings
// (hunyuan's "dynamic"). LongRope: each forward asks, and takes the one table or makes the other.
enum class RotaryScaling : std::uint8_t { Linear, Llama3, Yarn, Lengths, LongRope, Other };

struct RotaryParts {
  RotaryPart part = RotaryPart::Whole;
  RotaryScaling scaling = RotaryScaling::Other;  // Of those tables that are scaled.
  std::int64_t short_rows = 0;                   // LongRope: rows of so many tokens take the table that is there.
  bool pairs = false;                            // Neighbours turn together, not halves of a head.
  bool sorts_pairs = false;                      // They are brought apart by that, into halves (deepseek_v3).
  bool half_tables = false;                      // Tables of half the width, for both halves of a head (gpt_oss).
  bool complex = false;                          // Neighbours are complex numbers, and so are the tables (deepseek_v2).
  bool three_axes = false;                       // Positions have three axes, and each row its own tables (qwen2_vl).
  bool mixed_axes = false;                       // Of those, frequencies of the three axes alternate (qwen3_vl).
  bool paired_tables = false;                    // The tables hold each frequency twice in a row (cohere).
  bool repeats_tables = false;                   // Each call makes such of the first half of the tables (glm4).
  bool made_anew = false;      // Each forward asks how long its rows are, and has the host make frequencies (phimoe).
  bool wide_tables = false;    // Tables stay in fp32, and so do products with them; results are brought back (olmo2).
  bool wide_operands = false;  // Queries and keys are brought to fp32 first (cohere).
  bool wide_products = false;  // What is multiplied is brought to fp32 (ernie4_5).
  bool flips = false;          // The other way: the second half as it is, then the negative of the first (nanochat).
  bool wide_halves = false;    // What is turned is brought to fp32, for either product anew (modernbert).
};

enum class MlpKind : std::uint8_t {
  Gated,      // down(act(gate(x)) * up(x)).
  FusedGate,  // One product for gate and up, then down(up * act(gate)) (phi3).
  Plain,      // Two products and an activation between them.
};

enum class Residual : std::uint8_t {
  Serial,
  SerialHeld,        // The first norm's result and the attention's live as long as the layer (stablelm).
  SerialNamed,       // The first norm's result lives until the sum, the attention's as long as the layer (llama4).
  Parallel,          // Attention and MLP read one norm: attention + MLP + residual (phi).
  ParallelResidual,  // The same, summed as residual + attention + MLP (cohere).
  ParallelTwoNorms,  // Each reads a norm of its own: MLP + attention + residual (gpt_neox).
  OneModule,         // A layer is one norm and one module of DecoderParts::mixers, which is added (nemotron_h).
};

// What such a layer's module is.
enum class MixerKind : std::uint8_t { Recurrent, Attention, FeedForward, Mixture };

enum class LayerKind : std::uint8_t { Full, Sliding };

enum class Router : std::uint8_t {
  WideSoftmax,  // softmax(logits.float()), the largest, divided by their sum (mixtral).
  Softmax,      // softmax(logits, dtype=float32), the largest, divided if `normalised`, in the logits' dtype (qwen).
  LateSoftmax,  // The largest logits in fp32, then their softmax, in the hidden state's dtype (granitemoe).
  BareSoftmax,  // The same in the logits' dtype, which the layer holds (gpt_oss).
  Scattered,    // Sigmoids of the largest logits, over all experts, each of which sees every token (llama4).
  Fp32Softmax,  // Product and softmax in fp32, the largest of the kept groups, times `scale` (deepseek_v2).
  Fp32Sigmoid,  // Product in fp32; chosen by sigmoid and a bias, divided if `normalised`, times `scale` (deepseek_v3).
  Sigmoid,      // Product as it is; chosen by sigmoid in fp32 and the block's bias, divided by their sum (minimax_m2).
  // Product and sigmoid as they are; chosen with the block's bias in fp32 if `corrected`, divided if `normalised`,
  // times `scale` (lfm2_moe).
  NarrowSigmoid,
  Module,   // A Linear of the gate's own in fp32, then as WideSoftmax (hunyuan_v1_moe).
  Normed,   // Behind a norm and a learned scale, softmax in fp32, the largest divided, times their expert's (gemma4).
  Sampled,  // Two experts one after the other, drawn among those near the best, in the logits' dtype (phimoe).
  Fp32Biased,  // Product and softmax in fp32, chosen with a bias, divided, in the hidden state's dtype (ernie4_5_moe).
  // Product and softmax as they are; chosen in the kept groups, divided if `normalised`, times `scale` (mistral4).
  GroupedSoftmax,
  // Product in fp32; chosen by sigmoid and the block's bias, divided by their sum, times `scale` (hy_v3).
  WideSigmoid,
  TopSoftmax,  // The largest logits, then their softmax in fp32, in the hidden state's dtype (cohere2_moe).
  TopSigmoid,  // The largest logits, then their sigmoids, divided if `normalised` (cohere2_moe).
};

// Widths of deepseek's attention. The keys' parts are joined by copies into a tensor of their own.
struct LatentParts {
  std::int64_t query_rank = 0;  // 0: the query is one projection.
  std::int64_t key_rank = 0;
  std::int64_t nope = 0;  // Of a head: what does not turn, and what does.
  std::int64_t rope = 0;
  std::int64_t value = 0;
};

enum class TextHead : std::uint8_t {
  LanguageModel,
  Text,   // Classes of the text, by its last token that is no padding.
  Token,  // Classes of each token.
};

// The expert that sees every token.
enum class SharedPlace : std::uint8_t {
  Gated,   // Called first on the rows, times sigmoid of a gate, added to them (qwen2_moe).
  Behind,  // Called behind the others and added (deepseek).
  Rows,    // Called first on the rows, and added to them (ernie4_5_moe).
  Whole,   // Called first on what the block is given, and added at its end (hunyuan_v1_moe).
  // Called behind the others on the rows, and added to them; `averaged`: of both the mean (cohere2_moe).
  RowsBehind,
  RowsNamed,  // The same, and what the others gave keeps its name; `wide_sum`: they are added in fp32 (hy_v3).
};

// The module of a mixture's experts.
[[nodiscard]] inline bool is_mixture(const Module& module) { return module.path.ends_with(".experts"); }

struct ExpertParts {
  std::string_view block = "mlp";
  std::string_view gate = "gate";
  Router router = Router::WideSoftmax;
  std::int64_t ffn = 0;         // Of one expert.
  std::int64_t shared_ffn = 0;  // Of the expert that sees every token; 0: none.
  SharedPlace shared = SharedPlace::Gated;
  std::string_view shared_module = "shared_expert";
  bool averaged = false;
  bool wide_sum = false;
  bool logits_last = false;  // Of what the router returns (granitemoe).
  bool normalised = true;
  bool corrected = false;   // NarrowSigmoid.
  std::int64_t groups = 0;  // Of experts, of which `kept_groups` may be chosen; 0: none.
  std::int64_t kept_groups = 0;
  double scale = 1;         // Of the weights of routers in fp32.
  double spread = 0;        // How far below the best an expert may be that is drawn.
  bool gated = true;        // Otherwise two products with an activation between them (nemotron_h).
  std::int64_t latent = 0;  // What experts see and give, behind and before a product of the block's; 0: hidden.
  // gpt_oss: weights lie as [in, out], with a bias for each expert; gate and up alternate, and are clamped.
  bool biased = false;
};

struct TowerParts;

// A mixer that is a state-space model (mamba2): a convolution over time, then a scan in chunks of tokens.
struct MambaParts {
  std::string_view module = "mamba";
  std::int64_t inner = 0;  // heads * head_dim.
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t groups = 0;  // Of heads that share what they read and write of the state.
  std::int64_t state = 0;
  std::int64_t kernel = 0;  // Of the convolution.
  std::int64_t chunk = 0;
  bool biases = false;  // Of the projections.
  bool conv_bias = true;
  bool wide_residual = false;   // The residual stream is in fp32 (mamba2).
  bool rescales = false;        // Its last weight is scaled once more when the model is made.
  bool norms_by_group = false;  // What the scan gives is normed group by group (nemotron_h).
  std::string activation;       // Of the convolution; empty: the model's.

  [[nodiscard]] std::int64_t convolved() const { return inner + 2 * groups * state; }
};

// A gated delta net (qwen3_next): a convolution over time, then a rule in chunks of 64 tokens.
struct DeltaParts {
  std::int64_t heads = 0;  // Of values.
  std::int64_t key_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t kernel = 0;  // Of the convolution.
  bool apart = false;       // Projections are apart (qwen3_5).
};

// A mixer that is a short convolution over time, between two gates (lfm2).
struct ConvolutionParts {
  std::string_view module = "conv";
  std::int64_t kernel = 0;
  bool biases = false;
};

// Attention that knows distances apart from what stands there (deberta-v2).
struct DisentangledParts {
  bool relative = false;
  bool of_queries = false;  // What a query says of distances (c2p).
  bool of_keys = false;     // What distances say of a key (p2c).
  bool bucketed = false;    // Far distances share buckets.
  std::int64_t span = 0;    // Distances to either side.
  std::string convolution;  // Activation of the convolution beside the first layer; empty: there is none.
  // Of its head over the text.
  double pooler_dropout = 0;
  std::string pooler_activation;
  bool names_problem = false;  // config.json has problem_type.
};

// Layers of two kinds of heads, of which the last read keys and values that earlier ones have made (gemma4).
struct SharingParts {
  bool used = false;
  Dimensions wide;               // Of layers that see all: their heads' width, and how many have keys.
  bool keys_are_values = false;  // In those layers.
  std::int64_t readers = 0;      // So many last layers read the keys and values of the last of their kind before them.
  bool wide_readers = false;     // Their feed-forward is twice as wide.
  std::int64_t own_width = 0;    // Of what a second embedding gives each layer; 0: there is none.
  std::int64_t own_vocab = 0;    // Its rows.

  // The first of the readers.
  [[nodiscard]] std::int64_t first_reader(std::int64_t layers) const { return layers - readers; }
};

// Several running tensors, of which one goes through each layer and moves the others (gemma3n).
struct AltupParts {
  std::int64_t inputs = 0;   // So many; 0: there is one, and nothing of this.
  std::int64_t active = 0;   // The one that goes through.
  std::int64_t rank = 0;     // Of what is added beside attention (laurel).
  bool scales = true;        // What a layer gives is scaled before its own input joins.
  std::vector<bool> sparse;  // By layer: of the gate what is far above its mean.
};

struct DecoderParts {
  NormKind norm = NormKind::Rms;
  HeadNorm head_norm = HeadNorm::None;
  Projections projections = Projections::Separate;
  RotaryParts rotary;
  MlpKind mlp = MlpKind::Gated;
  Residual residual = Residual::Serial;

  std::string_view body = "model";
  std::string_view embedding = "embed_tokens";
  std::string_view embedding_dropout;
  std::string_view final_norm = "norm";
  std::string_view rotary_module = "rotary_emb";
  std::string_view attention = "self_attn";
  std::string_view fused_projection = "qkv_proj";
  std::string_view output = "o_proj";
  std::string_view output_dropout;  // Of the attention, behind its output (modernbert).
  std::string_view query_norm = "q_norm";
  std::string_view key_norm = "k_norm";
  std::string_view before_attention = "input_layernorm";
  std::string_view after_attention;
  std::string_view before_mlp = "post_attention_layernorm";
  std::string_view after_mlp;
  std::string_view attention_dropout;
  std::string_view mlp_dropout;
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";  // Of a fused gate: the product of both.
  std::string_view down = "down_proj";
  std::string_view activation = "act_fn";  // Empty: a function's call (lfm2).

  std::string_view feed_forward = "mlp";
  bool bare_softmax = false;     // Eager attention's, in its own dtype (llama4).
  bool chunked = false;          // A sliding layer's window is a chunk from its own beginning on (llama4).
  bool tempered = false;         // Queries of layers without positions, by how far they are on (llama4).
  bool tempered_behind = false;  // Queries of all layers are, once they are turned (ministral3).
  double temperature_floor = 8192;
  double temperature_scale = 0.1;
  bool views_behind = false;        // Heads are viewed behind all three projections (stablelm).
  bool norms_first = true;          // Of opt: before attention and MLP, not behind.
  bool inner_dropout = false;       // nn.functional.dropout at the end of attention and MLP (starcoder2).
  bool rebinds_dropout = false;     // What is dropped out takes the name of what it was (gpt_neox).
  bool rebinds_embedding = false;   // What is dropped out takes the embedding's name (phi).
  bool norms_embedding = false;     // The last norm is asked ahead of the first layer as well (nanochat).
  bool multiplies_late = false;     // embedding_multiplier stands behind the masks (granitemoe).
  bool alibi = false;               // Biases of the scores, in the place of rotary positions (falcon).
  bool full = false;                // Each token sees every other (vit).
  bool sinks = false;               // Eager attention has a learned column of scores (gpt_oss).
  bool sinks_scale = false;         // What it gives is scaled by how far its scores outweigh that (granite_swa).
  bool scaled_embedding = false;    // By a buffer of the embedding's own (gemma).
  double embedding_multiplier = 0;  // 0: no such operator.
  double activation_dropout = 0;    // Behind the activation of a feed-forward (bart).
  double residual_multiplier = 0;
  double attention_scale = 0;  // 0: one by the root of a head's width.
  double hidden_divisor = 0;   // Of what the head reads (minicpm3).
  double logits_divisor = 0;
  double logits_multiplier = 0;
  bool wide_logits = false;  // The model brings them to fp32 itself (nemotron_h).

  TextHead head = TextHead::LanguageModel;
  bool pads = false;                         // There is an id of padding, which a head over the text looks for.
  std::string_view token_classes = "score";  // The module of a head over tokens.
  std::string head_activation;               // Of a head with one of its own (modernbert).
  bool mean_pooled = false;                  // A head over the text reads the mean of all tokens (modernbert).

  std::vector<LayerKind> kinds;  // By layer. Empty: all alike, Sliding where the model has a window.
  std::vector<bool> turned;      // By layer: rotary positions. Empty: all have them.
  // By layer: which of several rotary modules has its tables (granite_swa). Empty: there is but one.
  std::vector<std::int64_t> tables;
  bool both_masks = false;      // The mask of sliding layers is made though there are none.
  bool empty_window = false;    // And it is one of a window of no token, which no layer reads (qwen2_moe).
  bool tables_by_kind = false;  // The rotary module has a pair of tables for each kind of layer (gemma3).
  LatentParts latent;
  ExpertParts experts;
  DisentangledParts disentangled;
  MambaParts mamba;  // Of layers that do not attend: one of these.
  DeltaParts delta;
  ConvolutionParts convolution;
  std::vector<bool> crossing;     // By layer: it looks at pictures in the place of the text. Empty: none does.
  std::vector<bool> recurrent;    // By layer: it has a mixer and no attention. Empty: all attend.
  std::vector<MixerKind> mixers;  // By layer, of Residual::OneModule.
  bool gates_queries = false;     // The query's projection has a gate for what attention gives (qwen3_next).
  bool gates_first = false;       // Of a fused gate: act(gate) * up (granitemoehybrid).
  bool own_shared = false;        // The layer's own: an MLP in place of, or beside, its experts (granitemoehybrid).
  bool tells_numbers = true;      // Layers are told of their tokens' numbers, and so are masks.
  SharingParts sharing;
  AltupParts altup;
  std::shared_ptr<const TowerParts> tower;  // Null: it sees no pictures.

  // Of a model that has a window.
  [[nodiscard]] LayerKind kind(std::size_t layer) const { return kinds.empty() ? LayerKind::Sliding : kinds[layer]; }
  [[nodiscard]] bool some_slide() const {
    return kinds.empty() || std::find(kinds.begin(), kinds.end(), LayerKind::Sliding) != kinds.end();
  }
  [[nodiscard]] bool some_see_all() const {
    return std::find(kinds.begin(), kinds.end(), LayerKind::Full) != kinds.end();
  }
  [[nodiscard]] bool turns(std::size_t layer) const { return turned.empty() || turned[layer]; }
  [[nodiscard]] bool none_turns() const {
    return !turned.empty() && std::find(turned.begin(), turned.end(), true) == turned.end();
  }
  [[nodiscard]] bool recurs(std::size_t layer) const {
    if (!mixers.empty()) return mixers[layer] != MixerKind::Attention;
    return !recurrent.empty() && recurrent[layer];
  }
  [[nodiscard]] bool crosses(std::size_t layer) const { return !crossing.empty() && crossing[layer]; }
  [[nodiscard]] bool has_mixers() const { return mamba.inner > 0 || delta.heads > 0 || convolution.kernel > 0; }
};

// What stands between a tower and its language model.
enum class ProjectorKind : std::uint8_t {
  TwoLinears,  // Over one of the tower's hidden states (llava).
  OneLinear,   // Over the tower's result (paligemma).
  Connected,   // Over the tower's result: places side by side, and one product (idefics3, smolvlm).
  Pooled,      // Over the tower's result: places averaged to fewer, normed, and one product (gemma3).
  Shuffled,    // Over the tower's result: two by two places side by side, normed, and two linears (internvl).
  Unfolded,    // Over the tower's result: normed, patches side by side through one product, and two linears (mistral3).
  Adapted,     // Over the tower's own end, one product (llama4).
  Merged,      // The tower's own end, which makes one place of several patches (qwen2_vl).
  Embedded,    // Over the tower's own end, which averages patches: a norm without weights, and one product (gemma4).
  Crossed,     // One product over the tower's end, at which layers of the text look (mllama).
  Contrasted,  // Nothing: pictures and texts have a tower each, and a loss compares what both say (clip, siglip).
};

// A tower that sees pictures: patches through a convolution, then layers like a decoder's in which each patch sees all
// others (clip, siglip). What follows `projector` is of a language model that reads it (llava).
struct TowerParts {
  Dimensions dims;      // Its own: a picture has `image` pixels a side, and `max_positions` places.
  DecoderParts layers;  // What its layers are made of.
  std::int64_t patch = 0;
  std::int64_t channels = 3;
  bool class_token = false;       // A learned place before the patches.
  bool norms_patches = false;     // A norm before the first layer.
  bool norms_result = false;      // The norm behind the last layer is of all places; otherwise of the class token.
  bool hears_checkpoints = true;  // gradient_checkpointing_enable makes its patches require a gradient.
  bool scales = false;            // Layers scale what they add by parameters of their own (internvl).
  bool pools = false;             // A head attends to all places, which no classifier reads.
  std::int64_t end_token = -1;    // Of a text: where it stands first is read (clip). -1: where the highest number does.

  std::string_view module = "vision_tower";
  std::string_view projector = "multi_modal_projector";
  std::string_view language = "language_model";
  ProjectorKind projection = ProjectorKind::TwoLinears;
  std::string projector_activation;
  std::int64_t tokens = 0;       // Of one picture, among the text's.
  std::int64_t read_layers = 0;  // Behind so many layers the projector reads.
  bool drops_first = false;      // All places but the first.
  std::int64_t beside = 2;       // So many places a side come to lie side by side, as one token.
  bool by_block = false;         // Tokens look up their place in their own picture (smolvlm).
  std::int64_t image_token = 0;  // Its id. No byte depends on it, as long as the vocabulary has it.
  bool sees_itself = false;      // Tokens of a picture see each other; the batch says which tokens they are (gemma3).
  bool shows_prefix = false;     // All tokens before the answer do, and tokens are numbered from one (paligemma).

  // Pictures of all sizes (qwen2_vl): `merge` times `merge` patches become a token. 0: the tower sees squares.
  std::int64_t merge = 0;
  std::int64_t frames = 1;  // A picture stands for so many.
  // Patches of each picture, with those that hold nothing and are masked (gemma4). 0: as many as the picture has.
  std::int64_t padded = 0;
  bool clips = false;         // Linear layers bound what they take and what they give (gemma4).
  bool standardises = false;  // What the tower gives is moved and scaled by buffers of its own (gemma4).
  // So many tokens a side see each other, but in `whole_layers` all of a picture's do. 0: there are no windows.
  std::int64_t window = 0;
  std::vector<std::int64_t> whole_layers;
  // Height and width of what a picture is made to fit and then cut up, into squares of `dims.image` pixels; it is seen
  // whole as well (llava_next). Empty: a picture is one square.
  std::vector<std::array<std::int64_t, 2>> cuts;
  // Rows of a square table of learned positions, resampled to each picture's size (qwen3_vl). 0: there is none.
  std::int64_t table = 0;
  // A convolution over what the last layer gives makes one place of several, `merged` wide, before gated products of
  // `merged_ffn`; positions are sampled from the table (glm4v). 0: none of this.
  std::int64_t merged = 0;
  std::int64_t merged_ffn = 0;
  // What these layers return is merged by a module of its own, and added to the text's first layers (qwen3_vl).
  std::vector<std::int64_t> deep_layers;
  // Tiles of each picture, whether it has them or not; a second stack of layers, whose sums are gated; layers of the
  // first whose outputs are joined with what the second gives (mllama).
  std::int64_t tiles = 0;
  std::int64_t global_layers = 0;
  std::vector<std::int64_t> joined_layers;
  bool held = false;  // What it returns lives as long as the forward of what holds it (qwen3_vl).

  [[nodiscard]] bool beside_text() const { return tokens > 0 || merge > 0; }
  [[nodiscard]] bool any_size() const { return merge > 0 || !cuts.empty(); }
  // Beginnings of the names of parameters that no loss reaches: layers behind those, and the norm behind all.
  std::vector<std::string> unreached;
};

}  // namespace dsplan
