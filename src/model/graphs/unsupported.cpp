#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "model/families/encoders/translators.h"
#include "model/graphs/activations.h"
#include "model/graphs/by_family.h"
#include "model/graphs/graphs.h"
#include "model/lora.h"
#include "model/parts.h"
#include "model/pictures.h"
#include "model/quantized.h"
#include "model/recorded.h"
#include "model/traits.h"

namespace dsplan {
namespace {

// Models of transformers 4 are Python of their own. The Llama shape was compared with 4.53.3 and 4.57.6.
std::optional<std::string> version_unsupported(const ModelSpec& model, const Training& training) {
  if (training.transformers >= Version{5, 0, 0}) return std::nullopt;
  const bool llama = model.family == "llama" || model.family == "mistral" || model.family.starts_with("qwen");
  if (!llama) return formatted("the {} family under transformers 4", model.family);
  if (training.attention == Attention::Eager) return "eager attention under transformers 4";
  return std::nullopt;
}

// torch.utils.checkpoint with use_reentrant, or DeepSpeed's, around some of the first `layers` layers; kNone: of any.
bool checkpoints_reentrantly(const Training& training, std::int64_t layers = kNone) {
  const std::vector<CheckpointGroup>& groups = training.checkpoint.groups;
  return std::any_of(groups.begin(), groups.end(), [&](const CheckpointGroup& group) {
    return group.kind != CheckpointKind::NonReentrant && (layers == kNone || group.first < layers);
  });
}

std::int64_t shortest_rows(const Training& training) {
  return training.target_seq > 0 ? std::min(training.seq, training.target_seq) : training.seq;
}

// transformers makes a mask of the window.
bool masks_window(const ModelSpec& model, const Training& training, std::int64_t seq) {
  return !training.windows_in_kernel && reaches_window(model, seq);
}

// Of some layers that have key-value heads of their own.
bool text_lacks_mask(const ModelSpec& model, const Training& training) {
  const bool all = masks_pictures(model) && model.parts->tower->projection != ProjectorKind::Embedded;
  return !masks_window(model, training, training.seq) || (masks_some_layers(model) && !all);
}

// The memory-efficient kernel and cuDNN take a mask, flash and cuDNN take grouped heads.
std::optional<std::string> kernel_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  const bool windowed = masks_window(model, training, training.seq);
  const bool without_mask = text_lacks_mask(model, training);
  const bool grouped = groups_heads(model, tp) && keeps_heads_grouped(training.transformers, training.torch);
  switch (training.attention) {
    case Attention::Flash:
      if (training.compute_dtype() == DType::Float32) return "the flash kernel takes no fp32";
      if (windowed && !masks_some_layers(model)) return "the flash kernel takes no mask, as a window needs one";
      return std::nullopt;
    case Attention::MemoryEfficient:
      if (without_mask && grouped) return "the memory-efficient kernel takes no grouped heads";
      return std::nullopt;
    case Attention::CuDnn:
      if (training.torch < kWitnessTorch) return "cuDNN's attention before torch 2.11, with an older cuDNN";
      if (training.compute_dtype() == DType::Float32) return "cuDNN's attention takes no fp32";
      if (model.dims.head_dim % 8 != 0) return "cuDNN's attention takes heads of a multiple of 8";
      if (model.dims.head_dim > 256) return "cuDNN's attention takes no heads wider than 256";
      if (shortest_rows(training) == 1) return "cuDNN's attention takes no sequence of one token";
      return std::nullopt;
    case Attention::Math:
      if (windowed) return "math attention with a window's mask";
      if (training.transformers < Version{5, 0, 0}) return "math attention under transformers 4";
      return std::nullopt;
    default: return std::nullopt;
  }
}

// It reads lm_head.weight without calling the module. With fp32 weights its products have temporaries of their own.
std::optional<std::string> liger_unsupported(const ModelSpec& model, const Training& training) {
  if (model.family == "gpt2") return "Liger's loss in the gpt2 family, which it does not patch";
  if (model.family == "llama4_text") return "Liger's loss in the llama4_text family, not compared with its own yet";
  const ModuleId head = model.child(model.causal, "lm_head");
  if (head != kNone && model.parameter(head, "bias") != kNone) {
    return formatted("Liger's loss of {}, whose head has a bias that Liger leaves out", model.graph_class);
  }
  if (training.transformers < Version{5, 0, 0}) return "Liger's loss under transformers 4";
  const bool newer_gemma = model.family == "gemma2" || model.family == "gemma3_text";
  if (newer_gemma && training.liger < Version{0, 6, 5}) {
    return "Liger's loss in the gemma2 and gemma3_text families before 0.6.5, which does not load beside transformers "
           "5";
  }
  if (training.runtime == Runtime::DeepSpeed) return "Liger's loss under DeepSpeed";
  if (training.dtype == DType::Float32) return "Liger's loss with fp32 weights";
  return std::nullopt;
}

// A head of one product behind a decoder, beside which nothing adds to the loss.
std::optional<std::string> language_head_unsupported(const ModelSpec& model) {
  if (model.parts == nullptr || builder_of(model) != build_decoder_graph)
    return formatted("the {} family", model.family);
  if (model.parts->head != TextHead::LanguageModel)
    return formatted("{}, which is no language model", model.graph_class);
  if (model.dims.experts > 0) return "a mixture, whose router has a loss of its own there";
  for (const Module& module : model.modules) {
    if (module.path.ends_with("lm_head.base_layer")) return "adapters of lm_head, which TRL refuses";
  }
  return std::nullopt;
}

// cce_forward_multimodal of each family is its own.
std::optional<std::string> cut_pictures_unsupported(const ModelSpec& model) {
  if (model.parts->tower == nullptr) return std::nullopt;
  constexpr std::array<std::string_view, 2> kFamilies{"mistral3", "qwen3_5"};
  if (std::find(kFamilies.begin(), kFamilies.end(), model.family) != kFamilies.end()) return std::nullopt;
  return formatted("of pictures in the {} family, not compared yet", model.family);
}

// axolotl's plugin for cut cross-entropy. Its forward is llama's, or one that differs in what is done to logits.
std::optional<std::string> cut_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  const auto lacks = [](std::string_view what) { return formatted("cut cross-entropy {}", what); };
  if (tp > 1) return lacks("under tensor parallelism");
  if (const auto head = language_head_unsupported(model)) return lacks(formatted("of {}", *head));
  if (const auto shown = cut_pictures_unsupported(model)) return lacks(*shown);
  if (model.dims.final_softcap > 0) return lacks("of capped logits, which compiled code makes");
  if (model.parts->sharing.used) return lacks(formatted("in the {} family, not compared yet", model.family));
  if (training.transformers < Version{5, 0, 0}) return lacks("under transformers 4");
  if (training.runtime == Runtime::DeepSpeed && training.zero.stage == 3) {
    return lacks("under ZeRO-3, which gathers the head for it by itself");
  }
  if (is_fsdp(training.runtime) && training.fsdp.wrap.find("ends") != std::string::npos) {
    return lacks("over a head with a group of its own, which nobody gathers");
  }
  const bool cut = is_fsdp(training.runtime);
  if (!cut && training.dtype == DType::Float32) return lacks("over fp32 weights, which its backward does not take");
  const ModuleId head = model.child(model.causal, "lm_head");
  if (head == kNone || model.parameter(head, "weight") == kNone || model.parameter(head, "bias") != kNone) {
    return lacks("of another head than one weight");
  }
  return std::nullopt;
}

