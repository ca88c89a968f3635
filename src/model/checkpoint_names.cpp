#include "model/checkpoint_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/format.h"
#include "model/traits.h"

namespace dsplan {
namespace {

using Dims = std::vector<std::int64_t>;

struct Rules {
  std::string_view prefix;  // base_model_prefix with its dot; empty: none.
  bool prefix_in_model;     // The model's own names carry it. False: the model is the base model itself.
};

Rules rules_of(const ModelSpec& model) {
  const std::string& family = model.family;
  if (family == "gpt2" || family == "gpt_bigcode" || family == "bloom" || family == "falcon" || family == "gptj" ||
      family == "gpt_neo") {
    return {"transformer.", true};
  }
  if (family == "gpt_neox") return {"gpt_neox.", true};
  if (family == "mamba2") return {"backbone.", true};
  const bool whole = !model.graph_class.ends_with("Model");
  if (family == "bert") return {"bert.", whole};
  if (family == "ernie") return {"ernie.", whole};
  if (family == "data2vec-text") return {"data2vec_text.", whole};
  if (is_roberta(model)) return {"roberta.", whole};
  if (family == "distilbert") return {"distilbert.", whole};
  if (family == "electra") return {"electra.", whole};
  if (family == "albert") return {"albert.", whole};
  if (family == "llama4") return {"", false};
  if (family == "deberta-v2") return {"deberta.", whole};
  if (family == "modernbert") return {"model.", whole};
  if (family == "dinov2") return {"dinov2.", whole};
  if (family == "vit") return {"vit.", model.graph_class != "ViTModel"};
  if (biases_positions(model)) return {"", false};
  return {"model.", true};
}

Dims dims_of(const Shape& shape) { return {shape.dims.begin(), shape.dims.begin() + shape.rank}; }

std::string text(const Dims& dims) { return formatted("[{}]", joined(dims, ", ")); }

bool replace(std::string& name, std::string_view from, std::string_view to) {
  const std::size_t at = name.find(from);
  if (at == std::string::npos) return false;
  name.replace(at, from.size(), to);
  return true;
}

bool has_blocks(const ModelSpec& model) {
  return model.family == "mixtral" || model.family == "minimax_m2" || model.family == "phimoe";
}

bool sees_pictures(const ModelSpec& model) {
  return model.family == "llava" || model.family == "gemma3" || model.family == "paligemma" ||
         model.family == "internvl" || model.family == "mllama" || sized_tower(model) != nullptr;
}

// As transformers 4 named text and tower.
std::string pictured_name(const ModelSpec& model, std::string name) {
  const bool today =
      model.family.starts_with("qwen3_") || model.family.starts_with("glm4v") || model.family == "glm46v";
  if (today || model.family == "gemma4") return name;
  if (model.family.starts_with("qwen2")) {
    if (!replace(name, "model.language_model.", "model.")) replace(name, "model.visual.", "visual.");
    return name;
  }
  if (name == "lm_head.weight") return "language_model.lm_head.weight";
  if (!replace(name, "model.language_model.", "language_model.model.")) replace(name, "model.", "");
  return name;
}

// Of classes whose head is made before the body the table of words is tied to the head's projection; a file has it
// under its own name.
bool stands_for_words(const ModelSpec& model, std::string_view name) {
  if (!is_roberta(model) || name != "lm_head.decoder.weight") return false;
  return std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) {
    return p.tied_to != kNone && p.name == "roberta.embeddings.word_embeddings.weight";
  });
}

