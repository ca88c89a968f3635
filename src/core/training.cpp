#include "core/training.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/format.h"

namespace dsplan {

std::string Version::text() const { return formatted("{}.{}.{}", major, minor, patch); }

std::optional<Version> Version::parse(std::string_view text) {
  Version version;
  int* parts[] = {&version.major, &version.minor, &version.patch};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  int read = 0;
  for (int* part : parts) {
    const auto [next, error] = std::from_chars(at, end, *part);
    if (error != std::errc() || *part < 0) return std::nullopt;
    at = next;
    ++read;
    if (at == end || *at != '.') break;
    ++at;
  }
  // Local or pre-release tags ("+cu130", ".dev0", "rc1") do not move a byte.
  if (read < 1 || (at != end && *at != '+' && *at != '.' && *at != 'r' && *at != 'a' && *at != 'b' && *at != 'd')) {
    return std::nullopt;
  }
  return version;
}

bool buffer_exists(const ModelBuffer& buffer, const Version& transformers) {
  return transformers >= Version{5, 0, 0} || !buffer.name.ends_with("original_inv_freq");
}

bool counts_tokens(const Training& training) {
  return training.model_code == ModelCode::Torchtitan && training.torchtitan >= kWitnessTorchtitan;
}

bool counts_tokens_on_device(const Training& training, std::int64_t ranks) {
  return counts_tokens(training) && ranks == 1;
}

Shape shape_of(const ModelBuffer& buffer, const Training& training) {
  Shape shape = buffer.shape;
  if (buffer.by_length) shape.dims[0] = training.seq;
  return shape;
}

bool batch_has_mask(const Version& transformers) {
  return transformers >= Version{4, 53, 0} && transformers < Version{5, 0, 0};
}

std::string_view name(Runtime runtime) {
  switch (runtime) {
    case Runtime::PyTorch: return "pytorch";
    case Runtime::DeepSpeed: return "deepspeed";
    case Runtime::Fsdp2: return "fsdp2";
    case Runtime::Fsdp1: return "fsdp1";
  }
  return "?";
}

std::string_view name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adam: return "adam";
    case OptimizerKind::AdamW: return "adamw";
    case OptimizerKind::Sgd: return "sgd";
    case OptimizerKind::Adafactor: return "adafactor";
    case OptimizerKind::Lion: return "lion";
    case OptimizerKind::Adam8bit: return "adam8bit";
    case OptimizerKind::Muon: return "muon";
    case OptimizerKind::Adagrad: return "adagrad";
    case OptimizerKind::RmsProp: return "rmsprop";
    case OptimizerKind::AdamW32bit: return "adamw32bit";
    case OptimizerKind::Lion8bit: return "lion8bit";
    case OptimizerKind::AdEmaMix: return "ademamix";
    case OptimizerKind::AdEmaMix8bit: return "ademamix8bit";
    case OptimizerKind::AoAdamW8bit: return "ao_adamw_8bit";
    case OptimizerKind::AoAdamW4bit: return "ao_adamw_4bit";
    case OptimizerKind::AoAdamWFp8: return "ao_adamw_fp8";
  }
  return "?";
}

bool quantizes_states(OptimizerKind kind) {
  return kind == OptimizerKind::Adam8bit || kind == OptimizerKind::Lion8bit || kind == OptimizerKind::AdEmaMix8bit;
}

bool is_torchao(OptimizerKind kind) {
  return kind == OptimizerKind::AoAdamW8bit || kind == OptimizerKind::AoAdamW4bit || kind == OptimizerKind::AoAdamWFp8;
}

std::string_view name(ActivationOffloading offloading) {
  switch (offloading) {
    case ActivationOffloading::None: return "none";
    case ActivationOffloading::Streams: return "streams";
    case ActivationOffloading::SingleStream: return "single-stream";
  }
  return "";
}

std::string_view name(LoopKind loop) {
  switch (loop) {
    case LoopKind::Trainer: return "trainer";
    case LoopKind::Minimal: return "minimal";
    case LoopKind::Script: return "script";
    case LoopKind::Torchtitan: return "torchtitan";
    case LoopKind::Loss: return "loss";
    case LoopKind::FactoryV1: return "llama-factory-v1";
  }
  return "";
}

