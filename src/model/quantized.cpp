#include "model/quantized.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

constexpr std::array<std::string_view, 4> kKeys{"quantization", "double_quant", "quant_compute_dtype", "quant_storage"};
constexpr std::string_view kPackedClass = "Linear4bit";

// What --set says of `key`; the last one counts.
std::optional<std::string> said(const Request& request, std::string_view key) {
  std::optional<std::string> value;
  if (!request.set.given()) return value;
  for (const std::string& pair : *request.set) {
    const std::size_t equals = pair.find('=');
    if (equals != std::string::npos && std::string_view(pair).substr(0, equals) == key) value = pair.substr(equals + 1);
  }
  return value;
}

std::optional<DType> dtype_named(std::string_view text) {
  if (text == "uint8") return DType::UInt8;
  if (text == "bf16" || text == "bfloat16") return DType::BFloat16;
  if (text == "fp16" || text == "float16") return DType::Float16;
  if (text == "fp32" || text == "float32") return DType::Float32;
  return std::nullopt;
}

// One key that names a dtype.
void read_dtype(const Request& request, std::string_view key, bool bytes, DType& into, Diagnostics& faults) {
  const std::optional<std::string> text = said(request, key);
  if (!text) return;
  const std::optional<DType> dtype = dtype_named(*text);
  if (dtype && (bytes || *dtype != DType::UInt8)) {
    into = *dtype;
    return;
  }
  faults.add(
      request.set.place.says(formatted("{} \"{}\" is none of {}bf16, fp16, fp32", key, *text, bytes ? "uint8, " : "")));
}

class Packer {
 public:
  Packer(const ModelSpec& model, const Quantization& quantization) : spec_(model), quantization_(quantization) {
    type_ = formatted("{}({}, compute={}, storage={}, loaded={}{})", kPackedClass, quantization.kind,
                      name(quantization.compute), name(quantization.storage), name(quantization.loaded),
                      quantization.nested ? ", nested" : "");
  }

  ModelSpec pack() {
    // bitsandbytes keeps one table of 8-bit values for all scales.
    if (quantization_.nested) add("quant_map", {256}, DType::Float32, 0);
    for (std::size_t at = 0; at < spec_.modules.size(); ++at) {
      const Module& module = spec_.modules[at];
      const bool adapter = module.path.find(".lora_") != std::string::npos;
      if (module.type == "Linear" && !adapter && !module.path.ends_with("lm_head")) pack(static_cast<ModuleId>(at));
    }
    return std::move(spec_);
  }

 private:
  void add(std::string name, Shape shape, DType dtype, ModuleId module) {
    ModelBuffer buffer;
    buffer.name = std::move(name);
    buffer.shape = shape;
    buffer.dtype = dtype;
    buffer.module = module;
    spec_.buffers.push_back(std::move(buffer));
  }

  void pack(ModuleId module) {
    Module& linear = spec_.modules[static_cast<std::size_t>(module)];
    linear.type = type_;
    Parameter& weight = spec_.parameters[static_cast<std::size_t>(spec_.parameter(module, "weight"))];
    const std::int64_t values = weight.shape.elements().value();
    const std::int64_t scales = (values + kQuantizedBlock - 1) / kQuantizedBlock;
    weight.shape = Shape{(values + 1) / (2 * bytes_per_element(quantization_.storage)), 1};
    weight.dtype = quantization_.storage;
    weight.split = Split::Unknown;
    if (const ParameterId bias = spec_.parameter(module, "bias"); bias != kNone) {
      // The first forward leaves it in the dtype of the products (nn/modules.py, Linear4bit.forward).
      spec_.parameters[static_cast<std::size_t>(bias)].dtype = quantization_.compute;
    }
    const std::string prefix = linear.path + ".weight.";
    add(prefix + "absmax", {scales}, quantization_.nested ? DType::UInt8 : DType::Float32, module);
    add(prefix + "quant_map", {16}, DType::Float32, module);
    if (!quantization_.nested) return;
    add(prefix + "offset", {}, DType::Float32, module);
    add(prefix + "nested_absmax", {(scales + kNestedBlock - 1) / kNestedBlock}, DType::Float32, module);
    add(prefix + "nested_quant_map", {256}, DType::Float32, module);
  }

  ModelSpec spec_;
  const Quantization& quantization_;
  std::string type_;
};

}  // namespace

bool is_quantization_key(std::string_view key) { return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end(); }

std::optional<Quantization> quantization_of(const Request& request, DType loaded) {
  const std::optional<std::string> kind = said(request, "quantization");
  Diagnostics faults;
  const Place& place = request.set.place;
  if (!kind || *kind == "none") {
    for (const std::string_view key : kKeys) {
      if (key == "quantization" || !said(request, key)) continue;
      faults.add(place.says(formatted("{} says how weights are packed, and none are", key), "quantization=nf4"));
    }
    faults.throw_if_any();
    return std::nullopt;
  }
  if (*kind == "int8") {
    faults.add(place.says("quantization \"int8\", LLM.int8, is not modelled yet", "nf4 and fp4 are"));
  } else if (*kind != "nf4" && *kind != "fp4") {
    faults.add(place.says(formatted("quantization \"{}\" is not known", *kind), "it is one of none, nf4, fp4, int8"));
  }
  Quantization result{.kind = *kind, .loaded = loaded};
  if (const std::optional<std::string> nested = said(request, "double_quant")) {
    result.nested = *nested == "true";
    if (*nested != "true" && *nested != "false") {
      faults.add(place.says(formatted("double_quant \"{}\" is neither true nor false", *nested)));
    }
  }
  read_dtype(request, "quant_compute_dtype", false, result.compute, faults);
  read_dtype(request, "quant_storage", true, result.storage, faults);
  if (!request.lora.given()) {
    faults.add(place.says("packed weights are not trained: adapters are", "--lora r=8,targets=all-linear"));
  }
  faults.throw_if_any();
  return result;
}

ModelSpec with_packed_weights(const ModelSpec& model, const Quantization& quantization, const Place& place) {
  if (model.dims.experts > 0)
    throw Refusal({place.says("packed weights of a mixture of experts are not modelled yet")});
  for (const Module& module : model.modules) {
    const bool direct = module.type.ends_with("Conv1D") || module.type.ends_with("FalconLinear");
    if (!direct) continue;
    throw Refusal(
        {place.says(formatted("packed weights of {}, a {}, are not modelled yet", module.path, module.type))});
  }
  return Packer(model, quantization).pack();
}

std::optional<Quantization> packing_of(const Module& module) {
  if (!module.type.starts_with(kPackedClass)) return std::nullopt;
  const std::string_view text = module.type;
  const auto word = [&](std::string_view key) {
    const std::size_t at = text.find(key) + key.size();
    return text.substr(at, text.find_first_of(",)", at) - at);
  };
  Quantization result;
  result.kind = word("(");
  result.nested = text.find(", nested") != std::string_view::npos;
  result.compute = *dtype_named(word("compute="));
  result.storage = *dtype_named(word("storage="));
  result.loaded = *dtype_named(word("loaded="));
  return result;
}

std::optional<Quantization> packing_of(const ModelSpec& model) {
  for (const Module& module : model.modules) {
    if (std::optional<Quantization> found = packing_of(module)) return found;
  }
  return std::nullopt;
}

Elements unpacked_elements(const Parameter& weight, const Quantization& quantization) {
  return Elements(checked_mul(weight.shape.elements().value(), 2 * bytes_per_element(quantization.storage)));
}

}  // namespace dsplan
