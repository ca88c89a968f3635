// Sequence length, attention kernel, loss, loop, frozen parameters, checkpointing.
#include <algorithm>
#include <array>
#include <charconv>

#include "core/document.h"
#include "core/format.h"
#include "model/lora.h"
#include "model/pictures.h"
#include "model/quantized.h"
#include "model/traits.h"
#include "planner/resolve/checkpointing.h"
#include "planner/resolve/resolver.h"

namespace dsplan {
namespace {

bool has(std::initializer_list<std::string_view> families, std::string_view family) {
  return std::find(families.begin(), families.end(), family) != families.end();
}

// A table of learned positions has no row beyond its end; rotary ones only lose quality.
void judge_positions(Resolver& resolver, std::int64_t seq, const Place& place) {
  const std::int64_t most = resolver.model.dims.max_positions;
  if (most == 0 || seq <= most || resolver.model.family == "dinov2") return;  // Which resamples its own.
  if (has({"gpt2",      "gpt_bigcode", "gptj",    "gpt_neo", "opt",           "bert",   "roberta",   "xlm-roberta",
           "camembert", "electra",     "albert",  "vit",     "whisper",       "clip",   "siglip",    "bart",
           "mbart",     "marian",      "pegasus", "ernie",   "data2vec-text", "plbart", "blenderbot"},
          resolver.model.family)) {
    resolver.fault(place, formatted("seq {} is beyond the {} {}positions of {}", seq, most,
                                    resolver.model.family == "gptj" ? "" : "learned ", resolver.model.name));
  } else {
    resolver.notice(Notice::Kind::Warning, place,
                    formatted("seq {} is beyond max_position_embeddings = {}", seq, most));
  }
}

void resolve_seq(Resolver& resolver) {
  const Setting<std::int64_t>& wished = resolver.request.seq;
  const std::int64_t most = resolver.model.dims.max_positions;
  Training& training = resolver.training();
  if (!wished.given()) {
    training.seq = most > 0 ? std::min<std::int64_t>(2048, most) : 2048;
    return resolver.assumed("seq", std::to_string(training.seq), "min(2048, max_position_embeddings), all rows full",
                            "--seq");
  }
  training.seq = *wished;
  resolver.given("seq", std::to_string(*wished), wished.place, "--seq");
  if (*wished < 1) return resolver.fault(wished.place, formatted("seq must be at least 1, not {}", *wished));
  judge_positions(resolver, *wished, wished.place);
}

// "512,1024,2048"; one number of tokens for each micro-batch in turn.
std::vector<std::int64_t> lengths_in(const std::string& text) {
  std::vector<std::int64_t> lengths;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int64_t length = 0;
    const auto [stop, fault] = std::from_chars(at, end, length);
    if (fault != std::errc() || length < 1) return {};
    lengths.push_back(length);
    if (stop == end) return lengths;
    if (*stop != ',') return {};
    at = stop + 1;
  }
}

void resolve_seq_list(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.seq_list;
  Training& training = resolver.training();
  training.seq_list = lengths_in(*wished);
  if (training.seq_list.empty()) {
    training.seq = 1;
    return resolver.fault(wished.place, formatted("\"{}\" is no list of lengths", *wished), "write it as 512,1024");
  }
  training.seq = *std::max_element(training.seq_list.begin(), training.seq_list.end());
  resolver.given("seq", *wished, wished.place, "--seq-list");
  if (resolver.request.seq.given()) {
    resolver.announce(resolver.request.seq.place,
                      formatted("seq {} gives way to {}", *resolver.request.seq, wished.place.text()));
  }
  judge_positions(resolver, training.seq, wished.place);
}

// Of the target, which only a decoder behind an encoder has.
void resolve_target_seq(Resolver& resolver) {
  const Setting<std::int64_t>& wished = resolver.request.target_seq;
  const Dimensions& dims = resolver.model.dims;
  Training& training = resolver.training();
  if (dims.decoder_layers == 0) {
    if (!wished.given()) return;
    return resolver.fault(wished.place, formatted("{} has no encoder and decoder", resolver.model.name),
                          "--seq says how long its rows are");
  }
  const std::int64_t most = dims.target_positions;
  if (!wished.given()) {
    training.target_seq = most > 0 ? std::min(most, training.seq) : training.seq;
    return resolver.assumed(
        "target_seq", std::to_string(training.target_seq),
        most > 0 ? "min(seq, max_target_positions), all rows full" : "as many as seq, all rows full", "--target-seq");
  }
  training.target_seq = *wished;
  resolver.given("target_seq", std::to_string(*wished), wished.place, "--target-seq");
  if (*wished < 1) return resolver.fault(wished.place, formatted("target_seq must be at least 1, not {}", *wished));
  if (most == 0 || *wished <= most) return;
  resolver.fault(wished.place, formatted("target_seq {} is beyond the {} learned positions of {}'s decoder", *wished,
                                         most, resolver.model.name));
}

// The kernel that scaled_dot_product_attention picks with full rows (aten/src/ATen/native/transformers/cuda/
// sdp_utils.cpp). cuDNN comes first on devices of compute capability 9 and 10, where its release is newer than 9.15, as
// in torch's wheels from 2.11 on; it takes 16 bits and masks, and heads of a multiple of 8 up to 128, on sm_90 256.
// Flash needs 16 bits, heads of at most 256, compute capability 8.0 and no mask; otherwise it is the memory-efficient
// one, which takes no grouped heads, or the math kernel. Where a window masks some layers only, it is the others'
// kernel.
struct Kernel {
  Attention attention;
  std::string why;
};

bool masked(const Resolver& resolver) {
  const bool windowed = reaches_window(resolver.model, resolver.job.training.seq);
  return (windowed && !masks_some_layers(resolver.model)) || always_masked(resolver.model) ||
         biases_positions(resolver.model);
}

bool before_ampere(const Resolver& resolver) {
  if (resolver.hardware == nullptr) return false;
  const std::string& architecture = resolver.hardware->architecture;
  return architecture == "sm_70" || architecture == "sm_75" || architecture.starts_with("sm_6");
}

std::string why_not_flash(const Resolver& resolver) {
  if (resolver.job.training.compute_dtype() == DType::Float32) return "fp32";
  if (resolver.model.dims.head_dim > 256) return "heads wider than 256";
  if (masked(resolver)) return "an attention mask";
  if (before_ampere(resolver)) return "a GPU before sm_80";
  if (own_value_width(resolver.model)) return "values of another width than queries";
  return {};
}

bool prefers_cudnn(const Resolver& resolver) {
  constexpr Version kFirst{2, 11, 0};
  const Training& training = resolver.job.training;
  if (resolver.hardware == nullptr || training.torch < kFirst) return false;
  const std::string& architecture = resolver.hardware->architecture;
  const bool hopper = architecture == "sm_90";
  if (!hopper && architecture != "sm_100" && architecture != "sm_103") return false;
  const DType dtype = training.compute_dtype();
  if (dtype != DType::BFloat16 && dtype != DType::Float16) return false;
  const std::int64_t width = resolver.model.dims.head_dim;
  if (own_value_width(resolver.model) && !hopper) return false;  // Which has not been looked at.
  return width % 8 == 0 && width <= (hopper ? 256 : 128) && training.seq != 1 && training.target_seq != 1;
}

// t5 makes its bias of positions by turning [Sq, Sk, H] round: neighbours lie a head's count apart, and the fused
// kernels ask for rows without gaps (check_last_dim_stride_equals_1_dense of sdp_utils_cpp.h).
bool has_strided_bias(const Resolver& resolver) {
  return biases_positions(resolver.model) && resolver.model.dims.heads > 1;
}

// torchtitan's sdpa_kernel(set_priority=True) asks for cuDNN first, then flash, then math, before 0.2.2 for the
// memory-efficient kernel ahead of that one; 0.1 asks for cuDNN on compute capability 10.0 alone (models/attention.py).
Kernel torchtitan_kernel(const Resolver& resolver) {
  const Training& training = resolver.job.training;
  const std::int64_t width = resolver.model.dims.head_dim;
  const std::string architecture = resolver.hardware == nullptr ? "sm_90" : resolver.hardware->architecture;
  const bool old = before_ampere(resolver);
  if (training.compute_dtype() == DType::Float32 || old) {
    const std::string why = old ? "a GPU before sm_80" : "fp32";
    return {training.torchtitan < kWitnessTorchtitan ? Attention::MemoryEfficient : Attention::Math, why};
  }
  const bool asks = training.torchtitan >= Version{0, 2, 0} || architecture == "sm_100";
  if (asks && width % 8 == 0 && width <= (architecture == "sm_90" ? 256 : 128) && training.seq != 1) {
    return {Attention::CuDnn, "16 bits, where torchtitan asks for cuDNN first"};
  }
  return {Attention::Flash,
          asks ? "16 bits, in heads that cuDNN does not take" : "16 bits, which torchtitan asks first"};
}

bool mixes_kernels(const Resolver& resolver) { return has_strided_bias(resolver) || looks_at_pictures(resolver.model); }

Kernel sdpa_kernel(const Resolver& resolver) {
  if (resolver.model.code == ModelCode::Torchtitan) return torchtitan_kernel(resolver);
  if (eager_alone(resolver.model)) return {Attention::Eager, "a class that has eager attention alone"};
  if (shares_one_head(resolver.model)) return {Attention::Math, "one key-value head that is not repeated"};
  if (has_strided_bias(resolver)) {
    const Attention between = prefers_cudnn(resolver) ? Attention::MathOrCuDnn : Attention::MathOrEfficient;
    return {between, "a bias of positions whose rows have gaps, and zeros between the stacks"};
  }
  if (prefers_cudnn(resolver)) {
    return {Attention::CuDnn,
            formatted("16 bits on {}, where torch 2.11 prefers cuDNN", resolver.hardware->architecture)};
  }
  const std::string reason = why_not_flash(resolver);
  if (reason.empty()) return {Attention::Flash, "16 bits, causal, no mask"};
  const Dimensions& dims = resolver.model.dims;
  const Training& training = resolver.job.training;
  const bool grouped = dims.kv_heads != dims.heads && keeps_heads_grouped(training.transformers, training.torch);
  if (!grouped || masked(resolver) || dims.head_dim > 256) return {Attention::MemoryEfficient, reason};
  if (looks_at_pictures(resolver.model)) {
    return {Attention::MathOrEfficient, reason + " and grouped heads, which masks of pictures repeat"};
  }
  return {Attention::Math, reason + " and grouped heads"};
}

// flash-attn's kernel is told of a window, where transformers would make a mask of it.
bool sees_to_window(const ModelSpec& model, std::int64_t seq) {
  const DecoderParts* parts = model.parts.get();
  if (parts == nullptr || parts->chunked || parts->full || masks_pictures(model) || always_masked(model)) return false;
  return reaches_window(model, seq);
}

// Of a mixer without attention: whether its packages are installed decides what transformers runs.
void assume_mixer(Resolver& resolver) {
  const DecoderParts* parts = resolver.model.parts.get();
  if (parts == nullptr || !parts->has_mixers()) return;
  const std::string_view beside = parts->convolution.kernel > 0 ? ""
                                  : parts->delta.heads > 0      ? "flash-linear-attention and "
                                                                : "mamba_ssm and ";
  resolver.assumed("mixer", "torch",
                   formatted("transformers' own code, as without {}causal_conv1d; with {}, "
                             "tools/export_graph.py records the model",
                             beside, beside.empty() ? "it" : "them"),
                   "");
}

// Beside packed weights norms are in fp32, and transformers casts queries, keys and values back for flash-attn
// (integrations/flash_attention.py, get_target_dtype): to autocast's dtype, or without it to that of the configuration.
void refuse_flash_in_fp32(Resolver& resolver, const Setting<std::string>& wished) {
  if (*wished == "flash" || !packing_of(resolver.model)) {
    return resolver.fault(wished.place, "flash attention with fp32", "the kernel takes fp16 and bf16 only");
  }
  resolver.fault(wished.place,
                 "flash attention beside what prepare_model_for_kbit_training casts to fp32: transformers casts "
                 "queries, keys and values for the kernel, which is modelled under autocast alone",
                 "--autocast bf16, as the Trainer's bf16 is; or --kbit-prepare false");
}

void resolve_attention(Resolver& resolver) {
  assume_mixer(resolver);
  const Setting<std::string>& wished = resolver.request.attention;
  Training& training = resolver.training();
  if (!wished.given()) {
    const Kernel kernel = sdpa_kernel(resolver);
    training.attention = kernel.attention;
    return resolver.assumed(
        "attention", std::string(name(kernel.attention)),
        formatted("{}, sdpa, with {}",
                  resolver.model.code == ModelCode::Torchtitan ? "torchtitan's choice" : "transformers' default",
                  kernel.why),
        "--attention");
  }
  std::string text = *wished;
  if (text == "fa2" || text == "flash_attention_2" || text == "flash-attention-2" || text == "flash-2") {
    resolver.announce(wished.place, formatted("\"{}\" is predicted as sdpa's own flash kernel, which keeps the same "
                                              "tensors; flash-attn itself was not measured",
                                              text));
    training.windows_in_kernel = sees_to_window(resolver.model, training.seq);
    text = "flash";
  }
  if (text.starts_with("flash_attention_") || text == "flex_attention" || text.starts_with("fa3")) {
    return resolver.not_modelled(wished.place, formatted("attention \"{}\" (sdpa's own kernel is \"flash\")", text));
  }
  if (text == "sdpa") training.attention = sdpa_kernel(resolver).attention;
  bool known = text == "sdpa";
  for (const Attention one : {Attention::Eager, Attention::Math, Attention::Flash, Attention::MemoryEfficient,
                              Attention::CuDnn, Attention::MathOrEfficient, Attention::MathOrCuDnn}) {
    if (text != name(one) || (takes_two_kernels(one) && !mixes_kernels(resolver))) continue;
    training.attention = one;
    known = true;
  }
  if (training.attention == Attention::MemoryEfficient && has_strided_bias(resolver)) {
    resolver.announce(wished.place,
                      "no fused kernel takes t5's bias of positions as transformers makes it: "
                      "this is a t5 whose bias was made contiguous");
  }
  if (!known && text.find('/') != std::string::npos) {
    return resolver.fault(wished.place, formatted("attention \"{}\", kernels of the hub, is not modelled yet", text),
                          "sdpa, flash and eager are");
  }
  if (!known && text.starts_with("flash")) {
    return resolver.fault(wished.place, formatted("attention \"{}\" is not known", text),
                          "flash-attn's is flash_attention_2, sdpa's own kernel flash");
  }
  if (!known) {
    const std::string_view meant = nearest(text, {"eager", "math", "flash", "mem-efficient", "cudnn", "sdpa"});
    return resolver.fault(
        wished.place, formatted("attention \"{}\" is not known", text),
        meant.empty() ? "it is one of eager, math, flash, mem-efficient, cudnn, sdpa" : did_you_mean(meant));
  }
  resolver.given("attention", std::string(name(training.attention)), wished.place, "--attention");
  if (text != "flash") return;
  if (training.compute_dtype() == DType::Float32) refuse_flash_in_fp32(resolver, wished);
  if (before_ampere(resolver)) {
    resolver.fault(wished.place, formatted("flash attention on {}", resolver.hardware->name),
                   "the kernel needs sm_80 or newer");
  }
}

void announce_trainer(Resolver& resolver, const Place& place) {
  const Training& training = resolver.job.training;
  if (scores_in_pieces(training.loss)) {
    resolver.announce(place,
                      "TRL 1.16.0's head, piece by piece of the logits, with every token counted but each row's first; "
                      "releases without it take the whole logits: --loss hf");
  }
  if (of_pairs(training.loss)) {
    resolver.announce(place, "micro-batches count pairs, of which the model sees the chosen and the rejected row");
  }
  if (of_tagged_rows(training.loss)) {
    resolver.announce(place, "half of a micro-batch's rows are taken as desirable, the greater half of an odd number");
  }
  if (asks_for_prompts(training.loss)) {
    resolver.announce(place, "prompts are taken as half as long as rows, in the batch beside them");
  }
}

void resolve_given_loss(Resolver& resolver, const Setting<std::string>& wished) {
  const std::string_view text = *wished;
  Training& training = resolver.training();
  if (text.starts_with("chunked:")) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + 8, end, training.loss_chunks);
    if (error != std::errc() || at != end || training.loss_chunks < 1 || training.seq % training.loss_chunks != 0) {
      return resolver.fault(
          wished.place, formatted("\"{}\" needs a number that divides seq {} after \"chunked:\"", text, training.seq));
    }
    training.loss = Loss::Chunked;
  } else if (text == "native") {
    training.loss = Loss::Native;
  } else if (text == "liger") {
    training.loss = Loss::Liger;
  } else if (text == name(Loss::Cut)) {
    training.loss = Loss::Cut;
  } else if (const std::optional<Loss> trainers = trainers_loss(text)) {
    training.loss = *trainers;
    announce_trainer(resolver, wished.place);
  } else if (text != "hf") {
    std::vector<std::string_view> known{"hf", "native", "liger", name(Loss::Cut)};
    const std::vector<std::string_view> others = names_of_trainers_losses();
    known.insert(known.end(), others.begin(), others.end());
    const std::string_view meant = nearest(text, known);
    return resolver.fault(wished.place, formatted("loss \"{}\" is not known", text),
                          meant.empty()
                              ? formatted("it is one of hf, native, chunked:N, liger, cut, {}", joined(others, ", "))
                              : did_you_mean(meant));
  }
  resolver.given("loss", std::string(text), wished.place, "--loss");
}