std::string_view name(ModelInit init) {
  switch (init) {
    case ModelInit::ZeroInit: return "zero_init";
    case ModelInit::Device: return "device";
    case ModelInit::Host: return "host";
    case ModelInit::Meta: return "meta";
    case ModelInit::Rank0: return "rank0";
  }
  return "";
}

std::string_view name(ParamGroups groups) { return groups == ParamGroups::Single ? "single" : "decay"; }

std::string_view name(Implementation implementation) {
  switch (implementation) {
    case Implementation::Fused: return "fused";
    case Implementation::Foreach: return "foreach";
    case Implementation::ForLoop: return "for-loop";
  }
  return "?";
}

std::string optimizer_text(const Training& training) {
  const Optimizer& optimizer = training.optimizer;
  std::string_view form = name(optimizer.implementation);
  if (training.runtime == Runtime::DeepSpeed && training.zero.offload_optimizer.device != OffloadDevice::None) {
    form = optimizer.kind == OptimizerKind::Lion ? "DeepSpeedCPULion" : "DeepSpeedCPUAdam";
  }
  return (optimizer.paged ? "paged " : "") + std::string(name(optimizer.kind)) + " (" + std::string(form) + ")";
}

std::string loss_text(const Training& training) {
  if (training.loss == Loss::Chunked) return formatted("chunked:{}", training.loss_chunks);
  return std::string(name(training.loss));
}

std::string_view name(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::None: return "none";
    case OffloadDevice::Cpu: return "cpu";
    case OffloadDevice::Nvme: return "nvme";
  }
  return "?";
}

std::string_view name(Attention attention) {
  switch (attention) {
    case Attention::Eager: return "eager";
    case Attention::Math: return "math";
    case Attention::Flash: return "flash";
    case Attention::MemoryEfficient: return "mem-efficient";
    case Attention::CuDnn: return "cudnn";
    case Attention::MathOrEfficient: return "math+mem-efficient";
    case Attention::MathOrCuDnn: return "math+cudnn";
  }
  return "?";
}

std::string_view name(ExpertsImplementation experts) {
  switch (experts) {
    case ExpertsImplementation::GroupedMm: return "grouped_mm";
    case ExpertsImplementation::Loop: return "eager";
    case ExpertsImplementation::BatchedMm: return "batched_mm";
  }
  return "?";
}

std::string name(const Routing& routing) {
  switch (routing.kind) {
    case Routing::Kind::Balanced: return "balanced";
    case Routing::Kind::Worst: return "worst";
    case Routing::Kind::Capacity: return formatted("capacity:{}", routing.factor);
    case Routing::Kind::Counts: break;
  }
  std::string text = "counts:";
  for (const std::vector<std::int64_t>& row : routing.counts) {
    text += (text.back() == ':' ? "" : "/") + joined(row, ",");
  }
  return text;
}

std::vector<std::int64_t> tokens_of_experts(const Routing& routing, std::size_t mixture, const Choices& choices) {
  if (routing.kind == Routing::Kind::Counts) return routing.counts[routing.counts.size() > 1 ? mixture : 0];
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(choices.experts));
  std::int64_t left = choices.tokens * choices.each;
  const std::int64_t mean = left / choices.experts;
  const std::int64_t rest = left % choices.experts;
  const double fullest = routing.factor * static_cast<double>(left) / static_cast<double>(choices.experts);
  std::int64_t most = choices.tokens;
  if (routing.kind == Routing::Kind::Capacity) most = std::min(most, static_cast<std::int64_t>(std::ceil(fullest)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool one_more = static_cast<std::int64_t>(i) < rest;
    tokens[i] = routing.kind == Routing::Kind::Balanced ? mean + (one_more ? 1 : 0) : std::min(most, left);
    left -= tokens[i];
  }
  return tokens;
}

