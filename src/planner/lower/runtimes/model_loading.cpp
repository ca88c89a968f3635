#include "planner/lower/runtimes/model_loading.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "model/quantized.h"
#include "planner/lower/rotary_frequencies.h"
#include "planner/lower/runtimes/loading/constructed_weights.h"
#include "planner/lower/runtimes/weight_packing.h"

namespace dsplan {
namespace {

// Packed weights, which are cast by nobody.
bool of_whole_numbers(DType type) { return type == DType::UInt8 || type == DType::Int8; }

constexpr Source kDora = "peft: tuners/lora/dora.py, update_layer";

bool is_copy(const Parameter& parameter) { return parameter.name.find(".modules_to_save.") != std::string::npos; }

// Parts between dots, numbers by their value (core_model_loading.py, dot_natural_key).
bool before(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  while (!a.empty() && !b.empty()) {
    const std::string_view left = a.substr(0, a.find('.'));
    const std::string_view right = b.substr(0, b.find('.'));
    a.remove_prefix(std::min(left.size() + 1, a.size()));
    b.remove_prefix(std::min(right.size() + 1, b.size()));
    if (left == right) continue;
    if (number(left) && number(right) && left.size() != right.size()) return left.size() < right.size();
    return left < right;
  }
  return a.empty() && !b.empty();
}

// Weights of a checkpoint, in the order in which from_pretrained brings them.
std::vector<ParameterId> in_loading_order(const ModelSpec& model) {
  std::vector<ParameterId> order;
  for (std::size_t id = 0; id < model.parameters.size(); ++id) {
    const Parameter& parameter = model.parameters[id];
    if (!is_adapter(parameter) && parameter.tied_to == kNone) order.push_back(static_cast<ParameterId>(id));
  }
  std::sort(order.begin(), order.end(), [&](ParameterId a, ParameterId b) {
    return before(model.parameter_at(a).name, model.parameter_at(b).name);
  });
  return order;
}

// As its constructor makes it.
NamedParameter as_made(const Training& training, const Parameter& parameter, ParameterId id) {
  return {id, parameter.shape.elements().value(), true, training.made_dtype(parameter)};
}

}  // namespace

bool is_adapter(const Parameter& parameter) {
  return parameter.name.find(".lora_") != std::string::npos || is_copy(parameter);
}

ModelLoading::ModelLoading(Emitter& emitter, const Job& job, const std::vector<NamedParameter>& named,
                           std::size_t parameters)
    : eager_(emitter),
      training_(job.training),
      named_(named),
      parameters_(parameters),
      ranks_(job.parallelism.dp),
      world_(job.parallelism.world) {
  if (job.hardware && training_.level == Level::Kernel) device_ = device_threads(*job.hardware);
}

void ModelLoading::build_on_host(MovedWalk moves) {
  moves_ = std::move(moves);
  on_host_.resize(parameters_);
  for (const NamedParameter& p : named_) {
    on_host_[static_cast<std::size_t>(p.id)] = make(p, {Role::Parameters, "parameter on the host"}, Space::Pageable);
  }
}

MovedWalk moves_with_buffers(const ModelSpec& model, const std::vector<NamedParameter>& named,
                             const BuffersOf& buffers_of) {
  return [&model, &named, buffers_of](const std::function<void(const NamedParameter&)>& act) {
    std::vector<std::vector<const NamedParameter*>> own(model.modules.size());
    for (const NamedParameter& p : named) own[at(model.parameter_at(p.id).module)].push_back(&p);
    children_first(model, [&](ModuleId module) {
      for (const NamedParameter* p : own[at(module)]) act(*p);
      buffers_of(module);
    });
  };
}

void ModelLoading::each_moved(const std::function<void(const NamedParameter&)>& act) {
  if (moves_) return std::exchange(moves_, nullptr)(act);
  for (const NamedParameter& p : named_) act(p);
}

Variable ModelLoading::make(const NamedParameter& p, What what, Space space) {
  Variable made = eager_.empty(storage(Elements(p.elements), p.dtype), p.dtype, what, p.id, space);
  eager_.work().write(made).run(Body::LoadParameter, "load parameter");
  return made;
}

void ModelLoading::build_packed(const ModelSpec& model, const BuffersOf& buffers_of) {
  on_device_.resize(parameters_);
  const auto packed = [&](const Parameter& parameter) {
    const Module& module = model.module_at(parameter.module);
    return parameter.shape.rank == 2 && packing_of(module).has_value();
  };
  const DType loaded = packing_of(model)->loaded;
  const std::vector<ParameterId> order = in_loading_order(model);
  WeightPacking packing(eager_.emitter(), model, world_, device_, buffers_of);
  packing.warm_up(order);
  for (const ParameterId id : order) {
    const Parameter& parameter = model.parameter_at(id);
    if (packed(parameter)) {
      on_device_[static_cast<std::size_t>(id)] = packing.pack(id, [&] {
        return make(as_made(training_, parameter, id), {Role::Parameters, "parameter"});
      });
    } else {
      const NamedParameter p{id, parameter.shape.elements().value(), true, loaded};
      on_device_[static_cast<std::size_t>(id)] = make(p, {Role::Parameters, "parameter"});
    }
  }
  for (std::size_t module = 0; module < model.modules.size(); ++module) {
    if (!packing_of(model.modules[module])) buffers_of(static_cast<ModuleId>(module));
  }
  prepare(model);
  make_adapters(model, DType::Float32, packing_of(model)->others());
}

void ModelLoading::build_stored(const ModelSpec& model, const BuffersOf& buffers_of) {
  on_device_.resize(parameters_);
  const DType stored = model.stored_dtype.value_or(DType::Float32);
  const std::vector<ParameterId> order = in_loading_order(model);
  Bytes all;
  for (const ParameterId id : order) all += storage(model.parameter_at(id).shape.elements(), stored);
  make_room(eager_, all);
  for (const ParameterId id : order) {
    const NamedParameter p{id, model.parameter_at(id).shape.elements().value(), true, stored};
    on_device_[at(id)] = make(p, {Role::Parameters, "parameter"});
  }
  for (std::size_t module = 0; module < model.modules.size(); ++module) buffers_of(static_cast<ModuleId>(module));
  const bool adapted = std::any_of(model.parameters.begin(), model.parameters.end(), is_adapter);
  for (std::size_t id = 0; id < parameters_ && !adapted; ++id) cast(static_cast<ParameterId>(id), DType::Float32);
  make_adapters(model, stored, stored, true);
}

// peft's prepare_model_for_kbit_training: one after the other is cast, then the cache is emptied. A bias takes the
// dtype of its products in the first forward, which is taken for now, unless DeepSpeed casts it before.
void ModelLoading::prepare(const ModelSpec& model) {
  const DType beside = packing_of(model)->others();
  const bool engine = training_.runtime == Runtime::DeepSpeed;
  for (std::size_t at = 0; at < parameters_; ++at) {
    const Parameter& parameter = model.parameters[at];
    const bool bias = engine && parameter.name.ends_with(".bias");
    cast(static_cast<ParameterId>(at), bias ? beside : parameter.dtype.value_or(beside));
  }
  if (packing_of(model)->prepared) eager_.emitter().empty_cache();
}

LateBuffers late_buffers(const ModelSpec& model) {
  LateBuffers late;
  if (model.recording) return late;
  for (const ModelBuffer& buffer : model.buffers) {
    const bool of_body = model.module_at(buffer.module).type.ends_with("Model");
    if (buffer.module != 0 && (buffer.dtype != DType::Bool || !of_body)) continue;
    late.of = buffer.module;
    if (buffer.dtype == DType::Bool) late.triangle = storage(buffer.shape.elements(), DType::Bool);
  }
  const ModuleId inside = late.of == 0 ? 1 : late.of;
  auto at = static_cast<std::size_t>(inside);
  while (late.of != kNone && at < model.modules.size() && model.lies_in(static_cast<ModuleId>(at), inside)) ++at;
  if (late.of != kNone && at < model.modules.size()) late.with = static_cast<ModuleId>(at);
  return late;
}

void make_late(Eager& eager, Bytes triangle, const std::function<void()>& buffers) {
  constexpr What kOnes{Role::Temporaries, "ones of a triangle", "torch.tril"};
  if (triangle == Bytes(0)) return buffers();
  {
    const Variable ones = eager.scratch(triangle, DType::Bool, kOnes);
    buffers();
  }
  const Variable ones = eager.scratch(triangle, DType::Bool, kOnes);
  const Variable below = eager.scratch(triangle, DType::Bool, kOnes);
}

// Whose table says who sees whom (modeling_gpt_neo.py).
constexpr std::string_view kSeeing = "GPTNeoSelfAttention";

namespace {

// Before which module those of `module` are made: constructors register buffers behind the modules inside, roberta's
// embeddings before their table of positions (modeling_bert.py, modeling_roberta.py: nn.Buffer), gpt_neo's attention
// before its projections.
std::size_t with_buffers(const ModelSpec& model, std::size_t module) {
  std::size_t at = module + 1;
  if (model.modules[module].type == kSeeing) return at;
  bool normed = false;
  for (; at < model.modules.size() && model.lies_in(static_cast<ModuleId>(at), static_cast<ModuleId>(module)); ++at) {
    normed = normed || model.modules[at].path.ends_with("embeddings.LayerNorm");
    if (normed && model.modules[at].path.ends_with("embeddings.position_embeddings")) return at;
  }
  return at;
}

// Whose buffers come before which module.
using Waiting = std::multimap<std::size_t, ModuleId>;

void make_waiting(Waiting& waiting, std::size_t module, const std::function<void(ModuleId)>& make) {
  for (; !waiting.empty() && waiting.begin()->first <= module; waiting.erase(waiting.begin())) {
    make(waiting.begin()->second);
  }
}

enum class Computed : std::uint8_t { Nothing, Frequencies, Flags, Places, Sines, Waves, Halves, Rescaled };

const ModelBuffer* buffer_of(const ModelSpec& model, ModuleId module) {
  for (const ModelBuffer& buffer : model.buffers) {
    if (buffer.module == module) return &buffer;
  }
  return nullptr;
}

Computed computed_by(const ModelSpec& model, ModuleId id) {
  const Module& module = model.module_at(id);
  const ModelBuffer* buffer = buffer_of(model, id);
  if (buffer != nullptr && !model.recording) {
    if (module.type.ends_with("RotaryEmbedding") && buffer->shape.rank == 1) return Computed::Frequencies;
    if (module.type == kSeeing) return Computed::Flags;
    if (buffer->name.ends_with("position_ids")) return Computed::Places;
  }
  const bool mixes = model.parts != nullptr && model.parts->mamba.rescales;
  if (mixes && module.path.ends_with("." + std::string(model.parts->mamba.module)) &&
      model.parameter(id, "A_log") != kNone) {
    return Computed::Rescaled;
  }
  const bool of_whisper = module.parent != kNone && module.path.ends_with("embed_positions") &&
                          model.module_at(module.parent).type == "WhisperEncoder";
  if (!of_whisper && !module.type.ends_with("SinusoidalPositionalEmbedding")) return Computed::Nothing;
  return buffer != nullptr ? Computed::Sines : of_whisper ? Computed::Waves : Computed::Halves;
}

// Positions as sines and cosines, the frequencies of rotary ones, and who sees whom, which transformers computes on the
// device: where the module is made, as a buffer, and when the stack around it has been made (modeling_utils.py,
// post_init; each model's _init_weights).
class Tables {
 public:
  Tables(Emitter& emitter, const ModelSpec& model, const Training& training, DType kept)
      : eager_(emitter), model_(model), kept_(kept), again_(training.transformers >= Version{5, 0, 0}) {}

