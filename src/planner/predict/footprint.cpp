#include "planner/predict/footprint.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/module_graph.h"
#include "model/families/encoders/translators.h"
#include "model/parts.h"
#include "model/pictures.h"
#include "model/quantized.h"
#include "model/traits.h"
#include "planner/libraries/library_memory.h"

namespace dsplan {
namespace {

struct CountedParameter {
  std::int64_t elements;  // On this tensor-parallel rank.
  Shape shape;
  bool trained;
  bool hidden_matrix;
  bool embedding;
  DType dtype;
  bool given = false;  // To the optimizer, whether or not it ever has a gradient.
};

bool is_trained(const Parameter& parameter, const Training& training) {
  if (!parameter.trainable) return false;
  for (const std::string& glob : training.freeze) {
    if (glob_matches(glob, parameter.name)) return false;
  }
  return true;
}

// Where rows have no pictures the forward calls the language model and its head alone.
bool is_called(const ModelSpec& model, const Training& training, std::string_view name) {
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  if (tower == nullptr || !tower->beside_text() || training.images > 0) return true;
  const std::initializer_list<std::string_view> text{"language_model.", "text_model.", "lm_head"};
  return std::any_of(text.begin(), text.end(),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// What no loss reaches never has a gradient, and PyTorch's optimizers make no state for it: parts of towers, and in
// masked language models of bert and roberta a bias beside their projection's, which nothing reads where the two share
// no storage; of dinov2's classifier what stands for patches that are masked.
bool is_read(const ModelSpec& model, const Training& training, const Parameter& parameter) {
  if (!is_called(model, training, parameter.name)) return false;
  if (model.recording) {
    const auto id = static_cast<std::int32_t>(&parameter - model.parameters.data());
    return std::any_of(model.recording->ops.begin(), model.recording->ops.end(), [id](const RecordedOp& op) {
      return std::any_of(op.gradients.begin(), op.gradients.end(),
                         [id](const RecordedGradient& one) { return one.to == -1 - id; });
    });
  }
  if (model.parts != nullptr && model.parts->tower != nullptr) {
    const std::vector<std::string>& unreached = model.parts->tower->unreached;
    return std::none_of(unreached.begin(), unreached.end(), [&](const std::string& beginning) {
      return parameter.name.find(beginning) != std::string::npos;
    });
  }
  const std::span<const std::string_view> unread = unread_ends(model);
  if (std::any_of(unread.begin(), unread.end(), [&](std::string_view end) { return parameter.name.ends_with(end); })) {
    return false;
  }
  const bool beside = parameter.name.ends_with("lm_head.bias") || parameter.name.ends_with("predictions.bias");
  if (!beside || model.family == "electra" || !model.graph_class.ends_with("ForMaskedLM")) return true;
  const auto id = static_cast<ParameterId>(&parameter - model.parameters.data());
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [id](const Parameter& other) { return other.tied_to == id; });
}

std::vector<CountedParameter> count(const ModelSpec& model, const Job& job) {
  const bool one_by_one = job.training.runtime == Runtime::PyTorch;
  std::vector<CountedParameter> counted;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone) continue;
    const Shape local = local_shape(model, parameter, job.parallelism.tp);
    const bool in_layer = model.module_at(parameter.module).layer != kNone;
    const bool trained =
        is_trained(parameter, job.training) && (!one_by_one || is_read(model, job.training, parameter));
    counted.push_back({local.elements().value(), local, trained,
                       in_layer && local.rank == 2 && parameter.split != Split::Vocabulary,
                       model.module_at(parameter.module).type == "Embedding", job.training.dtype_of(parameter),
                       is_trained(parameter, job.training)});
  }
  return counted;
}

// Bytes of optimizer state for one tensor. Adam keeps two moments, SGD a momentum if asked, Lion and Adagrad one,
// RMSprop one and a momentum if asked; Adafactor a row and a column vector in fp32; 8-bit Adam 2 n + 8 ceil(n / 256)
// from 4,096 elements on, else 8 n; 8-bit Lion half of that; AdEMAMix three moments, two of them averages. torchao's:
// codes and scales by block, a map for each moment of 8 and of 4 bits, and Adam's own below 4,096 elements or where
// blocks do not divide them.
Bytes state_bytes(const Optimizer& optimizer, const Shape& shape, DType dtype, bool hidden_matrix) {
  const std::int64_t n = shape.elements().value();
  const Bytes one = storage(Elements(n), dtype);
  switch (optimizer.kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: return one * 2;
    case OptimizerKind::Sgd: return optimizer.momentum > 0 ? one : Bytes(0);
    case OptimizerKind::Lion:
    case OptimizerKind::Adagrad: return one;
    case OptimizerKind::RmsProp: return optimizer.momentum > 0 ? one * 2 : one;
    case OptimizerKind::Muon: return hidden_matrix ? one : one * 2;
    case OptimizerKind::Adam8bit:
      return n < 4096 ? Bytes(checked_mul(n, 8)) : Bytes(checked_mul(n, 2)) + div_ceil(Bytes(n), 256) * 8;
    case OptimizerKind::Lion8bit: return n < 4096 ? Bytes(checked_mul(n, 4)) : Bytes(n) + div_ceil(Bytes(n), 256) * 4;
    case OptimizerKind::AdamW32bit: return Bytes(checked_mul(n, 8));
    case OptimizerKind::AdEmaMix: return Bytes(checked_mul(n, 12));
    case OptimizerKind::AdEmaMix8bit:
      return n < 4096 ? Bytes(checked_mul(n, 12)) : Bytes(checked_mul(n, 3)) + div_ceil(Bytes(n), 256) * 12;
    case OptimizerKind::AoAdamW8bit:
      return n < 4096 || n % 256 != 0 ? one * 2 : Bytes(checked_mul(n, 2)) + Bytes(n / 256 * 8) + Bytes(2048);
    case OptimizerKind::AoAdamWFp8:
      return n < 4096 || n % 256 != 0 ? one * 2 : Bytes(checked_mul(n, 2)) + Bytes(n / 256 * 8);
    case OptimizerKind::AoAdamW4bit:
      return n < 4096 || n % 128 != 0 ? one * 2 : Bytes(n) + Bytes(n / 128 * 8) + Bytes(128);
    case OptimizerKind::Adafactor: break;
  }
  if (shape.rank < 2) return Bytes(checked_mul(n, 4));
  return Bytes(4) * (n / shape.dims[shape.rank - 1U] + n / shape.dims[shape.rank - 2U]);
}

Bytes flat_state(const Training& training, std::int64_t elements) {
  return elements == 0 ? Bytes(0) : state_bytes(training.optimizer, Shape{elements}, training.master_dtype, false);
}

// On the device, of one parameter of its own. Of paged states from 100,000 elements on only the scales are there, a
// 64th of what they scale.
Bytes own_state(const Optimizer& optimizer, const CountedParameter& p) {
  const bool quantizes = quantizes_states(optimizer.kind);
  const bool wide = quantizes && optimizer.embeddings_32bit && p.embedding;
  const bool scaled = quantizes && !wide && p.elements >= 4096;
  const std::int64_t moments =
      optimizer.kind == OptimizerKind::Lion || optimizer.kind == OptimizerKind::Lion8bit           ? 1
      : optimizer.kind == OptimizerKind::AdEmaMix || optimizer.kind == OptimizerKind::AdEmaMix8bit ? 3
                                                                                                   : 2;
  if (optimizer.paged && p.elements >= 100'000) {
    return scaled ? div_ceil(Bytes(p.elements), 256) * (4 * moments) : Bytes(0);
  }
  if (wide || optimizer.kind == OptimizerKind::Lion) return Bytes(checked_mul(p.elements, 4 * moments));
  return state_bytes(optimizer, p.shape, p.dtype, p.hidden_matrix);
}

// Separate tensors under plain PyTorch: torch's fused Adam counts its steps on the device, four bytes per parameter;
// Adafactor keeps an fp32 scalar (RMS) for each; bitsandbytes keeps 32-bit states in fp32, and two maps of 256 values
// beside 8-bit ones.
Bytes pytorch_state(const Optimizer& optimizer, const std::vector<CountedParameter>& parameters) {
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  const bool scalar =
      (adam && optimizer.implementation == Implementation::Fused) || optimizer.kind == OptimizerKind::Adafactor;
  Bytes sum;
  bool quantised = false;
  for (const CountedParameter& p : parameters) {
    if (!p.trained) continue;
    sum += own_state(optimizer, p);
    const bool wide = optimizer.embeddings_32bit && p.embedding;
    quantised |= quantizes_states(optimizer.kind) && !wide && p.elements >= 4096;
    if (scalar) sum += Bytes(4);
  }
  return quantised ? sum + Bytes(optimizer.kind == OptimizerKind::Lion8bit ? 1024 : 2048) : sum;
}

}  // namespace

