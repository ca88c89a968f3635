#include "report/export/checkpointing_call.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/graphs/graphs.h"
#include "model/traits.h"
#include "planner/lower/shapes.h"

namespace dsplan {
namespace {

using Groups = std::vector<CheckpointGroup>;

// transformers' gradient_checkpointing_enable has every_n_layers; 4.57 has not.
constexpr Version kEveryNLayers{5, 17, 0};

const char* truth(bool flag) { return flag ? "True" : "False"; }

[[noreturn]] void refuse(const ModelSpec& model, std::string message, std::string hint = {}) {
  throw Refusal(model.name, std::move(message), std::move(hint));
}

std::vector<std::string> aten_name(AttentionKernel kernel) {
  if (kernel == AttentionKernel::Flash) return {"_scaled_dot_product_flash_attention"};
  if (kernel == AttentionKernel::MemoryEfficient) return {"_scaled_dot_product_efficient_attention"};
  if (kernel == AttentionKernel::CuDnn) return {"_scaled_dot_product_cudnn_attention"};
  return {};
}

std::vector<std::string> aten_name(Attention attention) {
  if (attention == Attention::Flash) return aten_name(AttentionKernel::Flash);
  if (attention == Attention::MemoryEfficient) return aten_name(AttentionKernel::MemoryEfficient);
  return aten_name(attention == Attention::CuDnn ? AttentionKernel::CuDnn : AttentionKernel::None);
}

// Layers with wider heads than the others take another kernel (Gemma 4).
std::vector<std::string> attention_names(const ModelSpec& model, const Job& job) {
  std::vector<std::string> names = aten_name(job.training.attention);
  if (names.empty() || !model.has_graph) return names;
  const Graph graph = build_graph(model, graph_options(model, job));
  for (const Node& node : graph.nodes) {
    for (const std::string& name : aten_name(node.attention)) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

// The dispatcher's operators behind one of ours; none: no list of operators says it without naming others as well.
std::vector<std::string> aten_names(Op op) {
  switch (op) {
    case Op::Linear: return {"mm", "addmm"};
    case Op::Mm: return {"mm"};
    case Op::Matmul:
    case Op::Bmm: return {"bmm"};
    case Op::GroupedMatmul: return {"_grouped_mm"};
    case Op::Conv2d: return {"convolution"};
    case Op::Softmax: return {"_softmax"};
    case Op::LayerNorm: return {"native_layer_norm"};
    case Op::Dropout: return {"native_dropout"};
    case Op::Embedding: return {"embedding"};
    case Op::Silu: return {"silu"};
    case Op::Gelu: return {"gelu"};
    case Op::Relu: return {"relu"};
    case Op::Tanh: return {"tanh"};
    case Op::Sigmoid: return {"sigmoid"};
    case Op::Cat: return {"cat"};
    default: return {};
  }
}

std::string kept_list(const ModelSpec& model, const Job& job, const std::vector<Op>& kept) {
  std::string text;
  for (const Op op : kept) {
    const std::vector<std::string> names = op == Op::Attention ? attention_names(model, job) : aten_names(op);
    if (names.empty()) {
      refuse(model, formatted("kept \"{}\": no operator of ATen stands for it alone", name(op)),
             "a policy function of your own can tell its calls apart");
    }
    for (const std::string& one : names) {
      text += formatted("{}torch.ops.aten.{}.default", text.empty() ? "" : ", ", one);
    }
  }
  return "[" + text + "]";
}

std::string options_of(const ModelSpec& model, const Job& job, const CheckpointGroup& group) {
  std::string text = formatted("\"use_reentrant\": {}", truth(group.kind == CheckpointKind::Reentrant));
  if (!group.preserve_rng_state) text += ", \"preserve_rng_state\": False";
  if (group.alternate) {
    refuse(model, "every second product is kept by a policy that counts: torchtitan's selective_ac_option op");
  }
  if (!group.kept.empty()) {
    text += formatted(", \"context_fn\": functools.partial(create_selective_checkpoint_contexts, {})",
                      kept_list(model, job, group.kept));
  }
  return "{" + text + "}";
}

bool alike(const CheckpointGroup& a, const CheckpointGroup& b) {
  return a.kind == b.kind && a.preserve_rng_state == b.preserve_rng_state && a.kept == b.kept &&
         a.alternate == b.alternate;
}

// The K of layers 0, K, 2K, ... each its own checkpoint; 0: they are not.
std::int64_t every_nth(const Groups& groups, std::int64_t layers) {
  if (groups.front().first != 0) return 0;
  const std::int64_t step = groups.size() > 1 ? groups[1].first : layers;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const CheckpointGroup& group = groups[i];
    if (group.first != static_cast<std::int64_t>(i) * step || group.last != group.first) return 0;
    if (!alike(group, groups.front())) return 0;
  }
  return groups.back().first + step >= layers ? step : 0;
}

constexpr const char* kConfigure = R"(import deepspeed

deepspeed.checkpointing.configure(mpu_=None, deepspeed_config="ds_config.json")
)";

std::string enabled_by_transformers(const ModelSpec& model, const Job& job, std::int64_t step) {
  const CheckpointGroup& group = job.training.checkpoint.groups.front();
  const std::string nth = step > 1 ? formatted(", every_n_layers={}", step) : std::string();
  if (group.kind == CheckpointKind::DeepSpeed) {
    return formatted(
        "{}model._set_gradient_checkpointing(enable=True, "
        "gradient_checkpointing_func=deepspeed.checkpointing.checkpoint{})\nmodel.enable_input_require_grads()\n",
        kConfigure, nth);
  }
  std::string text;
  if (!group.kept.empty()) {
    text +=
        "import functools\n\nimport torch\nfrom torch.utils.checkpoint import create_selective_checkpoint_contexts\n\n";
  } else if (step == 1) {
    text += formatted("# TrainingArguments: gradient_checkpointing=True, gradient_checkpointing_kwargs={}\n",
                      options_of(model, job, group));
  }
  return text + formatted("model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={}{})\n",
                          options_of(model, job, group), nth);
}

// The list that holds the layers: "model.layers".
std::string path_of_layers(const ModelSpec& model) {
  for (const Module& module : model.modules) {
    if (module.layer == 0) return module.path.substr(0, module.path.rfind('.'));
  }
  refuse(model, "no module is its first layer");
}

constexpr const char* kRuns = R"(
class Run:
    """Neighbouring layers as one checkpoint."""