  // A buffer's table is computed around `make`, which makes what is kept of it.
  void construct(ModuleId module, const BuffersOf& make) {
    const Computed kind = computed_by(model_, module);
    if (again_ && kind == Computed::Frequencies) {
      frequencies(module, &make);
    } else if (kind == Computed::Flags) {
      triangle(module, [&] { make(module); });
    } else if (kind == Computed::Sines) {
      counted(module, [&] { make(module); });
    } else {
      make(module);
    }
    if (again_ && kind != Computed::Nothing) waiting_.push_back(module);
  }
  // `next` is about to be made: stacks that it does not lie in are there.
  void leave(ModuleId next) {
    std::erase_if(waiting_, [&](ModuleId table) {
      const ModuleId stack = stack_of(table);
      if (next != kNone && model_.lies_in(next, stack)) return false;
      initialize(table);
      return true;
    });
  }

 private:
  [[nodiscard]] const Module& at(ModuleId module) const { return model_.module_at(module); }
  [[nodiscard]] ModuleId stack_of(ModuleId table) const {
    ModuleId around = at(table).parent;
    const Computed kind = computed_by(model_, table);
    const bool inside = kind == Computed::Flags || kind == Computed::Rescaled;
    while (inside && around > 0 && !at(around).type.ends_with("Model")) around = at(around).parent;
    return around;
  }
  [[nodiscard]] Shape shape(ModuleId module) const {
    if (const ModelBuffer* found = buffer_of(model_, module)) return found->shape;
    for (const Parameter& parameter : model_.parameters) {
      if (parameter.module == module) return parameter.shape;
    }
    return {};
  }
  // One operator: it reads these, and makes another.
  [[nodiscard]] Variable made(std::int64_t elements, DType type, std::initializer_list<const Variable*> from = {}) {
    constexpr const char* kTable = "table of positions";
    Variable made = eager_.scratch(storage(Elements(elements), type), type, {Role::Temporaries, kTable});
    Work work = eager_.work();
    for (const Variable* one : from) work.read(one->id());
    work.write(made.id()).run(Body::Nothing, kTable);
    return made;
  }