// The parameter's name in a file, experts apart.
std::string file_name(const ModelSpec& model, std::string name) {
  if (stands_for_words(model, name)) return "roberta.embeddings.word_embeddings.weight";
  if (model.family == "gpt_neox" && name == "lm_head.weight") return "embed_out.weight";
  if (sees_pictures(model)) return pictured_name(model, std::move(name));
  if (has_blocks(model)) replace(name, ".mlp.", ".block_sparse_moe.");
  if (model.family == "phimoe") replace(name, ".router.weight", ".gate.weight");
  if (model.family == "nemotron_h") replace(name, "model.", "backbone.");
  if (model.family == "exaone_moe") replace(name, ".gate.e_score_correction_bias", ".e_score_correction_bias");
  if (model.family == "ernie4_5_moe") replace(name, ".gate.moe_statics.", ".moe_statics.");
  if (model.family == "hy_v3") {
    replace(name, ".mlp.gate.", ".mlp.router.gate.");
    replace(name, ".mlp.e_score_correction_bias", ".mlp.expert_bias");
    replace(name, ".mlp.shared_experts.", ".mlp.shared_mlp.");
  }
  if (model.family.starts_with("granitemoe") && model.family != "granitemoe_swa") {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOld{{
        {"experts.gate_up_proj", "input_linear.weight"},
        {"experts.down_proj", "output_linear.weight"},
        {"router.weight", "router.layer.weight"},
    }};
    for (const auto& [now, old] : kOld) {
      if (replace(name, now, old)) break;
    }
  }
  if (model.family == "vit" && replace(name, "layers.", "encoder.layer.")) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOld{{
        {"attention.q_proj", "attention.attention.query"},
        {"attention.k_proj", "attention.attention.key"},
        {"attention.v_proj", "attention.attention.value"},
        {"attention.o_proj", "attention.output.dense"},
        {"mlp.fc1", "intermediate.dense"},
        {"mlp.fc2", "output.dense"},
    }};
    for (const auto& [now, old] : kOld) {
      if (replace(name, now, old)) break;
    }
  }
  return name;
}

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::Float64: return "F64";
    case DType::Float32: return "F32";
    case DType::Float16: return "F16";
    case DType::BFloat16: return "BF16";
    default: return "";
  }
}

// A tensor of the file and the parameter that it is (part of); kNone for a buffer.
struct Expected {
  std::string name;
  Dims shape;
  ParameterId parameter;
};

// Experts are saved one by one: gate and up apart, each [ffn, hidden].
void add_experts(std::vector<Expected>& list, const ModelSpec& model, ParameterId id) {
  const Parameter& parameter = model.parameter_at(id);
  const bool mixtral = has_blocks(model) || model.family == "lfm2_moe";
  const bool fused = parameter.name.ends_with("gate_up_proj");
  const std::string base = file_name(model, parameter.name.substr(0, parameter.name.rfind('.')));
  const auto& dims = parameter.shape.dims;
  for (std::int64_t expert = 0; expert < dims[0]; ++expert) {
    const auto add = [&](std::string_view leaf, std::int64_t out) {
      list.push_back({formatted("{}.{}.{}.weight", base, expert, leaf), {out, dims[2]}, id});
    };
    if (fused) {
      add(mixtral ? "w1" : "gate_proj", dims[1] / 2);
      add(mixtral ? "w3" : "up_proj", dims[1] / 2);
    } else if (parameter.name.ends_with("up_proj")) {  // Without a gate.
      add("up_proj", dims[1]);
    } else {
      add(mixtral ? "w2" : "down_proj", dims[1]);
    }
  }
}

bool is_saved(const ModelBuffer& buffer) {
  // Of gemma4's towers: bounds of linear layers, and what moves and scales tokens of pictures. Of apertus: constants of
  // its activation.
  for (const std::string_view own : {".input_min", ".input_max", ".output_min", ".output_max", "std_bias", "std_scale",
                                     "act_fn.beta", "act_fn.eps"}) {
    if (buffer.name.ends_with(own)) return true;
  }
  return buffer.name.ends_with(".e_score_correction_bias") || buffer.name.ends_with(".layer_scalar") ||
         buffer.name.ends_with(".expert_bias") || buffer.name == "final_logits_bias";
}

// marian's sinusoids, which are made whenever it is loaded (_keys_to_ignore_on_save).
bool is_left_out(const ModelSpec& model, const Parameter& parameter) {
  return model.family == "marian" && parameter.name.ends_with("embed_positions.weight");
}