Bytes states_of(const Optimizer& optimizer, const std::vector<GivenTensor>& tensors) {
  std::vector<CountedParameter> counted;
  for (const GivenTensor& one : tensors) {
    counted.push_back({one.shape.elements().value(), one.shape, true, false, one.embedding, one.dtype});
  }
  return pytorch_state(optimizer, counted);
}

namespace {

// And DeepSpeed's base optimizer in fp32.
Bytes separate_state(const Training& training, const std::vector<CountedParameter>& parameters) {
  if (training.runtime == Runtime::PyTorch) return pytorch_state(training.optimizer, parameters);
  Bytes sum;
  for (const CountedParameter& p : parameters) {
    if (p.trained) sum += state_bytes(training.optimizer, p.shape, p.dtype, p.hidden_matrix);
  }
  return sum;
}

std::int64_t sum_of(const std::vector<CountedParameter>& parameters, bool trained) {
  std::int64_t sum = 0;
  for (const CountedParameter& p : parameters) {
    if (p.trained == trained) sum = checked_add(sum, p.elements);
  }
  return sum;
}

Bytes bytes_of(const std::vector<CountedParameter>& parameters, bool trained) {
  Bytes sum;
  for (const CountedParameter& p : parameters) {
    if (p.trained == trained) sum += storage(Elements(p.elements), p.dtype);
  }
  return sum;
}

// Of one dtype, or as torch.stack brings several together.
DType gradients_dtype(const std::vector<CountedParameter>& parameters) {
  std::optional<DType> common;
  for (const CountedParameter& p : parameters) {
    if (!p.trained) continue;
    if (common && *common != p.dtype) return DType::Float32;
    common = p.dtype;
  }
  return common.value_or(DType::Float32);
}

// ZeroRedundancyOptimizer: each parameter, from the largest to the smallest, is the rank's that has the least so far;
// the optimizer of `rank` keeps states of its own alone.
Bytes shared_state(const Job& job, std::vector<CountedParameter> parameters, std::int64_t rank) {
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const CountedParameter& a, const CountedParameter& b) { return a.elements > b.elements; });
  std::vector<std::int64_t> filled(static_cast<std::size_t>(job.parallelism.dp), 0);
  for (CountedParameter& p : parameters) {
    if (!p.given) continue;
    std::size_t least = 0;
    for (std::size_t at = 1; at < filled.size(); ++at) least = filled[at] < filled[least] ? at : least;
    filled[least] += p.elements;
    if (static_cast<std::int64_t>(least) != rank) p.trained = false;
  }
  return pytorch_state(job.training.optimizer, parameters);
}

void plain(const Job& job, const std::vector<CountedParameter>& parameters, std::int64_t rank, Footprint& result) {
  const Training& t = job.training;
  const Bytes trained = bytes_of(parameters, true);
  result.persistent[Role::Parameters] = trained + bytes_of(parameters, false);
  const bool shares = t.runtime == Runtime::PyTorch && t.ddp.zero_redundancy;
  result.persistent[Role::Optimizer] = shares ? shared_state(job, parameters, rank) : separate_state(t, parameters);
  result.states.gradients = trained;
  if (t.runtime != Runtime::PyTorch) return;
  // DistributedDataParallel keeps buckets as large as the gradients.
  if (job.parallelism.dp > 1) result.persistent[Role::RuntimeBuffers] = trained;
  const bool looks = t.ddp.find_unused_parameters || t.ddp.static_graph;
  if (job.parallelism.dp > 1 && looks) {  // An int32 for each parameter: whether it was used.
    const auto count = std::count_if(parameters.begin(), parameters.end(), [](const auto& p) { return p.trained; });
    result.persistent[Role::RuntimeBuffers] += storage(Elements(count), DType::Int32);
  }
  // What a hook has sent is let go of behind a later collective, since PyTorch 2.8.
  if (job.parallelism.dp > 1 && t.ddp.comm_hook && t.torch >= Version{2, 8, 0}) {
    for (const CountedParameter& p : parameters) {
      if (!p.trained || p.dtype == *t.ddp.comm_hook) continue;
      result.persistent[Role::Temporaries] += storage(Elements(p.elements), *t.ddp.comm_hook);
    }
  }
  const bool in_buckets = job.parallelism.dp > 1 && t.ddp.gradient_as_bucket_view;
  if (!t.zero_grad_to_none && !in_buckets) result.persistent[Role::Gradients] = trained;
  if (t.loop == LoopKind::FactoryV1) result.persistent[Role::Gradients] = trained;  // A list holds them.
  // The Trainer holds the latest norm for its log; GradScaler a scale and a counter.
  const bool norm = t.gradient_clipping > 0 && holds_norm(t.loop) && trained > Bytes(0);
  if (norm) result.persistent[Role::Temporaries] += Bytes(bytes_per_element(gradients_dtype(parameters)));
  if (t.grad_scaler) result.persistent[Role::Optimizer] += Bytes(8);
}