  void initialize(ModuleId module) {
    switch (computed_by(model_, module)) {
      case Computed::Frequencies: return frequencies(module, nullptr);
      case Computed::Flags: return triangle(module, {});
      case Computed::Places: return (void)made(shape(module).elements().value(), DType::Int64);
      case Computed::Sines: return counted(module, {});
      case Computed::Waves: return waves(module);
      case Computed::Halves: return halves(module);
      case Computed::Rescaled: return rescaled(module);
      case Computed::Nothing: return;
    }
  }

  // p / sqrt(layers), which is copied into the weight (NemotronHPreTrainedModel._init_weights).
  void rescaled(ModuleId mixer) {
    const ParameterId weight = model_.parameter(model_.child(mixer, "out_proj"), "weight");
    (void)made(model_.parameter_at(weight).shape.elements().value(), kept_);
  }

  // Of each kind of layers that has its own, what they are computed to, and a clone. Without `make`, copied into what
  // is there.
  void frequencies(ModuleId module, const BuffersOf* make) {
    Variable last;
    for (const ModelBuffer& buffer : model_.buffers) {
      if (buffer.module != module) continue;
      const auto keep = [&] { (*make)(module, buffer.name); };
      if (buffer.name.ends_with("original_inv_freq")) {
        if (make != nullptr) keep();
      } else if (make != nullptr) {
        (void)RotaryFrequencies(eager_.emitter(), model_.parts.get()).of(buffer, keep);
      } else {
        last = RotaryFrequencies(eager_.emitter(), model_.parts.get()).of(buffer, {});
      }
    }
  }
  // A triangle of ones; with a window it is joined with what lies below that, by an exclusive or.
  void triangle(ModuleId module, const std::function<void()>& keep) {
    const ModelBuffer& table = *buffer_of(model_, module);
    const std::int64_t elements = table.shape.elements().value();
    const auto last = [&](const Variable& from) {
      if (keep) return keep(), Variable();
      return made(elements, DType::Bool, {&from});
    };
    Variable ones = made(elements, DType::Bool);
    if (table.window == 0) {
      const Variable below = last(ones);
      ones.reset();
      return;
    }
    Variable below = made(elements, DType::Bool, {&ones});
    ones.reset();
    Variable older = made(elements, DType::Bool, {&below});
    const Variable joined = last(older);
    older.reset();
    below.reset();
  }
  // modeling_m2m_100.py, get_embedding: in fp32, then in the default dtype. `keep` makes the buffer of it; without, it
  // is copied into the one that is there.
  void counted(ModuleId module, const std::function<void()>& keep) {
    const std::int64_t rows = shape(module).dims[0];
    const std::int64_t half = shape(module).dims[1] / 2;
    Variable counts = made(half, DType::Int64);
    Variable angles = made(half, DType::Float32, {&counts});
    counts.reset();
    angles = made(half, DType::Float32, {&angles});
    angles = made(half, DType::Float32, {&angles});
    counts = made(rows, DType::Int64);
    Variable places = made(rows, DType::Float32, {&counts});
    counts.reset();
    Variable products = made(rows * half, DType::Float32, {&places, &angles});
    places.reset();
    angles.reset();
    Variable sines = made(rows * half, DType::Float32, {&products});
    Variable cosines = made(rows * half, DType::Float32, {&products});
    Variable table;
    Variable copied;
    const bool wide = kept_ == DType::Float32;
    if (!wide || !keep) table = made(2 * rows * half, DType::Float32, {&sines, &cosines});
    if (wide && keep) keep();
    cosines.reset();
    sines.reset();
    products.reset();
    if (wide) return;
    if (keep) return keep();
    copied = made(2 * rows * half, kept_, {&table});
  }