std::optional<std::string> fused_loss_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  if (training.loss == Loss::Liger) return liger_unsupported(model, training);
  return training.loss == Loss::Cut ? cut_unsupported(model, training, tp) : std::nullopt;
}

// Compared with Liger's own in these families alone; each has its differences.
std::optional<std::string> liger_kernels_unsupported(const ModelSpec& model, const Training& training) {
  const LigerKernels& kernels = training.liger_kernels;
  if (!kernels.any()) return std::nullopt;
  constexpr std::array<std::string_view, 4> kFamilies{"llama", "mistral", "qwen2", "qwen3"};
  if (std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end()) {
    return formatted("Liger's kernels in the {} family (they are in llama, mistral, qwen2 and qwen3)", model.family);
  }
  if (training.liger != kWitnessLiger) return formatted("Liger's kernels before {}", kWitnessLiger.text());
  if (training.transformers < Version{5, 0, 0}) return "Liger's kernels under transformers 4";
  if (kernels.swiglu && model.dims.activation != "silu") return "Liger's SwiGLU with another activation than silu";
  return std::nullopt;
}

// Values of another width than queries.
std::optional<std::string> width_unsupported(const ModelSpec& model, const Training& training) {
  if (!own_value_width(model)) return std::nullopt;
  if (training.attention == Attention::Flash) return "the flash kernel takes no values of another width than queries";
  return std::nullopt;
}

// falcon materialises its mask, and gives sdpa one key-value head for all as it is, which the fused kernels do not
// take: then it is the math kernel.
std::optional<std::string> always_masked_unsupported(const ModelSpec& model, const Training& training) {
  if (training.attention == Attention::Eager) return formatted("{}'s own eager attention", model.family);
  if (training.torch < kWitnessTorch) return formatted("a mask inside sdpa before torch {}", kWitnessTorch.text());
  const bool math = training.attention == Attention::Math;
  if (shares_one_head(model)) {
    if (math) return std::nullopt;
    return "a fused kernel over one key-value head that is not repeated, in the place of math";
  }
  if (math) return "math attention with a mask and several key-value heads";
  if (training.attention == Attention::Flash) return "the flash kernel takes no mask, as falcon makes one";
  if (model.dims.head_dim % 8 != 0) return "heads of no multiple of 8 under a mask";
  return training.attention == Attention::CuDnn ? kernel_unsupported(model, training, 1) : std::nullopt;
}

// t5's biases of positions are learned, and added to every score.
std::optional<std::string> biased_unsupported(const ModelSpec& model, const Training& training) {
  switch (training.attention) {
    case Attention::Flash: return "the flash kernel takes no bias, as t5 adds one";
    case Attention::CuDnn: return "cuDNN's attention with a bias that is learned";
    default: break;
  }
  if (model.dims.head_dim % 8 != 0 && training.attention != Attention::Eager)
    return "t5 with heads of no multiple of 8";
  const bool math = training.attention == Attention::Math || takes_two_kernels(training.attention);
  if (math && training.transformers < Version{5, 0, 0}) return "math attention under transformers 4";
  if (training.dtype == DType::Float16)
    return "t5 in fp16, of which transformers keeps a part in fp32, and bounds values";
  if (training.torch < kWitnessTorch) return formatted("a mask inside sdpa before torch {}", kWitnessTorch.text());
  return std::nullopt;
}

std::optional<std::string> attention_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  const bool eager = training.attention == Attention::Eager;
  const bool windowed = masks_window(model, training, training.seq);
  if (always_masked(model)) return always_masked_unsupported(model, training);
  if (biases_positions(model)) return biased_unsupported(model, training);
  if (eager) return std::nullopt;
  if (const auto width = width_unsupported(model, training)) return width;
  if (eager_alone(model)) return formatted("{} has eager attention alone", model.graph_class);
  if (windowed && training.transformers < Version{5, 0, 0}) return "a window's mask under transformers 4";
  for (const std::int64_t seq : training.seq_list) {
    if (windowed != masks_window(model, training, seq)) return "lengths on both sides of a sliding window";
  }
  if (model.dims.head_dim > 256 && groups_heads(model, tp)) return "grouped heads wider than 256";
  // How flags become an added mask has changed between releases (convert_boolean_attn_mask).
  if ((windowed || training.attention == Attention::Math) && training.torch < kWitnessTorch) {
    return formatted("a mask inside sdpa before torch {}", kWitnessTorch.text());
  }
  return kernel_unsupported(model, training, tp);
}

