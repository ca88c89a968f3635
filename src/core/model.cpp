#include "core/model.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {

Shape::Shape(std::initializer_list<std::int64_t> list) {
  DSPLAN_CHECK(list.size() <= dims.size(), "a shape has at most six dimensions");
  for (std::int64_t dim : list) dims[rank++] = dim;
}

Elements Shape::elements() const {
  std::int64_t product = 1;
  for (std::uint8_t i = 0; i < rank; ++i) product = checked_mul(product, dims[i]);
  return Elements(product);
}

std::string Shape::text() const { return formatted("[{}]", joined(dims.begin(), dims.begin() + rank, ", ")); }

std::string_view name(ModelCode code) { return code == ModelCode::Torchtitan ? "torchtitan" : "transformers"; }

bool ModelSpec::lies_in(ModuleId module, ModuleId outer) const {
  while (module != kNone && module != outer) module = modules[static_cast<std::size_t>(module)].parent;
  return module == outer;
}

ModuleId ModelSpec::child(ModuleId parent, std::string_view leaf) const {
  // Children follow their parent in registration order; a layer has about a dozen of them.
  const std::string& prefix = modules[static_cast<std::size_t>(parent)].path;
  for (std::size_t at = static_cast<std::size_t>(parent) + 1; at < modules.size(); ++at) {
    const Module& module = modules[at];
    if (module.parent < parent) break;  // Left the subtree.
    if (module.parent != parent) continue;
    const std::size_t skip = prefix.empty() ? 0 : prefix.size() + 1;
    if (std::string_view(module.path).substr(skip) == leaf) return static_cast<ModuleId>(at);
  }
  return kNone;
}

ParameterId ModelSpec::parameter(ModuleId module, std::string_view leaf) const {
  // Parameters are in registration order, so those of later modules come later.
  const auto first = std::lower_bound(parameters.begin(), parameters.end(), module,
                                      [](const Parameter& p, ModuleId id) { return p.module < id; });
  for (auto at = first; at != parameters.end() && at->module == module; ++at) {
    const std::size_t dot = at->name.rfind('.');
    if (std::string_view(at->name).substr(dot == std::string::npos ? 0 : dot + 1) == leaf) {
      return static_cast<ParameterId>(at - parameters.begin());
    }
  }
  return kNone;
}

Elements total_elements(const ModelSpec& model) {
  Elements sum;
  for (const Parameter& parameter : model.parameters) {
    const bool second = model.reference != kNone && parameter.module >= model.reference;
    if (parameter.tied_to != kNone || second) continue;
    const bool packed = parameter.shape.rank == 2 && model.module_at(parameter.module).type.starts_with("Linear4bit");
    // Two values to a byte.
    const std::int64_t values = packed ? 2 * bytes_per_element(parameter.dtype.value_or(DType::UInt8)) : 1;
    sum += parameter.shape.elements() * values;
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (buffer.counted) sum += buffer.shape.elements();
  }
  return sum;
}

namespace {

std::int64_t cut(const ModelSpec& model, const Parameter& parameter, std::int64_t whole, std::int64_t tp) {
  if (whole % tp != 0) {
    throw Refusal("--tp", formatted("{} of {} is {}, which {} tensor-parallel ranks do not divide", parameter.name,
                                    model.name, whole, tp));
  }
  return whole / tp;
}

std::int64_t local_kv_heads(const ModelSpec& model, std::int64_t tp) {
  const std::int64_t kv = model.dims.kv_heads;
  if (kv % tp != 0 && tp % kv != 0) {
    throw Refusal("--tp",
                  formatted("{} key-value heads of {} neither divide nor are divided by tp = {}", kv, model.name, tp));
  }
  return std::max<std::int64_t>(1, kv / tp);
}

}  // namespace

Shape local_shape(const ModelSpec& model, const Parameter& parameter, std::int64_t tp) {
  Shape shape = parameter.shape;
  if (tp == 1) return shape;
  std::int64_t& dim = shape.dims[parameter.split_dim];
  switch (parameter.split) {
    case Split::Replicated: break;
    case Split::Even:
      if (model.dims.heads % tp != 0) {
        throw Refusal("--tp", formatted("{} attention heads of {} are not divisible by tp = {}", model.dims.heads,
                                        model.name, tp));
      }
      dim = cut(model, parameter, dim, tp);
      break;
    case Split::KeyValue: dim = local_kv_heads(model, tp) * model.dims.head_dim; break;
    case Split::QueryKeyValue:
      dim = (cut(model, parameter, model.dims.heads, tp) + 2 * local_kv_heads(model, tp)) * model.dims.head_dim;
      break;
    case Split::Vocabulary: dim = round_up(Elements(dim), checked_mul(tp, 128)).value() / tp; break;
    case Split::Unknown:
      throw Refusal("--tp", formatted("tensor parallelism is not modelled yet for the {} family", model.family));
  }
  return shape;
}

ModelSpec tensor_parallel_part(const ModelSpec& model, std::int64_t tp) {
  ModelSpec part = model;
  if (tp == 1) return part;
  for (Parameter& parameter : part.parameters) parameter.shape = local_shape(model, parameter, tp);
  part.dims.heads /= tp;
  part.dims.kv_heads = local_kv_heads(model, tp);
  part.dims.ffn /= tp;
  part.dims.vocab = round_up(Elements(model.dims.vocab), checked_mul(tp, 128)).value() / tp;
  return part;
}

bool groups_heads(const ModelSpec& model, std::int64_t tp) {
  return model.dims.heads / tp != (tp == 1 ? model.dims.kv_heads : local_kv_heads(model, tp));
}

}  // namespace dsplan