// FP16_UnfusedOptimizer, for all that is no FusedAdam: masters and states of each parameter
// (fp16/unfused_optimizer.py).
bool is_unfused(const Training& t) {
  const bool adam = t.optimizer.kind == OptimizerKind::Adam || t.optimizer.kind == OptimizerKind::AdamW;
  return t.zero.stage == 0 && t.dtype != DType::Float32 &&
         !(adam && t.optimizer.implementation == Implementation::Fused);
}

Bytes unfused_optimizer(const Training& t, std::vector<CountedParameter> parameters) {
  for (CountedParameter& p : parameters) p.dtype = t.master_dtype;
  return bytes_of(parameters, true) + pytorch_state(t.optimizer, parameters);
}

// FP16_Optimizer: flat 16-bit copy, flat master, states (fp16/fused_optimizer.py).
void stage0(const Job& job, const std::vector<CountedParameter>& parameters, Footprint& result) {
  const Training& t = job.training;
  if (t.dtype == DType::Float32) return plain(job, parameters, 0, result);
  const std::int64_t n = sum_of(parameters, true);
  result.persistent[Role::Parameters] = storage(Elements(n), t.dtype) + bytes_of(parameters, false);
  result.persistent[Role::Optimizer] =
      is_unfused(t) ? unfused_optimizer(t, parameters) : storage(Elements(n), t.master_dtype) + flat_state(t, n);
  result.states.gradients = storage(Elements(n), t.dtype);
}

// Npad = ceil(N / 2W) * 2W, S = Npad / W (stage_1_and_2.py, nccl_start_alignment_factor). With the optimizer on the
// host the device keeps the flat parameters and one scratch as large as the largest parameter.
void stage12(const Job& job, const std::vector<CountedParameter>& parameters, Footprint& result) {
  const Training& t = job.training;
  const std::int64_t n = sum_of(parameters, true);
  const std::int64_t ranks = job.parallelism.dp;
  const Elements padded = round_up(Elements(n), checked_mul(2, ranks));
  const Elements part = div_floor(padded, ranks);
  result.persistent[Role::Parameters] = storage(padded, t.dtype) + bytes_of(parameters, false);
  if (t.zero.offload_optimizer.device != OffloadDevice::None) {
    std::int64_t largest = 0;
    for (const CountedParameter& p : parameters) largest = p.trained ? std::max(largest, p.elements) : largest;
    result.persistent[Role::RuntimeBuffers] = storage(Elements(largest), t.dtype);
    return;
  }
  result.persistent[Role::Optimizer] = storage(part, t.master_dtype) + flat_state(t, part.value());
  if (t.zero.stage == 2) {
    // Sums in another dtype are a partition of their own since 0.19.8; before, ZeRO-2 kept the model's, whatever was
    // asked.
    result.states.gradients = storage(part, t.deepspeed < Version{0, 19, 8} ? t.dtype : t.grad_accum_dtype);
    return;
  }
  result.states.gradients = storage(Elements(n), t.grad_accum_dtype);
  if (t.dtype == DType::BFloat16 && t.grad_accum_dtype == DType::Float32) {
    // BF16_Optimizer: a full accumulation buffer on every rank, zeroed and never freed (bf16_optimizer.py).
    result.persistent[Role::Gradients] = storage(padded, t.grad_accum_dtype);
    result.states.gradients = result.persistent[Role::Gradients];
  }
}

// Elements of each sub-group of ZeRO-3: parameters until sub_group_size is reached (stage3.py,
// _create_fp16_sub_groups).
std::vector<std::int64_t> sub_groups(const Job& job, const std::vector<CountedParameter>& parameters) {
  const std::int64_t ranks = job.parallelism.dp;
  std::vector<std::int64_t> groups;
  std::int64_t group = 0;
  for (const CountedParameter& p : parameters) {
    if (!p.trained) continue;
    group += (p.elements + ranks - 1) / ranks;
    if (group < job.training.zero.sub_group_size.value()) continue;
    groups.push_back(group);
    group = 0;
  }
  if (group > 0) groups.push_back(group);
  return groups;
}

// Of an optimizer that is partly on the host: sub-groups of the device have master, gradient and states there. The
// backup optimizer keeps the element that it was made with where there are none, and until 0.13.3 FusedAdam's int32.
void partial_optimizer(const Job& job, const std::vector<CountedParameter>& parameters, Footprint& result) {
  const Training& t = job.training;
  const double ratio = t.zero.offload_optimizer.ratio;
  if (ratio == 1) return;
  const std::vector<std::int64_t> groups = sub_groups(job, parameters);
  const auto count = static_cast<double>(groups.size());
  const bool host_first = t.deepspeed < Version{0, 18, 0};
  const auto begin = host_first ? static_cast<std::size_t>(ratio * count) : 0;
  const auto end = host_first ? groups.size() : static_cast<std::size_t>((1 - ratio) * count);
  for (std::size_t at = begin; at < end; ++at) {
    const Bytes master = storage(Elements(groups[at]), t.master_dtype);
    result.persistent[Role::Gradients] += master;
    result.persistent[Role::Optimizer] += master + flat_state(t, groups[at]);
  }
  result.states.gradients = result.persistent[Role::Gradients];
  if (begin == end) result.persistent[Role::Temporaries] += Bytes(bytes_per_element(t.dtype));
  if (t.deepspeed < Version{0, 13, 3}) result.persistent[Role::Temporaries] += Bytes(4);
}