// monkeypatch/lora_kernels.py of axolotl 0.19, QKV_PATCHES and find_mlp_in_layer: its own rewriting of the attention's
// source, which ends where it does not find what it replaces, and an MLP of three projections. It looks for the class
// by the name that the model's type has in capitals (get_attention_cls_from_config), and ends where there is none.
std::optional<std::string> adapter_kernels_family(const ModelSpec& model, const AdapterKernels& kernels) {
  constexpr std::array<std::string_view, 22> kFamilies{
      "apertus",     "arcee",   "cohere2",  "ernie4_5",  "exaone4", "gemma",    "gemma2",   "gemma3",           "glm4",
      "gemma3_text", "granite", "llama",    "ministral", "mistral", "mistral3", "nemotron", "hunyuan_v1_dense", "qwen2",
      "qwen3",       "qwen3_5", "seed_oss", "smollm3"};
  constexpr std::array<std::string_view, 9> kOwnCode{"cohere", "mllama",   "olmo",       "olmo2",   "phi",
                                                     "phi3",   "stablelm", "qwen2_5_vl", "qwen2_vl"};
  constexpr std::array<std::string_view, 3> kNoClass{"glm46v", "llava", "smolvlm"};
  const auto is_one_of = [&model](const auto& families) {
    return std::find(families.begin(), families.end(), model.family) != families.end();
  };
  const bool attends = kernels.qkv || kernels.o;
  if (attends && (is_one_of(kOwnCode) || is_one_of(kNoClass))) {
    return formatted(
        "axolotl's kernels in the {} family, where its patch does not find the {} and axolotl ends "
        "(lora_mlp_kernel: false turns all of them off)",
        model.family, is_one_of(kNoClass) ? "class of attention" : "code that it replaces");
  }
  if (!is_one_of(kFamilies)) {
    return formatted("axolotl's kernels in the {} family, not compared with its own yet", model.family);
  }
  const std::string& activation = model.dims.activation;
  const bool gated = model.parts == nullptr || model.parts->mlp == MlpKind::Gated;  // Others are left to peft.
  if (kernels.mlp && gated && activation != "silu" && activation.find("gelu") == std::string::npos) {
    return formatted("axolotl's kernel of an MLP with {}; it has silu and gelu", activation);
  }
  return std::nullopt;
}

// Its functions read parameters without calling their modules, for which ZeRO-3 and FSDP1 gather.
std::optional<std::string> adapter_kernels_unsupported(const ModelSpec& model, const Training& training) {
  if (!training.lora_kernels.any() || model.causal == 0) return std::nullopt;
  if (auto reason = adapter_kernels_family(model, training.lora_kernels)) return reason;
  if (has_magnitudes(model)) return "axolotl's kernels with DoRA";
  const auto packing = packing_of(model);
  if (packing && packing->eight_bits()) return "axolotl's kernels over 8-bit weights, which axolotl refuses";
  // Its products take a norm's result with the unpacked weight, of one dtype.
  if (packing && packing->prepared) return "axolotl's kernels beside norms in fp32 (kbit_prepare: axolotl casts back)";
  if (training.dtype == DType::Float32) return "axolotl's kernels over fp32 weights";
  if (training.autocast && *training.autocast != training.dtype) {
    return formatted("axolotl's kernels over weights in {} under autocast in {}", name(training.dtype),
                     name(*training.autocast));
  }
  const bool gathers = training.runtime == Runtime::Fsdp1 || training.zero.stage == 3;
  return gathers ? std::optional<std::string>("axolotl's kernels over sharded parameters") : std::nullopt;
}

// Megatron's layers have no adapters and no autocast; its experts are cut in ways of their own. Its loss is in fp32.
std::optional<std::string> parallel_unsupported(const ModelSpec& model, const Training& training) {
  if (training.liger_kernels.any()) return "Liger's kernels under tensor parallelism";
  constexpr std::array kCut{"gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2"};
  if (std::find(kCut.begin(), kCut.end(), model.family) == kCut.end()) {
    return formatted("the {} family's activations under tensor parallelism", model.family);
  }
  if (model.dims.experts > 0) return "a mixture of experts under tensor parallelism";
  if (model.causal != 0) return "LoRA adapters under tensor parallelism";
  if (training.autocast) return "autocast under tensor parallelism";
  if (training.loss != Loss::HuggingFace) return "another loss than hf under tensor parallelism";
  const std::vector<CheckpointGroup>& groups = training.checkpoint.groups;
  if (std::any_of(groups.begin(), groups.end(), [](const CheckpointGroup& group) { return !group.kept.empty(); })) {
    return "selective checkpoints under tensor parallelism, which sums in place what they keep";
  }
  return std::nullopt;
}

// Linear8bitLt.forward leaves its bias in the dtype of what comes in: behind a norm in fp32 that is fp32, elsewhere
// autocast decides. Widths that 4 does not divide are multiplied in fp32 (backends/cuda/ops.py).
std::optional<std::string> int8_unsupported(const ModelSpec& model, const Training& training) {
  const bool moves = training.autocast && training.dtype != *training.autocast;
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    if (!packing_of(model.modules[at])) continue;
    const auto id = static_cast<ModuleId>(at);
    const Parameter& weight = model.parameter_at(model.parameter(id, "weight"));
    if (weight.shape.dims[1] % 4 != 0) return "8-bit products over a width that 4 does not divide";
    const std::string_view path = model.modules[at].path;
    const bool behind_norm = path.find("q_proj") != std::string_view::npos ||
                             path.find("k_proj") != std::string_view::npos ||
                             path.find("v_proj") != std::string_view::npos;
    if (moves && !behind_norm && model.parameter(id, "bias") != kNone) {
      return formatted("the bias of {} beside 8-bit weights under autocast", path);
    }
  }
  return std::nullopt;
}