// Its loss is a part of it, and so is its loop, unless another is asked for.
void resolve_model_code(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.model_code;
  if (!wished.given()) return resolve_torchtitan(resolver);
  Training& training = resolver.training();
  if (*wished != "torchtitan" && *wished != "transformers") {
    return resolver.fault(wished.place, formatted("model code \"{}\" is neither transformers nor torchtitan", *wished));
  }
  resolver.given("model_code", *wished, wished.place, "--model-code");
  if (*wished == "torchtitan") {
    training.model_code = ModelCode::Torchtitan;
    training.transformers = kWitnessTransformers;
    training.loop = LoopKind::Torchtitan;
  }
  resolve_torchtitan(resolver);
}

// torch.utils.checkpoint stops early unless it is told not to; torchtitan's key, off by default, is as old as 0.2
// (config/job_config.py).
void resolve_early_stop(Resolver& resolver) {
  Training& training = resolver.training();
  const bool titan = training.model_code == ModelCode::Torchtitan && training.torchtitan >= Version{0, 2, 0};
  training.checkpoint.stops_early = resolver.request.early_stop.value_or(!titan);
}

// _op_sac_save_list has cuDNN's attention since 0.2.1; before, what is kept by operator leaves it out.
void leave_out_cudnn(Training& training) {
  if (training.model_code != ModelCode::Torchtitan || training.torchtitan >= Version{0, 2, 1}) return;
  if (training.attention != Attention::CuDnn) return;
  for (CheckpointGroup& group : training.checkpoint.groups) std::erase(group.kept, Op::Attention);
}