// P = ceil(n / W) per parameter; persistent small parameters are whole besides (partition_parameters.py,
// parameter_offload.py). The bucket is never freed.
void stage3(const Job& job, const std::vector<CountedParameter>& parameters, Footprint& result) {
  const Training& t = job.training;
  const std::int64_t ranks = job.parallelism.dp;
  std::int64_t trained = 0;
  std::int64_t counted = 0;
  std::int64_t persistent = 0;
  Bytes parts;  // With hpZ's shards of what is frozen: the step drops those of what it changes.
  Bytes whole;
  Bytes codes;  // bitsandbytes' Linear8bitLt keeps its weight beside what DeepSpeed cuts.
  const std::int64_t inside = t.zero.hpz_partition_size;
  for (const CountedParameter& p : parameters) {
    const std::int64_t part = (p.elements + ranks - 1) / ranks;
    if (p.dtype == DType::Int8) codes += Bytes(p.elements);
    if (p.trained) trained += part;
    parts += storage(Elements(part), p.dtype);
    if (inside > 1 && !p.trained) parts += storage(Elements(part * ranks / inside), p.dtype);
    if (p.elements > t.zero.param_persistence_threshold.value()) continue;
    if (checked_add(counted, p.elements) > t.zero.model_persistence_threshold.value()) continue;
    counted += p.elements;
    ++persistent;
    whole += storage(Elements(part * ranks), p.dtype);
  }
  // A single rank has nothing to gather: several persistent parameters are their partitions; one alone is copied.
  const bool parameters_away = t.zero.offload_param.device != OffloadDevice::None;
  if (ranks == 1 && persistent != 1 && !t.zero.allgather_sequential && !parameters_away) whole = Bytes(0);
  const bool optimizer_away = t.zero.offload_optimizer.device != OffloadDevice::None;
  result.persistent[Role::Parameters] = parameters_away ? codes : parts + codes;
  result.persistent[Role::RuntimeBuffers] = whole;
  if (trained == 0) return;
  if (t.zero.contiguous_gradients) {
    result.persistent[Role::RuntimeBuffers] += storage(t.zero.reduce_bucket_size, t.communication_dtype);
  }
  if (optimizer_away) return partial_optimizer(job, parameters, result);
  result.persistent[Role::Gradients] = storage(Elements(trained), t.grad_accum_dtype);
  result.states.gradients = result.persistent[Role::Gradients];
  // A copy of its own even where parameters are fp32 already.
  result.persistent[Role::Optimizer] = storage(Elements(trained), t.master_dtype);
  // States are kept by sub-group; only block-wise 8-bit scales can tell.
  for (const std::int64_t group : sub_groups(job, parameters))
    result.persistent[Role::Optimizer] += flat_state(t, group);
}

// What a module multiplies has two dimensions: opt's layers and routers make rows of their tokens, Qwen's towers and
// Mistral's projector of patches; a head that classifies whole rows is given one vector each.
bool multiplies_rows(const ModelSpec& model, const Module& module) {
  std::string_view path = module.path;
  if (constexpr std::string_view kBase = ".base_layer"; path.ends_with(kBase)) path.remove_suffix(kBase.size());
  const std::string_view made = model.graph_class;
  const auto below = [&](std::string_view name) { return path.find(name) != std::string_view::npos; };
  if (model.family == "opt" && (path.ends_with(".fc1") || path.ends_with(".fc2"))) return true;
  if (model.family == "mistral3" && below("multi_modal_projector.")) return true;
  if (model.family == "siglip" && (below("text_model.head") || path.ends_with("head.attention.out_proj"))) return true;
  if (module.type.ends_with("Router") || below("visual.")) return true;
  const bool whole = made.ends_with("ForSequenceClassification") || made.ends_with("ForImageClassification");
  return whole && module.layer == kNone && (below("classifier") || below("pooler."));
}

// axolotl's functions add a bias to what they made (kernels/lora.py, matmul_lora). A function stands where each of its
// projections has adapters, in the language model alone.
bool adds_in_function(const ModelSpec& model, const AdapterKernels& kernels, const Module& module) {
  constexpr std::string_view kBase = ".base_layer";
  const std::string_view path = module.path;
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  if (!kernels.any() || !path.ends_with(kBase)) return false;
  if (tower != nullptr && path.find(std::string(tower->module) + ".") != std::string_view::npos) return false;
  const std::string_view wrapper = path.substr(0, path.size() - kBase.size());
  const std::string_view around = wrapper.substr(0, wrapper.rfind('.') + 1);
  const std::string_view name = wrapper.substr(around.size());
  const auto together = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end() &&
           std::all_of(names.begin(), names.end(), [&](std::string_view one) {
             const std::string base = std::string(around).append(one).append(kBase);
             return std::any_of(model.modules.begin(), model.modules.end(),
                                [&](const Module& other) { return other.path == base; });
           });
  };
  return (kernels.qkv && together({"q_proj", "k_proj", "v_proj"})) || (kernels.o && together({"o_proj"})) ||
         (kernels.mlp && together({"gate_proj", "up_proj", "down_proj"}));
}

// The modules that multiply with a bias: a weight of two dimensions stands beside it. Under ZeRO-3, DeepSpeed replaces
// nn.functional.linear by a function that calls addmm for rows alone, and adds the bias apart elsewhere; GPT-2's Conv1D
// calls addmm itself. Falcon's linear is `@`, then a sum; bitsandbytes multiplies 8-bit weights with a handle of its
// own.
std::vector<const Module*> biased_products(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  std::vector<const Module*> found;
  const bool rows_only = t.runtime == Runtime::DeepSpeed && t.zero.stage == 3 && model.family != "gpt2";
  for (const Parameter& bias : model.parameters) {
    // Of a single column nothing goes through cuBLASLt.
    if (bias.shape.rank != 1 || bias.shape.dims[0] == 1 || !bias.name.ends_with(".bias")) continue;
    const Module& module = model.module_at(bias.module);
    if (module.path.find(".audio_tower.") != std::string::npos) continue;  // No batch has sound.
    if (!is_called(model, t, module.path)) continue;
    if (module.type == "FalconLinear" || module.type.starts_with("Linear8bitLt")) continue;
    if (adds_in_function(model, t.lora_kernels, module)) continue;
    if (rows_only && !multiplies_rows(model, module)) continue;
    const bool multiplies = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& weight) {
      return weight.module == bias.module && weight.shape.rank == 2;
    });
    if (multiplies) found.push_back(&module);
  }
  return found;
}