// So many rows are multiplied by unpacked weights on every device. Below, bitsandbytes has a kernel that unpacks
// nothing, chosen by device and shape (backends/cuda/ops.py, _gemm_4bit_use_custom_cuda); a small weight has it longer.
std::int64_t rows_that_unpack(const ModelSpec& model, const Quantization& packing) {
  if (packing.compute == DType::Float32) return 8;
  constexpr std::int64_t kSmall = std::int64_t{4} << 20;
  const bool small = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& parameter) {
    const bool packed = packing_of(model.module_at(parameter.module)) && parameter.shape.rank == 2;
    return packed && unpacked_elements(parameter, packing).value() < kSmall;
  });
  return small ? 1537 : 513;
}

// axolotl's functions unpack for any number of rows.
bool unpacks_in_functions(const ModelSpec& model, const AdapterKernels& kernels) {
  constexpr std::string_view kBase = ".base_layer";
  return std::all_of(model.modules.begin(), model.modules.end(), [&](const Module& module) {
    if (!packing_of(module)) return true;
    std::string_view path = module.path;
    if (!path.ends_with(kBase)) return false;
    path.remove_suffix(kBase.size());
    const std::string_view name = path.substr(path.rfind('.') + 1);
    if (name == "q_proj" || name == "k_proj" || name == "v_proj") return kernels.qkv;
    if (name == "o_proj") return kernels.o;
    return kernels.mlp && (name == "gate_proj" || name == "up_proj" || name == "down_proj");
  });
}

std::optional<std::string> packed_unsupported(const ModelSpec& model, const Training& training) {
  const std::optional<Quantization> packing = packing_of(model);
  if (!packing) return std::nullopt;
  if (training.loss == Loss::Liger) return "Liger's loss over packed weights";
  if (packing->eight_bits()) return int8_unsupported(model, training);
  // MatMul4Bit's product stands inside of a function of its own, whose node nothing is kept for.
  const std::vector<CheckpointGroup>& groups = training.checkpoint.groups;
  if (std::any_of(groups.begin(), groups.end(), [](const CheckpointGroup& group) {
        return std::find(group.kept.begin(), group.kept.end(), Op::Linear) != group.kept.end();
      })) {
    return "selective checkpoints that keep the products of 4-bit weights";
  }
  if (training.autocast && *training.autocast != packing->compute && packing->compute != DType::Float32) {
    return "4-bit products in another dtype than autocast's";
  }
  const std::int64_t least = unpacks_in_functions(model, training.lora_kernels) ? 0 : rows_that_unpack(model, *packing);
  for (std::size_t k = 0; k < std::max<std::size_t>(1, training.seq_list.size()); ++k) {
    if (training.rows() * training.seq_of(static_cast<std::int64_t>(k)) < least) {
      return formatted("4-bit products of fewer than {} rows, for which bitsandbytes has another kernel", least);
    }
  }
  return std::nullopt;
}

std::optional<std::string> translator_unsupported(const ModelSpec& model, const Training& training) {
  if (training.dtype == DType::Float16) return formatted("{} in fp16, which bounds values", model.family);
  const ParameterId shared = model.parameter(model.child(model.child(model.causal, "model"), "shared"), "weight");
  const bool read = std::any_of(model.parameters.begin(), model.parameters.end(),
                                [&](const Parameter& one) { return one.tied_to == shared; });
  if (shared != kNone && !read) return "tables that are not tied, of which nothing reads the shared one";
  const Translator& of = *translator_of(model.family);
  const std::int64_t longest = std::max(training.seq, training.target_seq);
  const std::int64_t rows = model.dims.max_positions + 1 - std::max<std::int64_t>(model.dims.padding, 0);
  if (of.places == Places::Counted && longest > rows) {
    return formatted("more than {} tokens a row, for which {} makes its table of positions anew", rows, model.family);
  }
  return std::nullopt;
}

std::optional<std::string> encoder_decoder_unsupported(const ModelSpec& model, const Training& training) {
  if (model.dims.decoder_layers == 0) return std::nullopt;
  if (model.family == "whisper" && training.dtype == DType::Float16) return "whisper in fp16, which bounds values";
  if (model.family == "whisper" && training.seq != model.dims.max_positions) {
    return formatted("--seq {} of sound that is always {} positions", training.seq, model.dims.max_positions);
  }
  if (translator_of(model.family) != nullptr) {
    if (const auto translator = translator_unsupported(model, training)) return translator;
  }
  if (training.checkpoint.by_deepspeed()) {
    return "DeepSpeed's checkpoints of an encoder-decoder, whose layers take several tensors";
  }
  if (training.ddp.find_unused_parameters) {
    return "find_unused_parameters of an encoder-decoder, which copies the encoder's states as well";
  }
  return std::nullopt;
}

// Towers of pictures of all sizes. An operator joins no more than 64 windows.
std::optional<std::string> sized_unsupported(const TowerParts& tower, const Training& training) {
  if (tower.dims.head_dim % 8 != 0) return "a tower's heads of no multiple of 8";
  const bool masked = tower.projection == ProjectorKind::Unfolded || tower.projection == ProjectorKind::Embedded;
  if (!training.seq_list.empty() && !masked) {
    return "lengths in turn of a model that keeps how far its positions are";
  }
  if (masked && training.attention == Attention::Math) return "math attention with a mask over patches";
  if (masked && training.torch < kWitnessTorch) {
    return formatted("a mask inside sdpa before torch {}", kWitnessTorch.text());
  }
  const std::int64_t pictures = checked_mul(training.micro_batch, training.images);
  const Grid grid = grid_of(tower, training.image_size);
  const std::int64_t windows =
      tower.window == 0 ? 1 : static_cast<std::int64_t>(windows_of(tower, grid).patches.size());
  if (checked_mul(pictures, windows) > static_cast<std::int64_t>(Node::kMostInputs)) {
    return formatted("more than {} {} at once", Node::kMostInputs, windows > 1 ? "windows" : "pictures");
  }
  return std::nullopt;
}

