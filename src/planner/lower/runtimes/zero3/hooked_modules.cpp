#include "planner/lower/runtimes/zero3/hooked_modules.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <tuple>

#include "model/parts.h"
#include "planner/lower/runtimes/model_loading.h"

namespace dsplan {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
// Larger modules are no leaves, however fine their grain (Z3_MAX_LEAF_SIZE).
constexpr std::int64_t kLargestLeaf = 1'000'000'000;
constexpr std::string_view kContainers[] = {"Container",  "Sequential",    "ModuleList",
                                            "ModuleDict", "ParameterList", "ParameterDict"};

// "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock", or the class alone.
bool is_class(std::string_view wanted, std::string_view type) {
  const std::size_t dot = wanted.rfind('.');
  return (dot == std::string_view::npos ? wanted : wanted.substr(dot + 1)) == type;
}

struct Early {
  std::string_view caller;  // The framework's class, or how its name ends.
  std::string_view called;  // Which of its modules it calls next.
  std::string_view asked;   // Which parameter it asks for before, from the caller on.
};

// transformers 5.17, forward of the classes: a dtype, a device, or the whole of a weight.
constexpr Early kEarly[] = {
    {"DenseActDense", "wo", "wo.weight"},
    {"DenseGatedActDense", "wo", "wo.weight"},
    {"CLIPTextEmbeddings", "token_embedding", "position_embedding.weight"},
    {"SiglipTextEmbeddings", "token_embedding", "position_embedding.weight"},
    {"InternVLVisionPatchEmbeddings", "projection", "projection.weight"},
    {"Gemma4VisionPatchEmbedder", "input_proj", "input_proj.weight"},
    {"PixtralVisionModel", "patch_conv", "patch_conv.weight"},
    {"PatchEmbed", "proj", "proj.weight"},
    {"Dinov2Embeddings", "patch_embeddings", "patch_embeddings.projection.weight"},
    {"ViTModel", "embeddings", "embeddings.patch_embeddings.projection.weight"},
    {"Llama4TextModel", "embed_tokens", "embed_tokens.weight"},
    {"HunYuanMoEV1Gate", "wg", "wg.weight"},
    {"DebertaV2Encoder", "LayerNorm", "rel_embeddings.weight"},
    {"Gemma4Model", "language_model.embed_tokens_per_layer", "language_model.embed_tokens.weight"},
    {"Mamba2Block", "norm", "norm.weight"},
    {"Mamba2ForCausalLM", "lm_head", "lm_head.weight"},
    {"GatedDeltaNet", "norm", "conv1d.weight"},
    {"GatedDeltaNet", "norm", "conv1d.bias"},
    {"Mamba2Mixer", "norm", "conv1d.weight"},
    {"Mamba2Mixer", "norm", "conv1d.bias"},
    {"Mamba2Mixer", "norm", "norm.weight"},
    {"Mamba2Mixer", "norm", "out_proj.weight"},
    {"Mamba2Mixer", "norm", "out_proj.bias"},
    {"MambaLayer", "norm", "conv1d.weight"},
    {"MambaLayer", "norm", "conv1d.bias"},
    {"MambaLayer", "norm", "norm.weight"},
    {"MambaLayer", "norm", "out_proj.weight"},
    {"MambaLayer", "norm", "out_proj.bias"},
};

// By names from `module` on, "." between them; kNone: there is none.
ModuleId module_at(const ModelSpec& model, ModuleId module, std::string_view path) {
  while (module != kNone && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    module = model.child(module, path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return module;
}

// Ties once; adapters wrap the layer that the framework's own code asks. kNone: there is none.
ParameterId parameter_at(const ModelSpec& model, ModuleId module, std::string_view path) {
  const std::size_t dot = path.rfind('.');
  const ModuleId owner = module_at(model, module, path.substr(0, dot));
  if (owner == kNone) return kNone;
  const ModuleId base = model.child(owner, "base_layer");
  const ParameterId id = model.parameter(base == kNone ? owner : base, path.substr(dot + 1));
  if (id == kNone) return kNone;
  const ParameterId tied = model.parameter_at(id).tied_to;
  return tied == kNone ? id : tied;
}

class Granularity {
 public:
  explicit Granularity(const ModelSpec& model) : model_(model), of_(model.modules.size(), kNever) {
    children_.resize(model.modules.size());
    own_.resize(model.modules.size(), 0);
    for (std::size_t id = 1; id < model.modules.size(); ++id) {
      children_[static_cast<std::size_t>(model.modules[id].parent)].push_back(static_cast<ModuleId>(id));
    }
    for (const Parameter& p : model.parameters) {
      own_[static_cast<std::size_t>(p.module)] += p.shape.elements().value();
    }
    (void)measure(0);
  }

  [[nodiscard]] std::int64_t smallest() const { return *std::min_element(of_.begin(), of_.end()); }

  void mark(ModuleId id, std::int64_t threshold, std::vector<bool>& leaf) const {
    if (total(id) == 0) return;
    if (of_[static_cast<std::size_t>(id)] <= threshold) {
      leaf[static_cast<std::size_t>(id)] = true;
      return;
    }
    for (ModuleId child : children_[static_cast<std::size_t>(id)]) mark(child, threshold, leaf);
  }

 private:
  struct Sum {
    std::int64_t layers = 0;
    std::int64_t elements = 0;
  };

  [[nodiscard]] std::int64_t total(ModuleId id) const {
    std::int64_t sum = own_[static_cast<std::size_t>(id)];
    for (ModuleId child : children_[static_cast<std::size_t>(id)]) sum += total(child);
    return sum;
  }

  Sum measure(ModuleId id) {
    const auto at = static_cast<std::size_t>(id);
    if (total(id) == 0) return {};
    Sum sum{0, own_[at]};
    if (children_[at].empty()) return {1, sum.elements};
    for (ModuleId child : children_[at]) {
      const Sum below = measure(child);
      sum.layers += below.layers;
      sum.elements += below.elements;
    }
    const std::string_view type = model_.modules[at].type;
    if (std::find(std::begin(kContainers), std::end(kContainers), type) != std::end(kContainers)) return sum;
    ++sum.layers;
    if (sum.elements <= kLargestLeaf) of_[at] = sum.elements / sum.layers;
    return sum;
  }

  const ModelSpec& model_;
  std::vector<std::vector<ModuleId>> children_;
  std::vector<std::int64_t> own_;
  std::vector<std::int64_t> of_;
};

}  // namespace

std::vector<bool> leaf_modules(const ModelSpec& model, const Zero& zero) {
  std::vector<bool> leaf(model.modules.size(), false);
  for (std::size_t id = 0; id < model.modules.size(); ++id) {
    const Module& module = model.modules[id];
    for (const std::string& wanted : zero.leaf_classes) leaf[id] = leaf[id] || is_class(wanted, module.type);
    for (const std::string& wanted : zero.leaf_names) leaf[id] = leaf[id] || module.path == wanted;
    for (const std::string& wanted : zero.leaf_suffixes) leaf[id] = leaf[id] || module.path.ends_with(wanted);
  }
  const std::int64_t threshold = zero.module_granularity_threshold.value();
  if (threshold <= 0) return leaf;
  const Granularity granularity(model);
  if (granularity.smallest() <= threshold) granularity.mark(0, threshold, leaf);
  return leaf;
}

std::vector<CoordinatedModule> coordinated_modules(const ModelSpec& model, const std::vector<bool>& leaf) {
  std::vector<CoordinatedModule> modules(model.modules.size());
  const auto add = [](std::vector<ParameterId>& list, ParameterId id) {
    if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  };
  const bool any = std::find(leaf.begin(), leaf.end(), true) != leaf.end();
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    const ParameterId id = parameter.tied_to == kNone ? static_cast<ParameterId>(at) : parameter.tied_to;
    add(modules[static_cast<std::size_t>(parameter.module)].own, id);
    if (!any) continue;  // Only leaves ask for what lies below.
    for (ModuleId module = parameter.module; module != kNone; module = model.module_at(module).parent) {
      add(modules[static_cast<std::size_t>(module)].below, id);
    }
  }
  for (std::size_t id = 0; id < modules.size(); ++id) modules[id].leaf = leaf[id];
  return modules;
}

std::vector<bool> hooked_modules(const ModelSpec& model, const std::vector<bool>& leaf) {
  std::vector<bool> hooked(model.modules.size(), true);
  for (std::size_t id = 1; id < hooked.size(); ++id) {
    const auto parent = static_cast<std::size_t>(model.modules[id].parent);
    hooked[id] = hooked[parent] && !leaf[parent];
  }
  return hooked;
}

std::vector<std::vector<ParameterId>> read_before_call(const ModelSpec& model) {
  std::vector<std::vector<ParameterId>> read(model.modules.size());
  // With pictures the words come from outside of llama4's text model.
  const auto given_words = [&](const Early& early) {
    return early.asked == "embed_tokens.weight" && model.parts != nullptr && model.parts->tower != nullptr;
  };
  for (std::size_t at = 0; at < read.size(); ++at) {
    for (const Early& early : kEarly) {
      if (given_words(early) || !std::string_view(model.modules[at].type).ends_with(early.caller)) continue;
      const ModuleId called = module_at(model, static_cast<ModuleId>(at), early.called);
      const ParameterId asked = parameter_at(model, static_cast<ModuleId>(at), early.asked);
      if (called != kNone && asked != kNone) read[static_cast<std::size_t>(called)].push_back(asked);
    }
  }
  // peft casts what comes in to the dtype of lora_A's weight, then drops some of it out (tuners/lora/layer.py).
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const ModuleId module = model.parameters[at].module;
    const std::string_view path = model.module_at(module).path;
    const std::size_t from = path.rfind(".lora_A.");
    if (from == std::string_view::npos) continue;
    const ModuleId list = model.module_at(module).parent;
    const ModuleId dropouts = model.child(model.module_at(list).parent, "lora_dropout");
    const ModuleId first = dropouts == kNone ? dropouts : model.child(dropouts, path.substr(from + 8));
    if (first != kNone) read[static_cast<std::size_t>(first)].push_back(static_cast<ParameterId>(at));
  }
  return read;
}