// Those that checkpoints may recompute, inside of layers: a tower's, where they do not make its patches require a
// gradient, only if something in front of its end is trained.
std::vector<const Module*> recomputed_modules(const ModelSpec& model, const Training& training,
                                              std::vector<const Module*> products) {
  std::erase_if(products, [](const Module* one) { return one->layer == kNone; });
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  if (tower == nullptr || tower->hears_checkpoints) return products;
  const std::string inside = std::string(tower->module) + ".";
  const bool reached = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& one) {
    const bool in_front = one.name.find(inside) != std::string::npos && one.name.find("merger") == std::string::npos;
    return in_front && is_trained(one, training);
  });
  if (!reached) {
    std::erase_if(products, [&](const Module* one) { return one->path.find(inside) != std::string::npos; });
  }
  return products;
}

// Whether a checkpoint runs a product with a bias again, and so on autograd's thread. One around the product's own
// module stops before it, because all that backward wants is its input; the reentrant form runs everything.
bool recomputes_biased(const ModelSpec& model, const Checkpointing& checkpoint,
                       const std::vector<const Module*>& products) {
  if (checkpoint.modules.empty()) {
    return std::any_of(checkpoint.groups.begin(), checkpoint.groups.end(), [&](const CheckpointGroup& group) {
      const bool inside = std::any_of(products.begin(), products.end(), [&](const Module* one) {
        return model.family == "albert" || (one->layer >= group.first && one->layer <= group.last);
      });
      return inside &&
             (group.alternate || std::find(group.kept.begin(), group.kept.end(), Op::Linear) == group.kept.end());
    });
  }
  return std::any_of(model.modules.begin(), model.modules.end(), [&](const Module& module) {
    const std::string_view name = std::string_view(module.path).substr(module.path.rfind('.') + 1);
    const auto& names = checkpoint.modules;
    if (module.layer == kNone || std::find(names.begin(), names.end(), name) == names.end()) return false;
    return std::any_of(products.begin(), products.end(), [&](const Module* product) {
      if (product == &module) return checkpoint.kind != CheckpointKind::NonReentrant;
      return product->path.starts_with(module.path + ".");
    });
  });
}

// cuBLAS on the loop's thread and on autograd's; cuBLASLt where a product with a bias runs: forward, and autograd's
// thread if layers are recomputed there.
void add_workspaces(const ModelSpec& model, const Job& job, Footprint& result) {
  const std::optional<LibraryWorkspaces> sizes = library_workspaces(job);
  if (!sizes || model.recording) return;  // Which of a recording's operators multiply is not known.
  const bool backward = result.parameters_trainable > Elements(0);
  const std::vector<const Module*> biased = biased_products(model, job);
  const std::vector<const Module*> recomputed = recomputed_modules(model, job.training, biased);
  const bool recomputes =
      backward && !recomputed.empty() && recomputes_biased(model, job.training.checkpoint, recomputed);
  Bytes& workspace = result.persistent[Role::Workspace];
  workspace = sizes->cublas * (backward ? 2 : 1);
  if (!sizes->lt_per_call && !biased.empty()) workspace += sizes->cublaslt * (recomputes ? 2 : 1);
}

std::int64_t last_tokens(const Training& t) { return checked_mul(t.rows(), t.seq_of(t.steps() * t.grad_accum - 1)); }

// What the trained class says of how many places, in how many classes each.
struct Answers {
  std::int64_t places = 0;
  std::int64_t classes = 0;
  bool widened = false;  // Its loss is of logits in fp32.
};

// Nothing for a body.
std::optional<Answers> answers_of(const ModelSpec& model, const Training& t) {
  const auto is = [&](std::string_view head) { return model.graph_class.ends_with(head); };
  const Dimensions& d = model.dims;
  const bool shown =
      model.has_graph && model.parts != nullptr && model.parts->tower != nullptr && model.parts->tower->beside_text();
  if (model.code == ModelCode::Torchtitan) return Answers{last_tokens(t), d.vocab, true};
  if (is("ForCausalLM") || is("LMHeadModel") || shown) {
    return Answers{last_tokens(t), d.vocab, t.loss != Loss::Native || model.family == "nemotron_h"};
  }
  const bool modern = model.family == "modernbert";
  const bool apart = model.family == "deberta-v2";
  if (is("ForMaskedLM")) return Answers{last_tokens(t), d.vocab, modern};
  if (is("ForQuestionAnswering")) return Answers{last_tokens(t), d.labels, false};
  if (is("ForTokenClassification"))
    return Answers{last_tokens(t), d.labels, model.parts != nullptr && !modern && !apart};
  if (contrasts(model)) {  // Labels are the batch's own order; siglip's signs of pairs are in fp32.
    return Answers{0, 0, model.family == "siglip"};
  }
  if (d.decoder_layers > 0) return Answers{checked_mul(t.micro_batch, t.target_seq), d.vocab, false};
  if (is("ForSequenceClassification") && apart) {
    return Answers{t.micro_batch, d.labels, !model.parts->disentangled.names_problem};
  }
  if (is("ForSequenceClassification") || is("ForImageClassification")) return Answers{t.micro_batch, d.labels, false};
  return std::nullopt;
}

// Of one picture.
Elements pixels_of(const ModelSpec& model, const Training& training) {
  const bool beside = model.dims.image == 0;
  const std::int64_t side = beside ? model.parts->tower->dims.image : model.dims.image;
  if (beside && model.parts->tower->projection == ProjectorKind::Adapted) {
    return Elements(checked_mul(model.parts->tower->channels, checked_mul(side, side)));
  }
  const auto patches = std::find_if(model.parameters.begin(), model.parameters.end(), [](const Parameter& one) {
    return one.name.ends_with("projection.weight") || one.name.ends_with("patch_embedding.weight");
  });
  if (model.family == "dinov2" && training.seq != model.dims.max_positions) {  // So many patches, and a class token.
    const std::int64_t area = checked_mul(patches->shape.dims[2], patches->shape.dims[3]);
    return Elements(checked_mul(patches->shape.dims[1], checked_mul(area, training.seq - 1)));
  }
  return Elements(checked_mul(patches->shape.dims[1], checked_mul(side, side)));
}