    def __init__(self, layers, wrap):
        self.layers, self.wrap = layers, wrap

    def __call__(self, hidden_states, *args, **kwargs):
        def forward(hidden_states, *args):
            for layer in self.layers:
                outputs = layer(hidden_states, *args, **kwargs)
                hidden_states = outputs[0] if isinstance(outputs, tuple) else outputs
            return outputs

        return self.wrap(forward, hidden_states, *args)

    def __getattr__(self, name):
        return getattr(self.layers[0], name)


class Runs(torch.nn.ModuleList):
    """The same layers under the same names; whoever walks over them in training gets them in runs."""

    runs = ()

    def __iter__(self):
        layers, at = list(self._modules.values()), 0
        for first, last, wrap in self.runs if self.training else ():
            yield from layers[at:first]
            yield Run(layers[first:last + 1], wrap)
            at = last + 1
        yield from layers[at:]

    def __getitem__(self, index):
        return list(self)[index] if isinstance(index, slice) else super().__getitem__(index)

)";

std::string wrap_of(const ModelSpec& model, const Job& job, const CheckpointGroup& group) {
  if (group.kind == CheckpointKind::DeepSpeed) return "deepspeed.checkpointing.checkpoint";
  return formatted("functools.partial(checkpoint, **{})", options_of(model, job, group));
}

std::string in_runs(const ModelSpec& model, const Job& job) {
  const Groups& groups = job.training.checkpoint.groups;
  const bool several =
      std::any_of(groups.begin(), groups.end(), [](const CheckpointGroup& one) { return one.last > one.first; });
  if (several && masks_some_layers(model)) {
    refuse(model, "runs of layers whose masks differ: each run would get its first layer's",
           "checkpoint single layers: full, nth:K, groups:0,1,4");
  }
  const bool deepspeed = groups.front().kind == CheckpointKind::DeepSpeed;
  const bool keeps = std::any_of(groups.begin(), groups.end(), [](const auto& one) { return !one.kept.empty(); });
  std::string text = deepspeed ? "" : "import functools\n\n";
  text += "import torch\n";
  if (!deepspeed) {
    text += formatted("from torch.utils.checkpoint import checkpoint{}\n",
                      keeps ? ", create_selective_checkpoint_contexts" : "");
  } else {
    text += kConfigure;
  }
  const std::string path = path_of_layers(model);
  const std::size_t dot = path.rfind('.');
  const std::string parent = dot == std::string::npos ? "model" : formatted("model.{}", path.substr(0, dot));
  const std::string leaf = dot == std::string::npos ? path : path.substr(dot + 1);
  text += formatted("\n{0}\nlayers = Runs({1}.{2})\nlayers.runs = (\n", kRuns, parent, leaf);
  for (const CheckpointGroup& group : groups) {
    text += formatted("    ({}, {}, {}),\n", group.first, group.last, wrap_of(model, job, group));
  }
  text += formatted(")\n{}.{} = layers\nmodel.config.use_cache = False\n", parent, leaf);
  if (job.training.transformers >= Version{5, 0, 0}) text += "model.enable_input_require_grads()\n";
  return text;
}

constexpr const char* kCoreAttention = R"(
inner = ALL_ATTENTION_FUNCTIONS["sdpa"]
ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda *args, **kwargs: again(functools.partial(inner, **kwargs), *args)
)";