bool has_adapters_of_patches(const ModelSpec& model) {
  return std::any_of(model.modules.begin(), model.modules.end(),
                     [](const Module& one) { return one.path.ends_with("patch_embedding.linear.base_layer"); });
}

// What a projector is given lies row by row where it is a copy.
std::optional<std::string> autocast_unsupported(const TowerParts& tower) {
  if (tower.by_block)
    return "autocast of smolvlm, whose pictures PyTorch does not put among embeddings of another dtype";
  const bool copied = tower.projection == ProjectorKind::Connected;
  if (tower.class_token || tower.tokens == 0 || copied) return std::nullopt;
  return "autocast of siglip's hidden states, which lie column by column, under a projector";
}

// Texts that ask for pictures: paligemma's, and mllama's, whose layers look at tiles of them.
std::optional<std::string> shown_unsupported(const TowerParts& tower, const Training& training) {
  if (tower.shows_prefix && training.images == 0) return "paligemma without pictures";
  if (tower.tiles == 0) return std::nullopt;
  if (checkpoints_reentrantly(training)) {
    return "reentrant checkpoints of mllama, whose layers are given pictures as keywords: nothing there gets a "
           "gradient";
  }
  if (training.attention == Attention::Math) {
    return formatted("math attention of mllama's masks ({} is modelled)", name(Attention::MathOrEfficient));
  }
  return training.images == 0 ? std::optional<std::string>("mllama without pictures") : std::nullopt;
}

// CLIPModel, SiglipModel, and what the pooling head of siglip's tower adds.
std::optional<std::string> contrasted_unsupported(const ModelSpec& model, const TowerParts& tower,
                                                  const Training& training) {
  if (tower.pools && !contrasts(model)) return "the pooling head of siglip's tower: \"vision_use_head\": false";
  if (contrasts(model) && training.transformers < kWitnessTransformers) {
    return formatted("{} before transformers {}", model.graph_class, kWitnessTransformers.text());
  }
  if (tower.pools && training.autocast) return "autocast of the pooling head of siglip's tower";
  return std::nullopt;
}

// What a tower adds to what its language model asks of kernels. An operator joins no more than 64 pictures.
std::optional<std::string> tower_unsupported(const ModelSpec& model, const Training& training) {
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  if (tower == nullptr) return std::nullopt;
  for (const std::string& activation : {tower->dims.activation, tower->projector_activation}) {
    if (!activation.empty() && !activation_has_graph(activation)) return formatted("the activation {}", activation);
  }
  if (tower->merge > 0) return sized_unsupported(*tower, training);
  if (const auto crossing = shown_unsupported(*tower, training)) return crossing;
  const bool adapted = tower->projection == ProjectorKind::Adapted;
  if (adapted && checkpoints_reentrantly(training, tower->dims.layers)) {
    return "reentrant checkpoints of llama4's tower, whose layers are called with keywords alone: nothing inside gets "
           "a gradient";
  }
  if (adapted && has_adapters_of_patches(model)) return "adapters of the product of patches";
  if (!tower->class_token && checkpoints_reentrantly(training, tower->dims.layers)) {
    return "reentrant checkpoints of siglip's layers, whose hidden states lie column by column";
  }
  if (const auto other = training.autocast ? autocast_unsupported(*tower) : std::nullopt) return other;
  if (tower->sees_itself && tower->image_token >= model.dims.vocab) {
    return "a picture's token that is no word of the vocabulary";
  }
  const bool alone = !tower->beside_text();
  if (const auto contrasted = contrasted_unsupported(model, *tower, training)) return contrasted;
  if (training.attention == Attention::CuDnn && tower->dims.head_dim > 256) {
    return "cuDNN's attention takes no heads wider than 256";
  }
  if (tower->dims.head_dim % 8 != 0) return "a tower's heads of no multiple of 8";
  if (!alone && checked_mul(training.micro_batch, std::max<std::int64_t>(training.images, 1)) >
                    static_cast<std::int64_t>(Node::kMostInputs)) {
    return formatted("more than {} pictures at once", Node::kMostInputs);
  }
  return std::nullopt;
}

// A picture is as long as its patches say.
std::optional<std::string> picture_unsupported(const ModelSpec& model, const Training& training) {
  if (model.dims.image == 0) return std::nullopt;
  const bool alone = model.parts == nullptr || model.parts->tower == nullptr;
  const bool token = alone || model.parts->tower->class_token;
  if (model.family == "dinov2" && training.seq > 1) {  // Whose positions are resampled.
    const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(training.seq - 1))));
    if (side * side != training.seq - 1) {
      return formatted("--seq {} of a picture that is a square of patches and a class token", training.seq);
    }
  } else if (training.seq != model.dims.max_positions) {
    return formatted("--seq {} of a picture that is {} patches{}: --seq {}", training.seq,
                     model.dims.max_positions - (token ? 1 : 0), token ? " and a class token" : "",
                     model.dims.max_positions);
  }
  const bool apart = training.runtime != Runtime::PyTorch || training.zero_grad_to_none;
  if (!token || training.micro_batch > 1 || apart) return std::nullopt;
  return "one picture at a time, whose class token takes its gradient as a part of another";
}