// What pictures add to tokens and labels; `tokens`: a number for each token.
Bytes shown_bytes(const ModelSpec& model, const Training& t, Bytes tokens) {
  const TowerParts& tower = *model.parts->tower;
  const std::int64_t pictures = checked_mul(t.micro_batch, t.images);
  if (tower.projection == ProjectorKind::Unfolded) {  // Whole pictures, two numbers each.
    const std::int64_t area = checked_mul(t.image_size[0], t.image_size[1]);
    const Elements numbers(checked_mul(tower.channels, area));
    return (storage(numbers, DType::Float32) + storage(Elements(2), DType::Int64)) * pictures;
  }
  // Tiles, a shape, which tiles there are, and which tokens see them.
  if (tower.projection == ProjectorKind::Crossed) {
    const std::int64_t tiles = checked_mul(pictures, tower.tiles);
    const Bytes pixels = storage(pixels_of(model, t), DType::Float32) * tiles;
    return pixels + storage(Elements(pictures + tiles + checked_mul(tiles, t.seq)), DType::Int64);
  }
  if (tower.projection == ProjectorKind::Connected) {  // Pixels, and a number for each place that is one.
    const Elements places(checked_mul(pictures, checked_mul(tower.dims.image, tower.dims.image)));
    return storage(Elements(checked_mul(places.value(), tower.channels)), DType::Float32) +
           storage(places, DType::Float32);
  }
  if (tower.projection == ProjectorKind::Embedded) {  // As many patches as the largest picture has, and their places.
    const Elements numbers(checked_mul(tower.padded, checked_mul(tower.channels, tower.patch * tower.patch)));
    const Elements places(checked_mul(tower.padded, 2));
    return (storage(numbers, DType::Float32) + storage(places, DType::Int64)) * pictures + tokens;
  }
  if (!tower.cuts.empty()) {  // Squares, and what each picture was before.
    const Elements numbers(checked_mul(pixels_of(model, t).value(), tiling_of(tower, t.image_size).squares()));
    return (storage(numbers, DType::Float32) + storage(Elements(2), DType::Int64)) * pictures;
  }
  if (tower.merge > 0) {  // Patches row by row, three numbers a picture, a kind for each token; of each row a number
                          // that the model keeps.
    const std::int64_t area = checked_mul(t.image_size[0], t.image_size[1]);
    const Elements numbers(checked_mul(checked_mul(tower.channels, tower.frames), area));
    const Bytes kept = storage(Elements(t.micro_batch), DType::Int64);
    return (storage(numbers, DType::Float32) + storage(Elements(3), DType::Int64)) * pictures + tokens + kept;
  }
  // Of its weights' dtype, unless fully_shard casts them.
  const bool cast = t.runtime == Runtime::Fsdp2 && t.fsdp.casts_parameters;
  const bool narrow = tower.projection == ProjectorKind::Adapted && !cast;
  const Bytes pixels = storage(pixels_of(model, t), narrow ? t.dtype : DType::Float32) * pictures;
  return tower.sees_itself ? pixels + tokens : pixels;
}

// Bands of a spectrum, with two frames for each position, in the weights' dtype.
Bytes spectrum_bytes(const ModelSpec& model, const Training& t) {
  const auto first = std::find_if(model.parameters.begin(), model.parameters.end(),
                                  [](const Parameter& one) { return one.name.ends_with("conv1.weight"); });
  const std::int64_t frames = checked_mul(2, model.dims.max_positions);
  return storage(Elements(checked_mul(first->shape.dims[1], frames)), t.dtype) * t.micro_batch;
}

// Tokens and a mask; labels, or which tokens are a completion's. The number of labels; the reference's sums of a pair.
bool add_batch_of_trainer(const Training& t, Footprint& result) {
  const Bytes tokens = storage(Elements(last_tokens(t)), DType::Int64);
  Bytes& inputs = result.persistent[Role::Inputs];
  if (t.loss == Loss::Weighted) return true;  // All of it goes in forward.
  inputs = tokens * (of_rewards(t.loss) ? 2 : 3);
  // Taken out of the batch in forward.
  if (t.loss == Loss::OrpoLogits || t.loss == Loss::SimpoLogits) inputs = tokens * 2;
  if (of_tagged_rows(t.loss)) inputs = tokens * 6 + storage(Elements(t.micro_batch), DType::Bool);
  if (asks_for_prompts(t.loss)) {
    inputs += storage(Elements(checked_mul(t.micro_batch, prompt_length(t.seq))), DType::Int64) * 2;
  }
  if (t.loss == Loss::Trl) inputs += Bytes(8);
  if (t.loss == Loss::DpoPrecomputed) inputs += storage(Elements(t.micro_batch), DType::Float32) * 2;
  return true;
}

// Tokens, sound or pictures, and labels; the collators of transformers 4.53 to 4.57 give a mask as well.
bool add_batch(const ModelSpec& model, const Training& training, Footprint& result) {
  if (model.recording) {
    for (const RecordedTensor& tensor : model.recording->batch) {
      result.persistent[Role::Inputs] += storage(tensor.shape.elements(), tensor.dtype);
    }
    return true;
  }
  if (of_trainer(training.loss)) return add_batch_of_trainer(training, result);
  const std::optional<Answers> answers = answers_of(model, training);
  if (!answers) return false;
  Bytes& inputs = result.persistent[Role::Inputs];
  // What is regressed to is a number, not a class.
  const bool number = regresses(model);
  if (!training.labels_are_ids) {
    const bool spans = model.graph_class.ends_with("ForQuestionAnswering");  // Where each begins and ends.
    const Elements labels(spans ? checked_mul(2, training.rows()) : answers->places);
    inputs = storage(labels, number ? DType::Float32 : DType::Int64);
  }
  if (model.family == "whisper") {
    inputs += spectrum_bytes(model, training);
  } else if (model.dims.image > 0) {
    inputs += storage(pixels_of(model, training), DType::Float32) * training.micro_batch;
  } else {
    const Bytes tokens = storage(Elements(last_tokens(training)), DType::Int64);
    inputs += tokens * (batch_has_mask(training.transformers) ? 2 : 1);
    if (training.images > 0) inputs += shown_bytes(model, training, tokens);
    if (contrasts(model)) inputs += storage(pixels_of(model, training), DType::Float32) * training.micro_batch;
  }
  return true;
}