void resolve_loss(Resolver& resolver) {
  const Setting<std::string>& loss = resolver.request.loss;
  Training& training = resolver.training();
  if (training.model_code == ModelCode::Torchtitan) {
    training.loss = Loss::Summed;
    if (!loss.given()) return resolver.derived("loss", "summed", "torchtitan's own code", "--loss");
    return resolver.fault(loss.place, formatted("loss \"{}\": torchtitan's own code has a loss of its own", *loss),
                          "leave it out");
  }
  if (!loss.given()) {
    resolver.assumed("loss", "hf", "Hugging Face's causal loss with fp32 logits", "--loss");
  } else {
    resolve_given_loss(resolver, loss);
  }
}

// ParallelDims.seq_len_divisor is twice the degree of context parallelism (distributed/parallel_dims.py).
void check_torchtitan_length(Resolver& resolver) {
  const Training& training = resolver.job.training;
  const bool stops = training.loop == LoopKind::Torchtitan && training.torchtitan >= Version{0, 2, 0};
  if (!stops || training.seq % 2 == 0) return;
  resolver.fault(resolver.request.seq.given() ? resolver.request.seq.place : option("--seq"),
                 formatted("seq {}: torchtitan stops at odd lengths", training.seq),
                 formatted("{} is the next", training.seq + 1));
}