std::string_view name(Loss loss) {
  switch (loss) {
    case Loss::HuggingFace: return "hf";
    case Loss::Native: return "native";
    case Loss::Chunked: return "chunked";
    case Loss::Liger: return "liger";
    case Loss::Trl: return "trl";
    case Loss::Dpo: return "dpo";
    case Loss::DpoPrecomputed: return "dpo-precomputed";
    case Loss::DpoLogits: return "dpo-logits";
    case Loss::DpoRows: return "dpo-rows";
    case Loss::Reward: return "reward";
    case Loss::CenteredReward: return "reward-centered";
    case Loss::Summed: return "summed";
    case Loss::OrpoLogits: return "orpo-logits";
    case Loss::SimpoLogits: return "simpo-logits";
    case Loss::KtoLogits: return "kto-logits";
    case Loss::RewardValues: return "reward-values";
    case Loss::IpoRows: return "ipo-rows";
    case Loss::OrpoRows: return "orpo-rows";
    case Loss::SimpoRows: return "simpo-rows";
    case Loss::BareSimpoRows: return "simpo-rows-bare";
    case Loss::KtoRows: return "kto-rows";
    case Loss::Kto: return "kto";
    case Loss::Cut: return "cut";
    case Loss::Weighted: return "weighted";
  }
  return "?";
}

namespace {

constexpr Loss kOfTrainers[] = {Loss::Trl,           Loss::Dpo,          Loss::DpoPrecomputed,
                                Loss::Kto,           Loss::Reward,       Loss::CenteredReward,
                                Loss::DpoLogits,     Loss::OrpoLogits,   Loss::SimpoLogits,
                                Loss::KtoLogits,     Loss::RewardValues, Loss::DpoRows,
                                Loss::IpoRows,       Loss::OrpoRows,     Loss::SimpoRows,
                                Loss::BareSimpoRows, Loss::KtoRows,      Loss::Weighted};

}  // namespace

std::optional<Loss> trainers_loss(std::string_view text) {
  for (const Loss one : kOfTrainers) {
    if (text == name(one)) return one;
  }
  return std::nullopt;
}

std::vector<std::string_view> names_of_trainers_losses() {
  std::vector<std::string_view> names;
  for (const Loss one : kOfTrainers) names.push_back(name(one));
  return names;
}

std::string name(const AdapterKernels& kernels) {
  std::vector<std::string_view> words;
  if (kernels.qkv) words.emplace_back("qkv");
  if (kernels.o) words.emplace_back("o");
  if (kernels.mlp) words.emplace_back("mlp");
  return words.empty() ? "none" : joined(words, ",");
}

std::string name(const LigerKernels& kernels) {
  std::vector<std::string_view> words;
  if (kernels.rotary) words.emplace_back("rope");
  if (kernels.norms) words.emplace_back("rms_norm");
  if (kernels.swiglu) words.emplace_back("swiglu");
  return words.empty() ? "none" : joined(words, ",");
}

std::string_view name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::NonReentrant: return "non_reentrant";
    case CheckpointKind::Reentrant: return "reentrant";
    case CheckpointKind::DeepSpeed: return "deepspeed";
  }
  return {};
}

std::vector<std::string_view> ignored_words(std::string_view ignored) {
  std::vector<std::string_view> words;
  while (!ignored.empty()) {
    const std::size_t plus = std::min(ignored.find('+'), ignored.size());
    words.push_back(ignored.substr(0, plus));
    ignored.remove_prefix(std::min(plus + 1, ignored.size()));
  }
  return words;
}

bool means(std::string_view ignored_word, const Parameter& parameter) {
  if (ignored_word == kPackedParameters) return parameter.dtype && !is_floating(*parameter.dtype);
  return glob_matches(ignored_word, parameter.name);
}

bool Fsdp::ignores(const Parameter& parameter) const {
  const std::vector<std::string_view> words = ignored_words(ignored);
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return means(word, parameter); });
}

bool Training::freezes(const Parameter& parameter) const {
  return std::any_of(freeze.begin(), freeze.end(),
                     [&](const std::string& glob) { return glob_matches(glob, parameter.name); });
}

bool glob_matches(std::string_view glob, std::string_view text) {
  // Greedy with one remembered star: linear in practice, quadratic at worst, never exponential.
  std::size_t g = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace dsplan