Bytes loss_bytes(const ModelSpec& model, const Training& t) {
  const std::optional<Answers> answers = answers_of(model, t);
  const bool cast = is_fsdp(t.runtime) && t.fsdp.casts_outputs && is_of_model(t.loss);  // One of the outputs.
  const bool narrow = cast || (answers && !answers->widened && !t.autocast);
  return Bytes(bytes_per_element(narrow ? t.dtype : DType::Float32));
}

// FusedAdam's int32 for overflows, and ZeRO's and BF16_Optimizer's norm, an fp32 scalar; without ZeRO it is a number of
// Python's. ZeRO-3's norm is fp64, and it keeps a flag of its own. With the optimizer on the host there is no
// FusedAdam.
void add_scalars(const Job& job, Footprint& result) {
  const Training& t = job.training;
  const bool offloaded = t.zero.offload_optimizer.device != OffloadDevice::None;
  if (result.parameters_trainable == Elements(0)) return;
  if (t.zero.stage == 3) result.persistent[Role::Temporaries] += Bytes(1);  // Of a barrier.
  if (offloaded) return;
  const bool adam = t.optimizer.kind == OptimizerKind::Adam || t.optimizer.kind == OptimizerKind::AdamW;
  if (adam && t.optimizer.implementation == Implementation::Fused) result.persistent[Role::Temporaries] += Bytes(4);
  if (t.zero.stage == 3) {
    result.persistent[Role::Temporaries] += Bytes(8 + 1);
  } else if (t.zero.stage > 0 || t.grad_accum_dtype != t.dtype) {
    result.persistent[Role::Temporaries] += Bytes(4);
  }
}

// Keys and values of every layer, which the outputs hold as well.
Bytes held_cache(const ModelSpec& model, const Training& t) {
  if (!t.use_cache) return Bytes(0);
  const Dimensions& d = model.dims;
  // Under autocast keys are turned in fp32, or have Falcon's biases, and the values join them; else they are as a
  // product has left them.
  const bool plain = model.family == "gpt2" || model.family == "opt" || model.family == "bloom";
  const DType kept = plain ? t.autocast.value_or(t.dtype) : t.dtype;
  // Falcon spreads the heads of a group before.
  const bool spread = model.parts != nullptr && model.parts->projections == Projections::FusedGroups;
  const Elements layer(checked_mul(2 * last_tokens(t), checked_mul(spread ? d.heads : d.kv_heads, d.head_dim)));
  Bytes held = storage(layer, kept) * d.layers;
  for (std::int64_t at = 0; at < d.layers && d.sliding_window > 0; ++at) {
    if (model.parts->kind(static_cast<std::size_t>(at)) == LayerKind::Sliding) held += Bytes(8);
  }
  return held;
}

// image_hidden_states beside the logits: what the projector gives, or llama4's tower. Classes of grids return none.
Bytes held_pictures(const ModelSpec& model, const Training& t) {
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  if (tower == nullptr || !tower->beside_text() || t.images == 0) return Bytes(0);
  const bool grid = tower->merge > 0 && tower->projection == ProjectorKind::Merged;
  if (grid || tower->projection == ProjectorKind::Crossed) return Bytes(0);
  std::int64_t width = model.dims.hidden;
  for (const Parameter& parameter : model.parameters) {
    const bool projector = tower->projection == ProjectorKind::Adapted && parameter.shape.rank == 2 &&
                           parameter.name.find(std::string(tower->projector) + ".") != std::string::npos;
    if (projector) width = parameter.shape.dims[1];
  }
  const std::int64_t tokens = checked_mul(picture_tokens(model, t.image_size), checked_mul(t.images, t.rows()));
  const bool as_words = tower->projection == ProjectorKind::TwoLinears ||
                        tower->projection == ProjectorKind::Shuffled || tower->projection == ProjectorKind::Unfolded ||
                        tower->projection == ProjectorKind::Embedded;
  const DType own = as_words ? t.dtype : t.autocast.value_or(t.dtype);  // Brought to the embedding's dtype, or not.
  return storage(Elements(checked_mul(tokens, width)), t.outputs_to_fp32 ? DType::Float32 : own);
}

// What both towers return and make of it, and the logits. Norms give fp32 under autocast, and so what they divide.
Bytes held_contrasts(const ModelSpec& model, const Training& t) {
  const TowerParts& tower = *model.parts->tower;
  const std::int64_t rows = t.micro_batch;
  const DType normed = t.autocast ? DType::Float32 : t.dtype;
  const DType made = t.autocast.value_or(t.dtype);
  const auto projection = std::find_if(model.parameters.begin(), model.parameters.end(), [](const Parameter& one) {
    return one.name == "text_projection.weight" || one.name == "text_model.head.weight";
  });
  const Elements pair(checked_mul(2 * rows, projection->shape.dims[0]));
  const std::int64_t places = tower.dims.max_positions;
  return storage(Elements(checked_mul(rows, checked_mul(t.seq, model.dims.hidden))), normed) +
         storage(Elements(checked_mul(rows, checked_mul(places, tower.dims.hidden))), normed) + storage(pair, made) +
         storage(pair, normed) + storage(Elements(checked_mul(rows, rows)), made);
}

}  // namespace

Bytes held_logits(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  if (t.loop != LoopKind::Script) return Bytes(0);
  if (without_logits(t.loss)) return held_cache(model, t);
  if (t.loss != Loss::HuggingFace && t.loss != Loss::Native) return Bytes(0);
  if (contrasts(model)) return held_contrasts(model, t);
  const std::int64_t tp = job.parallelism.tp;
  const std::optional<Answers> answers = answers_of(model, t);
  if (!answers) return Bytes(0);
  const std::int64_t classes = answers->classes;
  const std::int64_t own = tp == 1 ? classes : round_up(Bytes(classes), tp * 128).value() / tp;
  // bart's bias of the logits is in the model's dtype whatever autocast computes in.
  const Translator* translator = translator_of(model.family);
  const bool biased = translator != nullptr && translator->biases_logits;
  const DType computed = biased ? t.dtype : t.autocast.value_or(t.dtype);
  // Brought to fp32 by the class itself.
  const bool wide = t.outputs_to_fp32 || model.family == "mamba2" || model.family == "nemotron_h";
  const Bytes logits = storage(Elements(checked_mul(answers->places, own)), wide ? DType::Float32 : computed);
  if (model.dims.decoder_layers == 0) {
    return logits + held_cache(model, t) + held_pictures(model, t);
  }
  // The encoder's last state as well, which under autocast is in its norm's fp32.
  return logits +
         storage(Elements(checked_mul(last_tokens(t), model.dims.hidden)), t.autocast ? DType::Float32 : t.dtype);
}