void resolve_activation_offloading(Resolver& resolver) {
  const Setting<std::string>& wanted = resolver.request.activation_offloading;
  if (!wanted.given()) return;
  constexpr std::array kKinds{ActivationOffloading::None, ActivationOffloading::Streams,
                              ActivationOffloading::SingleStream};
  const auto* found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](ActivationOffloading one) { return *wanted == name(one); });
  if (found == kKinds.end()) {
    return resolver.fault(wanted.place,
                          formatted("activation offloading \"{}\" is none of none, streams, single-stream", *wanted));
  }
  resolver.training().activation_offloading = *found;
  resolver.given("activation_offloading", *wanted, wanted.place, "--activation-offloading");
}

void resolve_loss_and_loop(Resolver& resolver) {
  resolve_loss(resolver);
  resolve_liger(resolver);
  if (const Setting<bool> cache = truth_of(resolver, resolver.request.use_cache, "use_cache"); cache.given()) {
    resolver.training().use_cache = *cache;
    resolver.given("use_cache", *cache ? "true" : "false", cache.place, "--set use_cache");
  }
  if (const Setting<bool> one = truth_of(resolver, resolver.request.labels_are_ids, "labels_are_ids"); one.given()) {
    resolver.training().labels_are_ids = *one;
    resolver.given("labels_are_ids", *one ? "true" : "false", one.place, "--set labels_are_ids");
  }
  const auto take = [&](const Setting<bool>& wanted, const char* key, bool& into) {
    if (!wanted.given()) return;
    into = *wanted;
    resolver.given(key, *wanted ? "true" : "false", wanted.place, "the training file");
  };
  take(resolver.request.input_require_grads, "input_require_grads", resolver.training().input_require_grads);
  take(resolver.request.layers_require_grads, "layers_require_grads", resolver.training().layers_require_grads);
  resolve_activation_offloading(resolver);
  const Setting<std::string>& loop = resolver.request.loop;
  if (!loop.given()) return check_torchtitan_length(resolver);
  constexpr std::array kLoops{LoopKind::Trainer, LoopKind::Minimal,    LoopKind::Loss,
                              LoopKind::Script,  LoopKind::Torchtitan, LoopKind::FactoryV1};
  const auto* found = std::find_if(kLoops.begin(), kLoops.end(), [&](LoopKind one) { return *loop == name(one); });
  if (found == kLoops.end()) {
    return resolver.fault(
        loop.place,
        formatted("loop \"{}\" is none of trainer, minimal, loss, script, torchtitan, llama-factory-v1", *loop));
  }
  if (*found == LoopKind::Torchtitan && resolver.training().model_code != ModelCode::Torchtitan) {
    return resolver.fault(loop.place, "loop \"torchtitan\" around another code", "--model-code torchtitan");
  }
  resolver.training().loop = *found;
  resolver.given("loop", *loop, loop.place, "--loop");
  check_torchtitan_length(resolver);
}