std::optional<std::string> kto_unsupported(const ModelSpec& model, const Training& training) {
  if ((training.loss == Loss::Kto || training.loss == Loss::KtoRows) && training.micro_batch == 1)
    return "KTO of one row, which TRL refuses";
  if (training.loss == Loss::KtoRows && model.reference != kNone) {
    return "TRL's KTO with a second model, of whose forward 1 MiB is not found yet";
  }
  return std::nullopt;
}

// Several rows have positions of their own, and tables of waves with them.
std::optional<std::string> weighed_unsupported(const ModelSpec& model, const Training& training) {
  constexpr std::string_view kWhat = "LLaMA-Factory v1's loss";
  if (const auto head = fused_head_unsupported(model)) return formatted("{} of {}", kWhat, *head);
  constexpr std::array<std::string_view, 2> kCompared{"llama", "qwen3"};
  if (std::find(kCompared.begin(), kCompared.end(), model.family) == kCompared.end()) {
    return formatted("{} in the {} family, not compared yet", kWhat, model.family);
  }
  if (training.micro_batch > 1) return formatted("{} of several rows, each with positions of its own", kWhat);
  if (training.autocast) return formatted("{} under autocast", kWhat);
  if (training.checkpoint.groups.empty()) {
    return formatted("{} without checkpoints, where the model keeps keys and values as well", kWhat);
  }
  if (training.runtime != Runtime::PyTorch && training.runtime != Runtime::Fsdp2) {
    return formatted("{} under {}", kWhat, name(training.runtime));
  }
  if (packing_of(model)) return formatted("{} over packed weights", kWhat);
  return std::nullopt;
}

std::optional<std::string> rewards_unsupported(const ModelSpec& model) {
  const bool classes = model.parts != nullptr && model.parts->head == TextHead::Text && model.dims.labels == 1;
  if (!classes) return formatted("rewards of {}, which has no head of one label", model.graph_class);
  if (builder_of(model) != build_decoder_graph) return formatted("rewards of {} beside a mask", model.graph_class);
  return std::nullopt;
}

// Trainers of TRL and LLaMA-Factory. TRL's head reads lm_head.weight without calling the module; a second model is
// prepared apart.
std::optional<std::string> trainers_unsupported(const ModelSpec& model, const Training& training) {
  if (training.transformers < Version{5, 0, 0}) {
    return formatted("{} under transformers 4", of_whole_logits(training.loss) ? "a loss of pairs" : "TRL's losses");
  }
  if (training.loss == Loss::Weighted) return weighed_unsupported(model, training);
  if (of_rewards(training.loss)) return rewards_unsupported(model);
  const bool valued = training.loss == Loss::RewardValues;
  const bool whole = of_whole_logits(training.loss) || valued;
  const std::string_view what = valued                          ? "a value head"
                                : of_tagged_rows(training.loss) ? "KTO"
                                : whole                         ? "a loss of pairs"
                                                                : "TRL's fused head";
  if (const auto head = fused_head_unsupported(model)) return formatted("{} and {}", what, *head);
  const bool wide = training.outputs_to_fp32 || (!training.autocast && training.dtype == DType::Float32);
  if (const auto kto = kto_unsupported(model, training)) return kto;
  if (row_by_row(training.loss) && !wide) return "log-probabilities row by row of logits in 16 bits";
  if (training.runtime == Runtime::Fsdp1) return formatted("{} under FSDP1", what);
  if (whole && is_fsdp(training.runtime)) return formatted("{} under fully_shard", what);
  if (training.runtime != Runtime::DeepSpeed) return std::nullopt;
  if (training.zero.stage == 3) return formatted("{} under ZeRO-3", what);
  if (model.reference != kNone) return "a reference model in a DeepSpeed engine of its own";
  return std::nullopt;
}

// What a head asks for, and what lies before it.
std::optional<std::string> head_unsupported(const ModelSpec& model, const Training& training) {
  // deberta-v2 brings the number to the label's dtype where no problem_type is named.
  const bool widens =
      model.parts != nullptr && model.family == "deberta-v2" && !model.parts->disentangled.names_problem;
  const bool narrow = !training.autocast && training.dtype != DType::Float32;
  if (regresses(model) && !widens && narrow && training.loss == Loss::HuggingFace) {
    return "regression in 16 bits, whose loss PyTorch does not differentiate beside labels in fp32";
  }
  if (model.parts == nullptr) return std::nullopt;
  const DecoderParts& parts = *model.parts;
  if (parts.head == TextHead::Text && !parts.pads && training.rows() > 1) {
    return formatted("several rows without pad_token_id, which {} refuses", model.graph_class);
  }
  const bool own_layers = parts.head != TextHead::LanguageModel && builder_of(model) != build_decoder_graph;
  if ((parts.hidden_divisor > 0 || own_layers) && training.loss != Loss::HuggingFace) {
    return formatted("another loss than hf of {}", model.graph_class);
  }
  return std::nullopt;
}