std::string around_modules(const ModelSpec& model, const Job& job) {
  const Checkpointing& c = job.training.checkpoint;
  if (c.kind != CheckpointKind::NonReentrant) {
    refuse(model, "checkpoints around modules in the reentrant form: what they get by keyword would get no gradient",
           "--checkpoint-impl non_reentrant");
  }
  const bool core = std::find(c.modules.begin(), c.modules.end(), "core_attn") != c.modules.end();
  if (core && job.training.attention == Attention::Eager) {
    refuse(model, "core_attn with eager attention: it is no function of its own there");
  }
  std::string names;
  for (const std::string& one : c.modules) {
    if (one != "core_attn") names += formatted("{}\"{}\"", names.empty() ? "" : ", ", one);
  }
  std::string text = "import functools\n\nfrom torch.utils.checkpoint import checkpoint\n";
  if (core) text += "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS\n";
  text += formatted("\nagain = functools.partial(checkpoint, use_reentrant=False{})\n",
                    c.preserve_rng_state ? "" : ", preserve_rng_state=False");
  if (!names.empty()) {
    text += formatted(R"(names, done = {{{}}}, ()
for path, module in model.get_submodule("{}").named_modules():
    if path.rsplit(".", 1)[-1] in names and not path.startswith(done):
        module.forward = functools.partial(again, module.forward)
        done += (path + ".",)
)",
                      names, path_of_layers(model));
  }
  if (core) text += kCoreAttention + 1;
  return text + "model.config.use_cache = False\n";
}

std::string nested(const ModelSpec& model, const Checkpointing& c) {
  return formatted(R"(from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

layers = model.get_submodule("{}")
for at, layer in enumerate(layers):
    for name, module in list(layer.named_children()):
        setattr(layer, name, checkpoint_wrapper(module, preserve_rng_state=False))
    layers[at] = checkpoint_wrapper(layer{})
model.config.use_cache = False
)",
                   path_of_layers(model), c.groups.front().preserve_rng_state ? "" : ", preserve_rng_state=False");
}

std::string head(const ModelSpec& model, const Job& job) {
  const Checkpointing& c = job.training.checkpoint;
  return formatted("# {}, checkpointing {}: torch {}, transformers {}\n", model.name, c.text, job.training.torch.text(),
                   job.training.transformers.text());
}

}  // namespace

std::string checkpointing_call(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  const Checkpointing& c = t.checkpoint;
  if (t.layers_require_grads && !c.groups.empty()) {
    refuse(model, "checkpoints of LLaMA-Factory's, around layers that make what they are given require a gradient",
           "LLaMA-Factory makes them itself");
  }
  if (!c.modules.empty() && !c.groups.empty()) return head(model, job) + nested(model, c);
  if (!c.modules.empty()) return head(model, job) + around_modules(model, job);
  if (c.groups.empty()) return head(model, job) + "model.gradient_checkpointing_disable()\n";
  const bool selective_deepspeed = c.by_deepspeed() && std::any_of(c.groups.begin(), c.groups.end(),
                                                                   [](const auto& one) { return !one.kept.empty(); });
  if (selective_deepspeed) refuse(model, "DeepSpeed's checkpoint function keeps no results");
  const std::int64_t step = every_nth(c.groups, model.dims.layers);
  const bool said_by_transformers = step == 1 || (step > 1 && t.transformers >= kEveryNLayers);
  return head(model, job) + (said_by_transformers ? enabled_by_transformers(model, job, step) : in_runs(model, job));
}

}  // namespace dsplan
