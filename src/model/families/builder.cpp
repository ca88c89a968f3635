#include "model/families/builder.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/families.h"

namespace dsplan {
namespace {

struct Rule {
  Split split;
  std::uint8_t dim;
};

// `transposed`: the weight is stored [in, out].
Rule weight_rule(Cut cut, bool transposed) {
  const std::uint8_t out = transposed ? 1 : 0;
  const std::uint8_t in = transposed ? 0 : 1;
  switch (cut) {
    case Cut::Whole: return {Split::Replicated, 0};
    case Cut::Column: return {Split::Even, out};
    case Cut::Row: return {Split::Even, in};
    case Cut::KeyValue: return {Split::KeyValue, out};
    case Cut::QueryKeyValue: return {Split::QueryKeyValue, out};
    case Cut::Vocabulary: return {Split::Vocabulary, out};
    case Cut::Unknown: break;
  }
  return {Split::Unknown, 0};
}

// A bias follows the outputs; behind a row-parallel weight every rank holds all outputs.
Rule bias_rule(Cut cut) {
  if (cut == Cut::Row) return {Split::Replicated, 0};
  return {weight_rule(cut, false).split, 0};
}

// nullptr: sizes have been checked.
void check_tensors(const ConfigReader* config, std::int64_t count) {
  if (config != nullptr) config->check_tensors(count);
}

// The module that `a.b` names below `from`.
ModuleId descendant(const ModelSpec& model, ModuleId from, std::string_view dotted) {
  while (true) {
    const std::size_t dot = dotted.find('.');
    const ModuleId next = model.child(from, dotted.substr(0, dot));
    DSPLAN_CHECK(next != kNone, formatted("a forward calls {} of {}", dotted, model.module_at(from).path));
    if (dot == std::string_view::npos) return next;
    from = next;
    dotted.remove_prefix(dot + 1);
  }
}

}  // namespace

ModelBuilder::ModelBuilder(const ConfigReader& config, std::string_view root_type) : config_(&config) {
  spec_.modules.push_back({"", std::string(root_type), kNone, kNone});
  spec_.graph_class = root_type;
}

ModelBuilder::ModelBuilder(const ModelSpec& model, std::string_view root_type) {
  spec_.name = model.name;
  spec_.family = model.family;
  spec_.source = model.source;
  spec_.dims = model.dims;
  spec_.parts = model.parts;
  spec_.stored_dtype = model.stored_dtype;
  spec_.modules.push_back({"", std::string(root_type), kNone, kNone});
  spec_.graph_class = root_type;
}

std::string ModelBuilder::path_of(std::string_view leaf) const {
  const std::string& parent = spec_.module_at(current_).path;
  std::string path;
  path.reserve(parent.size() + 1 + leaf.size());
  if (!parent.empty()) path.append(parent).push_back('.');
  path.append(leaf);
  return path;
}

ModuleId ModelBuilder::open(std::string_view name, std::string_view type) {
  const auto id = static_cast<ModuleId>(spec_.modules.size());
  const std::int32_t layer = spec_.module_at(current_).layer;
  spec_.modules.push_back({path_of(name), std::string(type), current_, layer});
  current_ = id;
  return id;
}

// What the first layer took says how much all of them will take, so that too many are refused before they are built.
void ModelBuilder::expect_more_layers() {
  const auto layers = static_cast<std::size_t>(config_ != nullptr ? config_->layers() : spec_.dims.layers);
  const std::size_t tensors = spec_.parameters.size() - before_layers_;
  check_tensors(config_, static_cast<std::int64_t>(spec_.parameters.size() + tensors * (layers - 1)));
  const std::size_t modules = spec_.modules.size() - static_cast<std::size_t>(layers_.back().module);
  constexpr std::size_t kAround = 16;  // Embeddings, norms, head.
  spec_.parameters.reserve(before_layers_ + tensors * layers + kAround);
  spec_.modules.reserve(spec_.modules.size() + modules * (layers - 1) + kAround);
  spec_.calls.reserve(2 * spec_.modules.capacity());
}

void ModelBuilder::close() {
  if (!layers_.empty() && layers_.back().module == current_) {
    layers_.back().end = static_cast<ModuleId>(spec_.modules.size());
  }
  current_ = spec_.module_at(current_).parent;
}

ModelBuilder::Scope ModelBuilder::module(std::string_view name, std::string_view type) {
  return {*this, open(name, type)};
}

ModelBuilder::Scope ModelBuilder::layer(std::int64_t index, std::string_view type, std::string_view forward) {
  const ModuleId list = current_;
  if (layers_.empty()) before_layers_ = spec_.parameters.size();
  if (layers_.size() == 1) expect_more_layers();  // Here and not in close(), which a destructor calls.
  const ModuleId id = open(std::to_string(index), type);
  spec_.modules.back().layer = static_cast<std::int32_t>(layers_.size());
  layers_.push_back({id, list, id, forward});
  return {*this, id};
}

void ModelBuilder::leaf(std::string_view name, std::string_view type) {
  open(name, type);
  close();
}

ParameterId ModelBuilder::parameter(std::string_view leaf, const Shape& shape, Split split, std::uint8_t split_dim) {
  const auto id = static_cast<ParameterId>(spec_.parameters.size());
  check_tensors(config_, id + 1);
  std::int64_t elements = 1;
  bool wraps = false;
  for (std::uint8_t i = 0; i < shape.rank; ++i) wraps |= __builtin_mul_overflow(elements, shape.dims[i], &elements);
  wraps |= __builtin_add_overflow(elements_, elements, &elements_);
  if (wraps) {
    DSPLAN_CHECK(config_ != nullptr, path_of(leaf));
    config_->refuse_largest(
        formatted("the model has 2^63 parameters or more: overflow at {} of shape {}", path_of(leaf), shape.text()));
  }
  spec_.parameters.push_back({path_of(leaf), shape, current_, kNone, true, split, split_dim});
  return id;
}

void ModelBuilder::buffer(std::string_view leaf, const Shape& shape, DType dtype, bool follows_model_dtype,
                          bool converted) {
  spec_.buffers.push_back({path_of(leaf), shape, dtype, current_, follows_model_dtype, false, converted});
}

ParameterId ModelBuilder::linear(std::string_view name, std::int64_t out, std::int64_t in, bool bias, Cut cut,
                                 std::string_view type) {
  const Scope scope = module(name, type);
  const Rule rule = weight_rule(cut, false);
  const ParameterId weight = parameter("weight", {out, in}, rule.split, rule.dim);
  if (bias) parameter("bias", {out}, bias_rule(cut).split);
  return weight;
}

void ModelBuilder::conv1d(std::string_view name, std::int64_t out, std::int64_t in, Cut cut) {
  const Scope scope = module(name, "Conv1D");
  const Rule rule = weight_rule(cut, true);
  parameter("weight", {in, out}, rule.split, rule.dim);
  parameter("bias", {out}, bias_rule(cut).split);
}

ParameterId ModelBuilder::embedding(std::string_view name, std::int64_t rows, std::int64_t width, Split split,
                                    std::string_view type) {
  const Scope scope = module(name, type);
  return parameter("weight", {rows, width}, split);
}

void ModelBuilder::rms_norm(std::string_view name, std::int64_t size, std::string_view type) {
  const Scope scope = module(name, type);
  parameter("weight", {size}, Split::Replicated);
}

void ModelBuilder::layer_norm(std::string_view name, std::int64_t size, bool affine) {
  const Scope scope = module(name, "LayerNorm");
  if (!affine) return;
  parameter("weight", {size}, Split::Replicated);
  parameter("bias", {size}, Split::Replicated);
}

void ModelBuilder::activation(std::string_view name, std::string_view function) {
  const Scope scope = module(name, activation_class(function));
  if (function != "xielu") return;
  for (const std::string_view leaf : {"alpha_p", "alpha_n"}) parameter(leaf, {1}, Split::Replicated);
  for (const std::string_view leaf : {"beta", "eps"}) buffer(leaf, Shape(), DType::Float32, true);
}

namespace {

// Whether rotary frequencies are scaled (any "rope_type" but the default), of one kind of layers if there are several.
bool scales_rotary(const Value& config, std::string_view kind) {
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = config.find(holder);
    if (rope == nullptr || !rope->is(Value::Kind::Object)) continue;
    const Value* of_kind = kind.empty() ? nullptr : rope->find(kind);
    if (of_kind != nullptr && of_kind->is(Value::Kind::Object)) rope = of_kind;
    for (const std::string_view key : {"rope_type", "type"}) {
      const Value* type = rope->find(key);
      if (type != nullptr && type->is(Value::Kind::String)) return type->string != "default" && type->string != "mrope";
    }
  }
  return false;
}

// The base of one kind of layers, where they have one of their own; else 0.
double rotary_base_of(const Value& config, std::string_view kind) {
  if (kind.empty()) return 0;
  const Value* rope = config.find("rope_parameters");
  const Value* of_kind = rope != nullptr && rope->is(Value::Kind::Object) ? rope->find(kind) : nullptr;
  const Value* base = of_kind != nullptr && of_kind->is(Value::Kind::Object) ? of_kind->find("rope_theta")
                      : kind == "sliding_attention"                          ? config.find("rope_local_base_freq")
                                                                             : nullptr;
  const bool numeric = base != nullptr && (base->is(Value::Kind::Real) || base->is(Value::Kind::Integer));
  return numeric ? base->real : 0;
}

}  // namespace