std::vector<bool> called_by_keyword(const ModelSpec& model) {
  // transformers 5.17: modeling_gpt_oss.py, modeling_qwen3_next.py and its kin, modeling_granitemoehybrid.py,
  // modeling_lfm2.py and lfm2_moe's, modeling_mllama.py.
  constexpr std::string_view kTypes[] = {"GptOssAttention", "GatedDeltaNet", "MambaLayer", "ShortConv",
                                         "MllamaVisionEncoderLayer"};
  std::vector<bool> keyword(model.modules.size());
  for (std::size_t at = 0; at < keyword.size(); ++at) {
    const std::string_view type = model.modules[at].type;
    keyword[at] = std::any_of(std::begin(kTypes), std::end(kTypes), [&](auto end) { return type.ends_with(end); });
  }
  return keyword;
}

std::vector<std::int32_t> numbers_of_conversion(const ModelSpec& model, bool under_zero_init) {
  std::vector<std::int32_t> numbers(model.parameters.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  if (!under_zero_init) return numbers;
  // The last module that lies inside each: modules come in the order in which their constructors begin.
  std::vector<ModuleId> last(model.modules.size());
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t id = last.size() - 1; id > 0; --id) {
    ModuleId& outer = last[static_cast<std::size_t>(model.modules[id].parent)];
    outer = std::max(outer, last[id]);
  }
  const auto key = [&](std::int32_t id) {
    const Parameter& parameter = model.parameter_at(id);
    // peft's adapters come when all else has its number, and take theirs in the order of named_parameters.
    if (is_adapter(parameter)) return std::tuple(true, ModuleId{}, ModuleId{}, id);
    const ModuleId maker = parameter.maker == kNone ? parameter.module : parameter.maker;
    return std::tuple(false, last[static_cast<std::size_t>(maker)], -maker, id);
  };
  std::vector<decltype(key(0))> in_order;
  in_order.reserve(numbers.size());
  for (const std::int32_t id : numbers) in_order.push_back(key(id));
  std::sort(in_order.begin(), in_order.end());
  for (std::size_t at = 0; at < in_order.size(); ++at) {
    numbers[static_cast<std::size_t>(std::get<3>(in_order[at]))] = static_cast<std::int32_t>(at);
  }
  return numbers;
}

}  // namespace dsplan