// Every layer of a DynamicCache that keeps all tokens; transformers itself turns it off beside checkpoints.
std::optional<std::string> cache_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  if (!training.use_cache) return std::nullopt;
  const auto lacks = [](std::string_view what) { return formatted("use_cache {}", what); };
  const DecoderParts* parts = model.parts.get();
  const bool plain = parts != nullptr && builder_of(model) == build_decoder_graph && parts->tower == nullptr &&
                     !parts->has_mixers() && parts->head == TextHead::LanguageModel &&
                     parts->projections != Projections::Latent;
  constexpr std::array<std::string_view, 4> kOthers{"gpt2", "opt", "bloom", "falcon"};
  if (!plain && std::find(kOthers.begin(), kOthers.end(), model.family) == kOthers.end())
    return lacks(formatted("of {}", model.graph_class));
  const std::int64_t seq = training.seq_list.empty() ? training.seq : training.seq_list.back();
  if ((parts != nullptr && parts->chunked) || reaches_window(model, seq)) return lacks("of layers with windows");
  if (!training.checkpoint.groups.empty() || !training.checkpoint.modules.empty()) {
    return lacks("beside checkpoints, where transformers keeps none: leave it out");
  }
  if (training.loss != Loss::HuggingFace && training.loss != Loss::Native && training.loss != Loss::Liger) {
    return lacks("with another loss than hf or liger");
  }
  if (training.transformers < Version{5, 0, 0}) return lacks("before transformers 5");
  if (training.lora_kernels.any()) return lacks("with axolotl's kernels");
  if (training.ddp.find_unused_parameters) return lacks("with find_unused_parameters, which looks into outputs");
  return tp > 1 ? std::optional(lacks("under tensor parallelism")) : std::nullopt;
}

// What next tokens are asked of: others have labels of another shape, or a trainer's batch.
std::optional<std::string> shared_labels_unsupported(const ModelSpec& model, const Training& training) {
  if (!training.labels_are_ids) return std::nullopt;
  constexpr std::array<std::string_view, 5> kOthers{"gpt2", "gpt_bigcode", "opt", "bloom", "falcon"};
  const bool decoder = builder_of(model) == build_decoder_graph && model.parts->head == TextHead::LanguageModel;
  if (!decoder && std::find(kOthers.begin(), kOthers.end(), model.family) == kOthers.end())
    return formatted("labels_are_ids of {}", model.graph_class);
  const bool own = training.loss == Loss::HuggingFace || training.loss == Loss::Native || training.loss == Loss::Liger;
  return own ? std::nullopt : std::optional<std::string>("labels_are_ids with another loss than hf, native or liger");
}

// State-space mixers.
std::optional<std::string> mixer_unsupported(const ModelSpec& model, const Training& training) {
  if (model.parts == nullptr || !model.parts->has_mixers()) return std::nullopt;
  if (model.parts->mamba.chunk == 1) return "a scan in chunks of one token";
  if (model.family == "mamba2" && training.loss != Loss::HuggingFace) {
    return formatted("another loss than hf of {}", model.graph_class);
  }
  return std::nullopt;
}

// gemma4. A reentrant checkpoint runs its layers without gradients first, and then keys and values that others read
// have none: their projections learn from their own layer alone.
std::optional<std::string> sharing_unsupported(const ModelSpec& model, const Training& training) {
  if (model.parts == nullptr || !model.parts->sharing.used) return std::nullopt;
  if (training.transformers < kWitnessTransformers) {
    return formatted("{} before transformers {}", model.family, kWitnessTransformers.text());
  }
  if (checkpoints_reentrantly(training)) {
    return "reentrant checkpoints of layers that share keys and values, which get no gradient through them";
  }
  if (training.attention == Attention::Math) return "math attention with heads of two widths";
  if (training.loss == Loss::Liger) return formatted("Liger's loss in the {} family, not compared yet", model.family);
  return std::nullopt;
}

// deberta-v2. Normed once, its table of distances goes into every layer beside what a reentrant checkpoint takes apart,
// so that each layer's backward goes through that norm again.
std::optional<std::string> distances_unsupported(const ModelSpec& model, const Training& training) {
  if (model.parts == nullptr || !model.parts->disentangled.relative) return std::nullopt;
  const bool normed = model.child(model.child(model.child(model.causal, "deberta"), "encoder"), "LayerNorm") != kNone;
  if (normed && checkpoints_reentrantly(training)) {
    return "reentrant checkpoints of layers that share normed distances, whose norm PyTorch would go backward through "
           "twice, and stops";
  }
  return std::nullopt;
}

// AlbertPreTrainedModel does not support gradient checkpointing: transformers refuses to switch it on.
std::optional<std::string> shared_layers_unsupported(const ModelSpec& model, const Training& training) {
  const bool checkpoints = !training.checkpoint.groups.empty() || !training.checkpoint.modules.empty();
  if (model.family != "albert" || !checkpoints) return std::nullopt;
  return formatted("checkpoints of {}, which transformers refuses (supports_gradient_checkpointing is false)",
                   model.graph_class);
}

// Of experts that run as experts_implementation says.
std::optional<std::string> mixture_unsupported(const ModelSpec& model, const Training& training) {
  if (model.dims.experts == 0 || model.parts->experts.router == Router::Scattered) return std::nullopt;
  if (model.parts->experts.biased && training.experts == ExpertsImplementation::BatchedMm) {
    return formatted("experts \"batched_mm\" of {}, which adds biases to a view in place", model.family);
  }
  if (!model.parts->experts.gated && training.experts == ExpertsImplementation::Loop) {
    return formatted("experts \"eager\" of {}, which sums in fp32", model.family);
  }
  const bool casts = training.autocast && training.autocast != training.dtype;
  if (casts && model.parts->experts.router == Router::Sampled) return "experts that are drawn, under autocast";
  return std::nullopt;
}