// LLaMA-Factory v1's loss and its loop move each other's batch, and come together.
void check_factory_loop(Resolver& resolver) {
  const Training& training = resolver.job.training;
  const bool loss = training.loss == Loss::Weighted;
  const bool loop = training.loop == LoopKind::FactoryV1;
  if (loss == loop) return;
  const Setting<std::string>& said = loss ? resolver.request.loss : resolver.request.loop;
  resolver.fault(said.place,
                 loss ? "the loss \"weighted\" in another loop than LLaMA-Factory v1's"
                      : "LLaMA-Factory v1's loop around another loss than its own",
                 loss ? "--loop llama-factory-v1" : "--loss weighted");
}

// Height and width: N or HEIGHTxWIDTH, in a training file also two numbers.
std::vector<std::int64_t> sides_in(std::string text) {
  std::replace(text.begin(), text.end(), 'x', ',');
  std::vector<std::int64_t> sides = lengths_in(text);
  if (sides.size() == 1) sides.push_back(sides.front());
  return sides.size() == 2 ? sides : std::vector<std::int64_t>{};
}

// What a picture's sides are where the processor has made them whole tokens.
void resolve_image_size(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.image_size;
  const TowerParts* tower = sized_tower(resolver.model);
  if (tower == nullptr) {
    if (!wished.given()) return;
    return resolver.fault(wished.place, formatted("image_size {} of {}, which does not take pictures of all sizes",
                                                  *wished, resolver.model.name));
  }
  std::vector<std::int64_t>& size = resolver.training().image_size;
  size = wished.given() ? sides_in(*wished) : std::vector<std::int64_t>{448, 448};
  if (size.empty()) {
    size = {448, 448};
    return resolver.fault(wished.place, formatted("\"{}\" is no size of a picture", *wished),
                          "write it as 448, or 672x448 for height and width");
  }
  size = resized(*tower, size);
  if (!tower->cuts.empty()) {
    const Tiling tiling = tiling_of(*tower, size);
    if (tiling.rows < 1 || tiling.columns < 1) {
      const std::string shape = joined(size, "x");
      resolver.fault(wished.place, formatted("of a picture of {} no place is left where its padding goes", shape),
                     "its sides are too far apart");
    }
  }
  const std::string text = joined(size, "x");
  if (wished.given()) {
    resolver.given("image_size", text, wished.place, "--image-size");
  } else {
    resolver.assumed("image_size", text, "the tower takes pictures of all sizes", "--image-size");
  }
}