std::vector<Expected> expected_of(const ModelSpec& model) {
  std::vector<Expected> list;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& parameter = model.parameters[i];
    if (parameter.tied_to != kNone || is_left_out(model, parameter)) continue;
    const auto id = static_cast<ParameterId>(i);
    const bool stacked = model.family.starts_with("granitemoe") || model.family == "mistral4" ||
                         model.family == "gpt_oss" || model.family.starts_with("llama4") ||
                         model.family == "qwen3_vl_moe" || model.family == "glm46v" ||
                         model.family.starts_with("gemma4");
    if (!stacked && parameter.shape.rank == 3 && parameter.name.find(".experts.") != std::string::npos) {
      add_experts(list, model, id);
    } else {
      list.push_back({file_name(model, parameter.name), dims_of(parameter.shape), id});
    }
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (is_saved(buffer)) list.push_back({file_name(model, buffer.name), dims_of(buffer.shape), kNone});
  }
  return list;
}

// Passed over in silence when transformers loads.
bool is_passed_over(const ModelSpec& model, std::string_view name) {
  const std::string& family = model.family;
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with("position_ids")) return true;
  if (family == "gpt2") return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  if (family == "gpt_neox") return name.ends_with("attention.bias") || name.ends_with("attention.masked_bias");
  if (family == "bert") return name.starts_with("cls.") || name.starts_with("bert.pooler.");
  if (family == "electra") return name.starts_with("discriminator_") || name.starts_with("generator_");
  if (family == "ernie") return name.starts_with("cls.") || name.starts_with("ernie.pooler.");
  if (is_roberta(model)) {
    return name.starts_with("lm_head.") || name.starts_with(formatted("{}.pooler.", body_of_roberta(model)));
  }
  if (family == "deepseek_v3") return name.starts_with("model.layers.61.");
  if (family == "nemotron_h") return name.starts_with("mtp.");
  if (biases_positions(model)) return name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
  return false;
}