void ModelBuilder::rotary(std::string_view name, std::string_view type, std::int64_t rotated,
                          const std::vector<std::string>& kinds, std::int64_t first_rotated) {
  const Scope scope = module(name, type);
  for (const std::string& kind : kinds) {
    const std::int64_t own = first_rotated > 0 && &kind == kinds.data() ? first_rotated : rotated;
    const bool scaled = scales_rotary(config_->root(), kind);
    const std::string prefix = kind.empty() ? "" : kind + "_";
    for (const std::string_view table : {"inv_freq", "original_inv_freq"}) {
      buffer(prefix + std::string(table), {(own + 1) / 2}, DType::Float32, false, scaled);
      spec_.buffers.back().rotary_base = rotary_base_of(config_->root(), kind);
    }
  }
}

void ModelBuilder::tie(ParameterId parameter, ParameterId source) {
  Parameter& tied = spec_.parameter_at(parameter);
  const Parameter& first = spec_.parameter_at(source);
  DSPLAN_CHECK(tied.shape == first.shape, tied.name + " tied to " + first.name);
  tied.tied_to = source;
  elements_ -= tied.shape.elements().value();
}

void ModelBuilder::run(ModuleId self, std::string_view& text) {
  while (!text.empty()) {
    if (text.front() == ' ') {
      text.remove_prefix(1);
      continue;
    }
    if (text.front() == ')') {
      text.remove_prefix(1);
      return;
    }
    const std::size_t length = std::min(text.find_first_of(" ()*"), text.size());
    const ModuleId id = descendant(spec_, self, text.substr(0, length));
    text.remove_prefix(length);
    if (text.starts_with('*')) {
      text.remove_prefix(1);
      call_layers(id);
      continue;
    }
    spec_.calls.push_back({id, true});
    if (text.starts_with('(')) {
      text.remove_prefix(1);
      run(id, text);
    }
    spec_.calls.push_back({id, false});
  }
}