// Between pictures of all sizes, and around them, stands a mark; of mistral3 one ends each row of a picture.
std::int64_t marks_of(const TowerParts* tower, const Training& training) {
  if (tower == nullptr || tower->merge == 0) return 0;
  const bool by_row = tower->projection == ProjectorKind::Unfolded;
  return training.images * (by_row ? grid_of(*tower, training.image_size).height / tower->merge : 2);
}

// Pictures per row of a model that reads text besides. Without any its tower takes no part in the step.
void resolve_images(Resolver& resolver) {
  const Setting<std::int64_t>& wished = resolver.request.images;
  resolve_image_size(resolver);
  Training& training = resolver.training();
  const std::int64_t tokens = picture_tokens(resolver.model, training.image_size);
  if (tokens == 0) {
    if (!wished.given()) return;
    return resolver.fault(
        wished.place, formatted("images {} of {}, which reads no pictures beside text", *wished, resolver.model.name));
  }
  training.images = wished.value_or(1);
  if (training.images < 0) {
    return resolver.fault(wished.place,
                          formatted("images {}; it is the number of pictures in a row, 0 or more", training.images));
  }
  if (wished.given()) {
    resolver.given("images", std::to_string(*wished), wished.place, "--images");
  } else {
    resolver.assumed("images", "1", formatted("one picture per row, of {} tokens", tokens), "--images");
  }
  const std::vector<std::int64_t>& lengths = training.seq_list;
  const std::int64_t least = lengths.empty() ? training.seq : *std::min_element(lengths.begin(), lengths.end());
  const std::int64_t marks = marks_of(sized_tower(resolver.model), training);
  if (checked_mul(training.images, tokens) + marks <= least) return;
  resolver.fault(wished.given() ? wished.place : option("--seq"),
                 formatted("{} pictures of {} tokens each are more than seq {}", training.images, tokens, least),
                 "pictures' tokens are part of the sequence");
}