// One comparison. Each tensor of the file is resolved to an expected tensor, to a whole parameter under its own name
// (stacked experts, tied names), or to nothing.
class Comparer {
 public:
  Comparer(const ModelSpec& model, const std::vector<CheckpointTensor>& tensors)
      : model_(model), rules_(rules_of(model)), expected_(expected_of(model)), found_(expected_.size(), false) {
    for (std::size_t i = 0; i < expected_.size(); ++i) by_file_.emplace(expected_[i].name, i);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) by_parameter_.emplace(model.parameters[i].name, i);
    whole_.resize(model.parameters.size(), false);
    for (const CheckpointTensor& tensor : tensors) take(tensor);
    report_missing();
    report_dtypes();
    for (const auto& [kind, count] : counts_) {
      if (count > kMostLines) {
        result_.differences.push_back(formatted("{}: {} more tensors", kind, count - kMostLines));
      }
    }
    if (passed_over_ > 0) {
      result_.notes.push_back(formatted("{} tensors of the file are passed over on loading, {} among them",
                                        passed_over_, first_passed_over_));
    }
  }

  CheckpointComparison result() && { return std::move(result_); }

 private:
  // Of each kind of difference the first kMostLines are shown and the rest counted.
  static constexpr std::int64_t kMostLines = 20;
  void differ(std::string_view kind, std::string_view line) {
    if (++counts_[kind] <= kMostLines) result_.differences.push_back(formatted("{}: {}", kind, line));
  }

  // The spellings under which a key of the file may be known.
  std::vector<std::string> spellings(const std::string& name) const {
    std::vector<std::string> names{name};
    if (name.ends_with("LayerNorm.gamma")) names[0].replace(name.size() - 5, 5, "weight");
    if (name.ends_with("LayerNorm.beta")) names[0].replace(name.size() - 4, 4, "bias");
    if (rules_.prefix.empty()) return names;
    const std::string& bare = names[0];
    if (rules_.prefix_in_model) {
      names.push_back(std::string(rules_.prefix) + bare);
    } else if (bare.starts_with(rules_.prefix)) {
      names.push_back(bare.substr(rules_.prefix.size()));
    }
    return names;
  }

  void take(const CheckpointTensor& tensor) {
    for (const std::string& name : spellings(tensor.name)) {
      if (const auto at = by_file_.find(name); at != by_file_.end()) {
        found_[at->second] = true;
        const Expected& expected = expected_[at->second];
        check_shape(tensor, expected.shape);
        if (expected.parameter != kNone) check_dtype(tensor, expected.parameter);
        return;
      }
      if (const auto at = by_parameter_.find(name); at != by_parameter_.end()) {
        const Parameter& parameter = model_.parameters[at->second];
        const bool tied = parameter.tied_to != kNone;
        whole_[tied ? static_cast<std::size_t>(parameter.tied_to) : at->second] = true;
        check_shape(tensor, dims_of(parameter.shape));
        check_dtype(tensor, static_cast<ParameterId>(at->second));
        if (tied) tied_seen_.push_back(at->second);
        return;
      }
    }
    if (is_passed_over(model_, tensor.name)) {
      if (passed_over_++ == 0) first_passed_over_ = tensor.name;
      return;
    }
    differ("unexpected",
           formatted("{} {}{} is in the checkpoint, not in the model", tensor.name, text(tensor.shape), in(tensor)));
  }

  static std::string in(const CheckpointTensor& tensor) {
    return tensor.file.empty() ? std::string() : formatted(" in {}", tensor.file);
  }

  void check_shape(const CheckpointTensor& tensor, const Dims& shape) {
    if (tensor.shape == shape) return;
    differ("shape",
           formatted("{} is {}{}, {} by the config", tensor.name, text(tensor.shape), in(tensor), text(shape)));
  }

  void check_dtype(const CheckpointTensor& tensor, ParameterId id) {
    if (!model_.stored_dtype || tensor.dtype == safetensors_name(*model_.stored_dtype)) return;
    const std::optional<DType> own = model_.parameter_at(id).dtype;
    if (own && tensor.dtype == safetensors_name(*own)) return;
    auto& [count, first] = other_dtypes_[tensor.dtype];
    if (count++ == 0) first = tensor.name;
  }

  void report_missing() {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const Expected& expected = expected_[i];
      if (found_[i]) continue;
      if (expected.parameter != kNone && whole_[static_cast<std::size_t>(expected.parameter)]) continue;
      differ("missing", formatted("{} {} is in the model, not in the checkpoint", expected.name, text(expected.shape)));
    }
    for (const std::size_t i : tied_seen_) {
      const Parameter& tied = model_.parameters[i];
      const Parameter& source = model_.parameter_at(tied.tied_to);
      const auto at = by_file_.find(file_name(model_, source.name));
      if (at == by_file_.end() || !found_[at->second]) continue;  // Under one name only: tied as the config says.
      result_.notes.push_back(formatted(
          "{} is in the file beside {}, to which the config ties it; if their values differ, transformers loads it "
          "untied",
          tied.name, source.name));
    }
  }

  void report_dtypes() {
    for (const auto& [dtype, seen] : other_dtypes_) {
      result_.differences.push_back(formatted("dtype: {} tensors are {} in the checkpoint, {} by the config; {} first",
                                              seen.first, dtype, safetensors_name(*model_.stored_dtype), seen.second));
    }
  }

  const ModelSpec& model_;
  Rules rules_;
  std::vector<Expected> expected_;
  std::vector<bool> found_;  // Per expected tensor.
  std::vector<bool> whole_;  // Per parameter: the file holds it under the parameter's own name.
  std::vector<std::size_t> tied_seen_;
  std::unordered_map<std::string_view, std::size_t> by_file_;
  std::unordered_map<std::string_view, std::size_t> by_parameter_;
  std::map<std::string, std::pair<std::int64_t, std::string>> other_dtypes_;
  std::map<std::string_view, std::int64_t> counts_;
  std::int64_t passed_over_ = 0;
  std::string first_passed_over_;
  CheckpointComparison result_;
};

}  // namespace

std::vector<CheckpointTensor> expected_checkpoint(const ModelSpec& model) {
  const std::string dtype(model.stored_dtype ? safetensors_name(*model.stored_dtype) : "");
  std::vector<CheckpointTensor> tensors;
  for (Expected& expected : expected_of(model)) {
    tensors.push_back({std::move(expected.name), dtype, std::move(expected.shape), {}});
  }
  return tensors;
}

CheckpointComparison compare_checkpoint(const ModelSpec& model, const std::vector<CheckpointTensor>& tensors) {
  return Comparer(model, tensors).result();
}

}  // namespace dsplan