// torchtitan's own code. Its sdpa is told of cuDNN, flash and math, in this order.
std::optional<std::string> torchtitan_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  const bool tied = model.parameters.back().tied_to != kNone;
  if (tp > 1) return "torchtitan's tensor parallelism";
  if (training.torch < kWitnessTorch) {
    return formatted("torchtitan 0.2.2's own code before torch {}", kWitnessTorch.text());
  }
  if (training.runtime == Runtime::DeepSpeed || training.runtime == Runtime::Fsdp1) {
    return formatted("torchtitan's own code under {}", name(training.runtime));
  }
  if (training.loss != Loss::Summed) return formatted("the loss {} of torchtitan's own code", name(training.loss));
  const bool efficient = training.attention == Attention::MemoryEfficient;
  if (training.attention == Attention::Eager || (efficient && training.torchtitan >= kWitnessTorchtitan)) {
    return formatted("{} attention, which torchtitan does not choose", name(training.attention));
  }
  if (training.compute_dtype() == DType::Float16) return "torchtitan's own code in fp16";
  if (training.autocast && model.family == "qwen3") {
    return "torchtitan's qwen3 under autocast, whose norms of heads PyTorch puts together of operators there";
  }
  if (training.attention == Attention::Flash && model.dims.head_dim % 8 != 0) return "heads of no multiple of 8";
  if (!training.seq_list.empty()) return "lengths in turn, which torchtitan has not";
  if (training.liger_kernels.any()) return "Liger's kernels in torchtitan's own code";
  if (tied && is_fsdp(training.runtime)) {
    return "a head that shares the embedding's weight under torchtitan's fully_shard, where each has a group and both "
           "one shard";
  }
  return efficient ? std::nullopt : kernel_unsupported(model, training, 1);  // Heads are repeated for it.
}

// Of the model as one rank has it.
std::optional<std::string> unsupported_on_rank(const ModelSpec& model, const Training& training, std::int64_t tp) {
  if (const auto version = version_unsupported(model, training)) return version;
  const bool causal = model.graph_class.ends_with("ForCausalLM") || model.graph_class.ends_with("LMHeadModel");
  if (const auto attention = attention_unsupported(model, training, tp)) return attention;
  if (const auto both = encoder_decoder_unsupported(model, training)) return both;
  if (const auto loss = fused_loss_unsupported(model, training, tp)) return loss;
  if (const auto kernels = liger_kernels_unsupported(model, training)) return kernels;
  if (const auto kernels = adapter_kernels_unsupported(model, training)) return kernels;
  if (of_trainer(training.loss)) {
    if (const auto loss = trainers_unsupported(model, training)) return loss;
  }
  if (const auto head = head_unsupported(model, training)) return head;
  if (const auto mixer = mixer_unsupported(model, training)) return mixer;
  if (const auto sharing = sharing_unsupported(model, training)) return sharing;
  if (const auto distances = distances_unsupported(model, training)) return distances;
  if (const auto layers = shared_layers_unsupported(model, training)) return layers;
  if (const auto tower = tower_unsupported(model, training)) return tower;
  if (const auto picture = picture_unsupported(model, training)) return picture;
  const bool other = training.loss != Loss::HuggingFace && training.loss != Loss::Cut && !of_rewards(training.loss);
  if (!causal && other) return formatted("another loss than hf of {}", model.graph_class);
  if (const auto packed = packed_unsupported(model, training)) return packed;
  if (const auto cache = cache_unsupported(model, training, tp)) return cache;
  return mixture_unsupported(model, training);
}

}  // namespace

std::optional<std::string> fused_head_unsupported(const ModelSpec& model) {
  if (const auto head = language_head_unsupported(model)) return head;
  if (model.parts->tower != nullptr) return "pictures";
  return std::nullopt;
}

namespace {

std::optional<std::string> lengths_unsupported(const ModelSpec& model, const Training& training) {
  if (model.parts == nullptr) return std::nullopt;
  const RotaryParts& rotary = model.parts->rotary;
  const std::vector<std::int64_t>& each = training.seq_list;
  if (rotary.scaling == RotaryScaling::LongRope) {
    const auto is_long = [&](std::int64_t seq) { return seq > rotary.short_rows; };
    const auto some = std::count_if(each.begin(), each.end(), is_long);
    const bool longer = each.empty() ? is_long(training.seq) : some > 0;
    if (longer && training.transformers < Version{5, 0, 0})
      return "rows for which LongRoPE makes tables, before transformers 5";
    if (some == 0 || some == static_cast<std::ptrdiff_t>(each.size())) return std::nullopt;
    return formatted("rows on both sides of original_max_position_embeddings, {}, where LongRoPE changes its tables",
                     rotary.short_rows);
  }
  if (rotary.scaling != RotaryScaling::Lengths) return std::nullopt;
  const auto too_long = [&](std::int64_t seq) { return seq > model.dims.max_positions; };
  if (!too_long(training.seq) && std::none_of(each.begin(), each.end(), too_long)) return std::nullopt;
  return "rows longer than max_position_embeddings, for which dynamic RoPE makes new tables";
}

// Of the layers, of a head, and of what stands beside the layers.
std::optional<std::string> activation_without_graph(const ModelSpec& model) {
  std::vector<std::string> named{model.dims.activation};
  if (model.parts != nullptr) {
    const DisentangledParts& disentangled = model.parts->disentangled;
    for (const std::string& one :
         {model.parts->head_activation, disentangled.pooler_activation, disentangled.convolution}) {
      if (!one.empty()) named.push_back(one);
    }
  }
  const auto missing =
      std::ranges::find_if_not(named, [](const std::string& one) { return activation_has_graph(one); });
  return missing == named.end() ? std::nullopt : std::optional(*missing);
}

}  // namespace

std::optional<std::string> graph_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  if (model.recording) return recorded_unsupported(model, training, tp);
  if (model.code == ModelCode::Torchtitan) return torchtitan_unsupported(model, training, tp);
  if (is_body(model)) {
    return formatted("{} has no loss: \"architectures\" names the class that is trained", model.graph_class);
  }
  if (!model.has_graph) return formatted("the {} family has no operator graph yet", model.family);
  if (const auto activation = activation_without_graph(model)) return formatted("the activation {}", *activation);
  if (const auto lengths = lengths_unsupported(model, training)) return lengths;
  if (const auto labels = shared_labels_unsupported(model, training)) return labels;
  if (tp > 1) {
    if (const auto parallel = parallel_unsupported(model, training)) return parallel;
  }
  return unsupported_on_rank(model, training, tp);
}

}  // namespace dsplan