void resolve_level(Resolver& resolver) {
  const Setting<std::string>& level = resolver.request.level;
  if (!level.given()) return;
  if (*level != "kernel" && *level != "dispatch") {
    return resolver.fault(level.place, formatted("level \"{}\" is neither kernel nor dispatch", *level));
  }
  resolver.training().level = *level == "dispatch" ? Level::Dispatch : Level::Kernel;
  resolver.given("level", *level, level.place, "--level");
}

void resolve_freeze(Resolver& resolver) {
  const Setting<std::vector<std::string>>& wished = resolver.request.freeze;
  if (!wished.given()) return;
  for (const std::string& glob : *wished) {
    const std::vector<Parameter>& all = resolver.model.parameters;
    const bool any = std::any_of(all.begin(), all.end(),
                                 [&glob](const Parameter& parameter) { return glob_matches(glob, parameter.name); });
    if (any) {
      resolver.training().freeze.push_back(glob);
    } else {
      resolver.fault(wished.place, formatted("freeze \"{}\" matches no parameter of {}", glob, resolver.model.name));
    }
  }
  const std::vector<Parameter>& all = resolver.model.parameters;
  const bool learns = std::any_of(all.begin(), all.end(), [&](const Parameter& parameter) {
    return parameter.tied_to == kNone && resolver.training().trains(parameter);
  });
  if (!learns) {
    resolver.fault(wished.place, "freeze leaves nothing to train",
                   "PyTorch's backward refuses a loss that needs no gradient");
  }
}

// transformers handed use_reentrant=True on until 4.x, and False since 5.0.
CheckpointKind checkpoint_kind(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.checkpoint_impl;
  const bool used = resolver.request.checkpoint.given() && *resolver.request.checkpoint != "none";
  if (wished.given()) {
    const bool reentrant = *wished == "reentrant";
    const bool deepspeed = *wished == "deepspeed";
    if (!reentrant && !deepspeed && *wished != "non_reentrant") {
      resolver.fault(wished.place, formatted("no implementation \"{}\"", *wished),
                     "it is reentrant, non_reentrant or deepspeed");
    }
    if (deepspeed && !resolver.deepspeed()) {
      resolver.fault(wished.place, "DeepSpeed's checkpointing with runtime pytorch",
                     "give a DeepSpeed JSON or a stage");
    }
    if (!used && !resolver.request.training_arguments) {
      resolver.fault(wished.place, "an implementation of checkpointing, but nothing is checkpointed");
    }
    if (used) resolver.given("checkpoint_impl", *wished, wished.place, "--checkpoint-impl");
    if (deepspeed) return CheckpointKind::DeepSpeed;
    return reentrant ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant;
  }
  const CheckpointKind kind =
      resolver.training().transformers.major < 5 ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant;
  if (used) {
    resolver.derived("checkpoint_impl", std::string(name(kind)),
                     formatted("transformers {}", resolver.training().transformers.text()), "--checkpoint-impl");
  }
  return kind;
}

