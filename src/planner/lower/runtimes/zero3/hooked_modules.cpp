#include "planner/lower/runtimes/zero3/hooked_modules.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <tuple>

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
    for (ModuleId module = parameter.module; module != kNone;
         module = model.modules[static_cast<std::size_t>(module)].parent) {
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

std::vector<ParameterId> read_before_call(const ModelSpec& model) {
  std::vector<ParameterId> read(model.modules.size(), kNone);
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    ModuleId module = parameter.module;
    // peft casts what comes in to the dtype of lora_A's weight, then drops some of it out (tuners/lora/layer.py).
    const std::string& own = model.modules[static_cast<std::size_t>(module)].path;
    if (const std::size_t from = own.rfind(".lora_A."); from != std::string::npos) {
      const std::string first = own.substr(0, from) + ".lora_dropout." + own.substr(from + 8);
      const auto found = std::find_if(model.modules.begin(), model.modules.end(),
                                      [&](const Module& one) { return one.path == first; });
      if (found == model.modules.end()) continue;
      read[static_cast<std::size_t>(found - model.modules.begin())] = static_cast<ParameterId>(at);
      continue;
    }
    if (parameter.name.ends_with(".base_layer.weight")) module = model.modules[static_cast<std::size_t>(module)].parent;
    const std::string_view path = model.modules[static_cast<std::size_t>(module)].path;
    const bool asked = path.ends_with(".DenseReluDense.wo") || path.ends_with("embeddings.patch_embedding");
    if (!asked || !parameter.name.ends_with(".weight")) continue;
    if (parameter.name.find("lora_") == std::string::npos)
      read[static_cast<std::size_t>(module)] = static_cast<ParameterId>(at);
  }
  return read;
}

std::vector<bool> called_by_keyword(const ModelSpec& model) {
  // transformers 5.17: modeling_gpt_oss.py, modeling_qwen3_next.py and its kin, modeling_granitemoehybrid.py.
  constexpr std::string_view kTypes[] = {"GptOssAttention", "GatedDeltaNet", "MambaLayer"};
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
    const Parameter& parameter = model.parameters[static_cast<std::size_t>(id)];
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