std::vector<Elements> kept_gradients(const ModelSpec& model, const Job& job) {
  const std::int64_t ranks = job.parallelism.dp;
  std::vector<CountedParameter> trained = count(model, job);
  std::erase_if(trained, [](const CountedParameter& p) { return !p.trained; });
  if (job.training.zero.round_robin_gradients) {
    std::vector<CountedParameter> order;
    for (std::int64_t first = 0; first < ranks; ++first) {
      for (std::size_t i = static_cast<std::size_t>(first); i < trained.size(); i += static_cast<std::size_t>(ranks)) {
        order.push_back(trained[i]);
      }
    }
    trained = std::move(order);
  }
  const std::int64_t part = round_up(Elements(sum_of(trained, true)), checked_mul(2, ranks)).value() / ranks;
  std::vector<Elements> kept(static_cast<std::size_t>(ranks));
  const bool sums = job.training.grad_accum_dtype != job.training.dtype;
  if (sums && job.training.deepspeed >= Version{0, 19, 8}) {  // They hold the partition and no more.
    std::fill(kept.begin(), kept.end(), Elements(part));
    return kept;
  }
  std::int64_t offset = 0;
  for (const CountedParameter& p : trained) {
    if (p.elements == 0) continue;
    for (std::int64_t r = offset / part; r <= (offset + p.elements - 1) / part; ++r) {
      kept[static_cast<std::size_t>(r)] += Elements(p.elements);
    }
    offset += p.elements;
  }
  return kept;
}

bool footprints_differ(const Training& training) {
  return is_fsdp(training.runtime) || (training.runtime == Runtime::PyTorch && training.ddp.zero_redundancy);
}

namespace {

// data_types.keep_in_fp32_modules is "auto": what transformers 5 lists for routers.
bool kept_in_fp32(const ModelBuffer& buffer, const Training& training) {
  return training.runtime == Runtime::DeepSpeed && training.deepspeed >= Version{0, 19, 8} &&
         training.transformers >= Version{5, 0, 0} && buffer.name.ends_with("gate.e_score_correction_bias");
}

}  // namespace

DType held_dtype(const ModelSpec& model, const ModelBuffer& buffer, const Training& training) {
  if (kept_in_fp32(buffer, training)) return DType::Float32;
  if (training.fsdp.casts_buffers && is_floating(buffer.dtype) && !is_packing_state(model, buffer)) {
    return training.dtype;  // With the first forward.
  }
  const bool kept = is_fsdp(training.runtime) && !training.fsdp.widens_shards;
  const bool cast = training.cast_model && is_floating(buffer.dtype);
  const DType type =
      buffer.follows_model_dtype || cast ? (kept ? training.master_dtype : training.dtype) : buffer.dtype;
  // zero.Init makes every floating-point tensor in the model's dtype, unless its maker converts integers.
  return training.under_zero_init() && type == DType::Float32 && !buffer.converted ? training.dtype : type;
}

namespace {

// LongRoPE's first forward puts another in the place of `inv_freq`: the constructor's copy, which is counted by its own
// name, or one in fp32 that each forward makes. DDP's list holds the first one all the same.
Bytes buffer_bytes(const ModelSpec& model, const ModelBuffer& buffer, const Job& job) {
  const Training& t = job.training;
  const Elements elements = shape_of(buffer, t).elements();
  const Bytes made = storage(elements, held_dtype(model, buffer, t));
  const bool frequencies = buffer.name.ends_with("inv_freq") && !buffer.name.ends_with("original_inv_freq");
  const RotaryParts* rotary = model.parts != nullptr ? &model.parts->rotary : nullptr;
  const bool chosen = frequencies && rotary != nullptr && rotary->scaling == RotaryScaling::LongRope;
  if (!chosen || !model.has_graph || t.transformers < Version{5, 0, 0}) return made;
  const Bytes first = t.runtime == Runtime::PyTorch && job.parallelism.dp > 1 ? made : Bytes(0);
  return t.seq > rotary->short_rows ? first + storage(elements, DType::Float32) : first;
}

}  // namespace

Footprint footprint(const ModelSpec& model, const Job& job, std::int64_t rank) {
  Footprint result;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to == kNone && is_trained(parameter, job.training)) {
      result.parameters_trainable += parameter.shape.elements();
    }
  }
  result.parameters_total = total_elements(model);
  const std::vector<CountedParameter> parameters = count(model, job);
  if (job.training.runtime == Runtime::DeepSpeed && job.training.optimizer.kind == OptimizerKind::Muon) {
    throw Refusal("--optimizer",
                  "Muon under DeepSpeed is not modelled yet: neither its states nor its step are Adam's");
  }
  if (is_fsdp(job.training.runtime)) {
    fsdp_footprint(model, job, rank, result);
  } else if (job.training.runtime == Runtime::PyTorch) {
    plain(job, parameters, rank, result);
  } else if (job.training.zero.stage == 0 && job.training.grad_accum_dtype == job.training.dtype) {
    stage0(job, parameters, result);  // Else, before 0.17.6, BF16_Optimizer.
  } else if (job.training.zero.stage < 3) {
    stage12(job, parameters, result);
  } else {
    stage3(job, parameters, result);
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (!buffer_exists(buffer, job.training.transformers)) continue;
    result.persistent[Role::ModuleBuffers] += buffer_bytes(model, buffer, job);
  }
  if (job.training.runtime == Runtime::DeepSpeed) add_scalars(job, result);
  add_workspaces(model, job, result);
  result.batch_known = add_batch(model, job.training, result);
  if (result.batch_known && holds_loss(job.training.loop)) {
    result.persistent[Role::Inputs] += loss_bytes(model, job.training);
    result.persistent[Role::Activations] += held_logits(model, job);
  }
  const bool counts = counts_tokens(job.training);
  if (counts && job.parallelism.dp == 1) result.persistent[Role::Inputs] += Bytes(4);  // What the loss is divided by.
  if (job.training.loop == LoopKind::Torchtitan) {
    if (counts) result.persistent[Role::Inputs] += Bytes(8);  // The same before it is brought together.
    result.persistent[Role::Temporaries] += Bytes(1);         // Of a barrier.
  }
  result.states.parameters = result.persistent[Role::Parameters];
  result.states.optimizer = result.persistent[Role::Optimizer];
  return result;
}

}  // namespace dsplan