void ModelBuilder::call_layers(ModuleId list) {
  for (const Layer& layer : layers_) {
    if (layer.list != list) continue;
    const ModuleId modules = layer.end - layer.module;
    const Recorded* known = nullptr;
    for (const Recorded& recorded : recorded_) {
      if (recorded.modules == modules && recorded.forward == layer.forward) known = &recorded;
    }
    if (known != nullptr) {
      for (const ModuleCall& call : known->calls) spec_.calls.push_back({call.module + layer.module, call.enter});
      continue;
    }
    const std::size_t begin = spec_.calls.size();
    std::string_view text = layer.forward;
    spec_.calls.push_back({layer.module, true});
    run(layer.module, text);
    spec_.calls.push_back({layer.module, false});
    Recorded recorded{layer.forward, modules, {}};
    for (std::size_t i = begin; i < spec_.calls.size(); ++i) {
      recorded.calls.push_back({spec_.calls[i].module - layer.module, spec_.calls[i].enter});
    }
    recorded_.push_back(std::move(recorded));
  }
}

ModelSpec ModelBuilder::finish(std::string_view forward) {
  spec_.calls.push_back({0, true});
  run(0, forward);
  spec_.calls.push_back({0, false});
  return std::move(spec_);
}

}  // namespace dsplan