void assume_targets(Resolver& resolver) {
  const std::string& family = resolver.model.family;
  const std::vector<std::string> usual = usual_targets(family);
  if (!usual.empty()) {
    return resolver.assumed("lora_targets", formatted("{}", joined(usual, "+")),
                            formatted("peft 0.21's own for {}", family), "--lora");
  }
  resolver.assumed("lora_targets", "all-linear", formatted("peft 0.21 knows none of its own for {}", family), "--lora");
  resolver.announce(resolver.request.lora.place,
                    formatted("LoRA without targets: peft 0.21 knows none of its own for {}, and stops; targets="
                              "all-linear is taken, which LoraConfig has to say",
                              family));
}

void resolve_lora(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.lora;
  if (!wished.given()) return;
  resolver.given("lora", *wished, wished.place, "--lora");
  if (parse_lora(wished).targets.empty()) assume_targets(resolver);
  if (!resolver.deepspeed() || !resolver.training().casts_parameters()) return;
  resolver.announce(wished.place, formatted("DeepSpeed casts the adapters to {}, as the whole model",
                                            name(resolver.job.training.dtype)));
}

// prepare_model_for_kbit_training turns checkpointing on, and hands no use_reentrant on (peft 0.21, utils/other.py).
void checkpoint_packed_model(Resolver& resolver) {
  Request request = resolver.request;
  const Place place = option("prepare_model_for_kbit_training");
  request.checkpoint = {"full", place};
  if (!request.checkpoint_impl.given()) request.checkpoint_impl = {"reentrant", place};
  const bool reentrant = *request.checkpoint_impl == "reentrant";
  resolver.training().checkpoint = resolve_checkpointing(
      request, resolver.model, reentrant ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant);
  resolver.derived("checkpointing", "full", "prepare_model_for_kbit_training turns it on", "--checkpoint");
  resolver.derived("checkpoint_impl", *request.checkpoint_impl, "prepare_model_for_kbit_training names none",
                   "--checkpoint-impl");
}

void resolve_checkpoint(Resolver& resolver) {
  const Request& request = resolver.request;
  const std::optional<Quantization> packing = packing_of(resolver.model);
  if (packing && packing->prepared && !request.checkpoint.given() && !request.training_arguments)
    return checkpoint_packed_model(resolver);
  try {
    // create_selective_checkpoint_contexts exists in the non-reentrant form only: asking for it chooses that.
    const bool selective = request.checkpoint.given() && (request.checkpoint->starts_with("keep:") ||
                                                          request.checkpoint->find(" keep:") != std::string::npos);
    const CheckpointKind kind =
        selective && !request.checkpoint_impl.given() ? CheckpointKind::NonReentrant : checkpoint_kind(resolver);
    resolver.training().checkpoint = resolve_checkpointing(request, resolver.model, kind);
  } catch (const Refusal& refusal) {
    for (const Diagnostic& diagnostic : refusal.diagnostics()) resolver.diagnostics.add(diagnostic);
    return;
  }
  configure_deepspeed_checkpointing(resolver);
  const std::string& text = resolver.training().checkpoint.text;
  if (request.checkpoint.given()) {
    resolver.given("checkpointing", text, request.checkpoint.place, "--checkpoint");
  } else if (request.training_arguments) {
    resolver.derived("checkpointing", text, "TrainingArguments without gradient_checkpointing", "--checkpoint");
  } else {
    resolver.assumed("checkpointing", text, "nothing turns it on", "--checkpoint");
  }
}

}  // namespace

void resolve_execution(Resolver& resolver) {
  if (resolver.request.seq_list.given()) {
    resolve_seq_list(resolver);
  } else {
    resolve_seq(resolver);
  }
  resolve_target_seq(resolver);
  resolve_images(resolver);
  resolve_model_code(resolver);
  resolve_attention(resolver);
  resolve_loss_and_loop(resolver);
  check_factory_loop(resolver);
  resolve_experts(resolver);
  resolve_level(resolver);
  resolve_freeze(resolver);
  resolve_lora(resolver);
  resolve_checkpoint(resolver);
  leave_out_cudnn(resolver.training());
  resolve_early_stop(resolver);
}

}  // namespace dsplan