  // modeling_whisper.py, sinusoids: all of it in the default dtype.
  void waves(ModuleId module) {
    const std::int64_t rows = shape(module).dims[0];
    const std::int64_t half = shape(module).dims[1] / 2;
    Variable counts = made(half, DType::Int64);
    Variable angles = made(half, kept_, {&counts});
    counts.reset();
    angles = made(half, kept_, {&angles});
    counts = made(rows, DType::Int64);
    Variable products = made(rows * half, kept_, {&counts, &angles});
    counts.reset();
    Variable sines = made(rows * half, kept_, {&products});
    Variable cosines = made(rows * half, kept_, {&products});
    const Variable table = made(2 * rows * half, kept_, {&sines, &cosines});
    cosines.reset();
    sines.reset();
    angles.reset();
    products.reset();
  }

  // modeling_pegasus.py, create_weight: made on the host and copied, half of the columns at once, which do not lie
  // together.
  void halves(ModuleId module) {
    const std::int64_t elements = shape(module).elements().value();
    const Variable table = made(elements, kept_);
    made(elements / 2, kept_).reset();
    made(elements / 2, kept_).reset();
  }

  Eager eager_;
  const ModelSpec& model_;
  DType kept_;
  bool again_;                     // Before transformers 5 their values were made with them.
  std::vector<ModuleId> waiting_;  // Tables of stacks that are not whole.
};

}  // namespace

void ModelLoading::build_on_device(const ModelSpec& model, const BuffersOf& buffers_of,
                                   const std::function<void()>& before_product) {
  before_product_ = before_product;
  if (packing_of(model)) return build_packed(model, buffers_of);
  if (training_.loop == LoopKind::FactoryV1) return build_stored(model, buffers_of);
  on_device_.resize(parameters_);
  const auto make_one = [&](ParameterId id, What what) {
    return make(as_made(training_, model.parameter_at(id), id), what);
  };
  ConstructedWeights weights(model, training_.transformers, on_device_, make_one);
  const LateBuffers late = late_buffers(model);
  Waiting waiting;
  Tables tables(eager_.emitter(), model, training_, as_made(training_, model.parameters.front(), 0).dtype);
  for (std::size_t next = 0; next <= model.modules.size(); ++next) {
    const auto module = next == model.modules.size() ? ModuleId(kNone) : static_cast<ModuleId>(next);
    make_waiting(waiting, next, [&](ModuleId due) { tables.construct(due, buffers_of); });
    weights.construct_waiting(next);
    tables.leave(module);
    if (module == kNone) weights.construct_root();
    weights.tie_outside(module);
    if (module == kNone) break;
    if (late.with == module) make_late(eager_, late.triangle, [&] { buffers_of(late.of); });
    weights.construct_own(next);
    if (late.with != kNone && late.of == module) continue;
    const std::size_t due = with_buffers(model, next);
    waiting.emplace_hint(waiting.lower_bound(due), due, module);  // Of the inner module first.
  }
  const DType beside = is_fsdp(training_.runtime) ? training_.master_dtype : training_.dtype;
  make_adapters(model, beside, beside, true);
}

namespace {

// peft's dora.py, update_layer: how long the rows are of a weight with the product of its factors, times their scale.
// In fp16 the product is taken in fp32. `make` makes the parameter.
Variable magnitudes(Eager eager, Elements weight, DType type, std::span<const Variable> factors,
                    const std::function<void()>& before_product, const std::function<Variable()>& make) {
  const auto whole = [&](DType of, std::initializer_list<const Variable*> from) {
    Variable made = eager.scratch(storage(weight, of), of, {Role::Temporaries, "weight with its factors", kDora});
    Work work = eager.work();
    for (const Variable* one : from) work.read(one->id());
    work.write(made.id()).run(Body::Nothing, "magnitudes");
    return made;
  };
  const bool half = type == DType::Float16;
  Variable second;
  Variable first;  // It goes before the other.
  if (half) {
    constexpr What kWide{Role::Temporaries, "factor in fp32", kDora};
    first = eager.cast(factors[0], DType::Float32, kWide, "magnitudes");
    second = eager.cast(factors[1], DType::Float32, kWide, "magnitudes");
  }
  Variable product = whole(half ? DType::Float32 : type, {half ? &first : &factors[0], half ? &second : &factors[1]});
  if (before_product) before_product();
  if (half) product = whole(type, {&product});
  Variable scaled = whole(type, {&product});
  const Variable sum = whole(type, {&scaled});
  scaled.reset();
  Variable made = make();
  product.reset();
  return made;
}

bool is_widened(const Parameter& parameter) { return !is_copy(parameter) && !parameter.kept_as_made; }

}  // namespace

// In the dtype of the weights beside them, of the products where those have 4 bits, or fp32 where they have 8; copies
// that are trained last. Cast when all are there, one after the other (peft: tuners_utils.py, inject_adapter,
// _get_base_layer_device_and_dtype, _move_adapter_to_device_of_base_layer, cast_adapter_dtype).
void ModelLoading::make_adapters(const ModelSpec& model, DType beside, DType beside_copies, bool reads_weights) {
  const auto each = [&](const auto& act) {
    for (std::size_t at = 0; at < parameters_; ++at) {
      if (is_adapter(model.parameters[at])) act(model.parameters[at], static_cast<ParameterId>(at));
    }
  };
  const std::optional<Quantization> packing = packing_of(model);
  const DType made = packing && !packing->eight_bits() ? packing->compute : beside;
  for (const bool copies : {false, true}) {
    each([&](const Parameter& parameter, ParameterId id) {
      if (is_copy(parameter) != copies) return;
      const NamedParameter p{id, parameter.shape.elements().value(), true, copies ? beside_copies : made};
      const auto plain = [&] { return make(p, {Role::Parameters, "parameter"}); };
      Variable& held = on_device_[at(id)];
      if (!reads_weights || parameter.name.find(".lora_magnitude_vector.") == std::string::npos) {
        held = plain();
      } else {  // Right behind its two factors.
        const Parameter* factors = &parameter - 2;
        const Elements weight(factors[0].shape.dims[1] * factors[1].shape.dims[0]);
        held =
            magnitudes(eager_, weight, p.dtype, std::span(on_device_).subspan(at(id) - 2, 2), before_product_, plain);
      }
    });
  }
  if (packing) {  // Before a program casts them to what it trains in.
    each([&](const Parameter& parameter, ParameterId id) {
      if (is_widened(parameter)) cast(id, DType::Float32);
    });
  }
  each([&](const Parameter& parameter, ParameterId id) {
    cast(id, parameter.dtype.value_or(is_copy(parameter) ? beside_copies : beside));
  });
}

void ModelLoading::cast(ParameterId id, DType to) {
  Variable& held = on_device_[static_cast<std::size_t>(id)];
  if (!held || eager_.emitter().dtype(held.id()) == to) return;
  held = eager_.cast(held, to, {Role::Parameters, "parameter"}, "cast parameter", id);
}

namespace {

void print_model_given(const Training& training, Emitter& emitter) {
  if (training.runtime != Runtime::DeepSpeed) return;
  emitter.print("DeepSpeed Engine: After args sanity test");
  emitter.print("DeepSpeed Engine: Before configure distributed model");
}

}  // namespace

void ModelLoading::build_adapters(const ModelSpec& model) {
  if (std::none_of(model.parameters.begin(), model.parameters.end(), is_adapter)) return;
  on_device_.resize(parameters_);
  make_adapters(model, training_.dtype, training_.dtype);
}

std::vector<std::pair<NamedParameter, BufferId>> ModelLoading::give_adapters_to_engine(What what) {
  std::vector<std::pair<NamedParameter, BufferId>> whole;
  print_model_given(training_, eager_.emitter());
  for (const NamedParameter& p : named_) {
    if (on_device_.empty() || !on_device_[static_cast<std::size_t>(p.id)]) continue;
    cast(p.id, p.dtype);  // By releases before 0.19.2.
    whole.emplace_back(p, load(p, what).hand_over());
    broadcast(whole.back().second, p.dtype);
  }
  eager_.emitter().print("DeepSpeed Engine: After configure distributed model");
  return whole;
}

std::vector<BufferId> ModelLoading::give_to_engine(What what) {
  std::vector<BufferId> whole(parameters_, kNoBuffer);
  print_model_given(training_, eager_.emitter());
  for (std::size_t id = 0; id < on_device_.size(); ++id) {  // _cast_module_mixed_precision
    const bool packed = on_device_[id] && of_whole_numbers(eager_.emitter().dtype(on_device_[id].id()));
    if (!packed) cast(static_cast<ParameterId>(id), training_.dtype);
  }
  // Where it is on the host: self.module.to(self.device).
  each_moved([&](const NamedParameter& p) { whole[at(p.id)] = load(p, what).hand_over(); });
  for (const NamedParameter& p : named_) {
    broadcast(whole[static_cast<std::size_t>(p.id)], of_whole_numbers(p.dtype) ? p.dtype : training_.dtype);
  }
  if (training_.runtime == Runtime::DeepSpeed) {
    eager_.emitter().print("DeepSpeed Engine: After configure distributed model");
  }
  return whole;
}

Variable ModelLoading::load(const NamedParameter& p, What what) {
  if (!on_host_.empty() && on_host_[static_cast<std::size_t>(p.id)]) {
    const BufferId source = on_host_[static_cast<std::size_t>(p.id)].hand_over();
    return {eager_.emitter(), move_to_device(eager_.emitter(), source, what, p.id)};
  }
  if (!on_device_.empty()) {
    Variable made = std::move(on_device_[static_cast<std::size_t>(p.id)]);
    eager_.emitter().rename(made.id(), what);
    return made;
  }
  return make(p, what);
}

void ModelLoading::broadcast(BufferId buffer, DType type) {
  if (ranks_ == 1) return;
  const bool as_bytes = training_.runtime == Runtime::DeepSpeed && training_.deepspeed >= Version{0, 19, 8};
  eager_.work().read(buffer).write(buffer).collective(Collective::Broadcast, as_bytes ? DType::UInt8 : type,
                                                      eager_.emitter().size(buffer));
}

}  // namespace dsplan
