#include "model/config/packed_weights.h"

#include <algorithm>
#include <array>

#include "core/format.h"

namespace dsplan {
namespace {

constexpr std::string_view kKey = "quantization_config";

// Which transformers unpacks when it loads them to be trained (dequantize=True), as it trains them in no other form.
constexpr std::array<std::string_view, 4> kUnpacked{"fp8", "mxfp8", "mxfp4", "compressed-tensors"};
// AUTO_QUANTIZATION_CONFIG_MAPPING's others.
constexpr std::array<std::string_view, 22> kKnown{
    "gguf",     "awq",        "eetq",       "gptq",  "aqlm",    "quanto",      "quark", "fouroversix",
    "fp_quant", "hqq",        "fbgemm_fp8", "higgs", "torchao", "bitnet",      "vptq",  "spqr",
    "nvfp4",    "auto-round", "metal",      "sinq",  "gemma",   "bitsandbytes"};

template <std::size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool says(const Value& packing, std::string_view key) {
  const Value* value = packing.find(key);
  return value != nullptr && value->is(Value::Kind::Bool) && value->boolean;
}

std::optional<std::string> text(const Value& packing, std::string_view key) {
  const Value* value = packing.find(key);
  if (value == nullptr || !value->is(Value::Kind::String)) return std::nullopt;
  return value->string;
}

// BitsAndBytesConfig, with the defaults of its constructor.
ConfigRemarks::Packing of_bitsandbytes(const Value& packing) {
  ConfigRemarks::Packing packed;
  packed.offset = packing.offset;
  packed.method = "bitsandbytes";
  if (says(packing, "load_in_8bit")) {
    packed.kind = "int8";
    return packed;
  }
  packed.kind = text(packing, "bnb_4bit_quant_type").value_or("fp4");
  packed.nested = says(packing, "bnb_4bit_use_double_quant");
  packed.compute = text(packing, "bnb_4bit_compute_dtype").value_or("float32");
  packed.storage = text(packing, "bnb_4bit_quant_storage").value_or("uint8");
  return packed;
}

}  // namespace

std::optional<ConfigRemarks::Packing> read_packing(ConfigReader& config) {
  const Value* packing = config.find(kKey);
  if (packing == nullptr) return std::nullopt;
  if (!packing->is(Value::Kind::Object)) {
    config.fault(*packing, formatted("\"{}\" must be an object, not {}", kKey, describe(packing->kind)));
    return std::nullopt;
  }
  if (says(*packing, "load_in_4bit") || says(*packing, "load_in_8bit")) return of_bitsandbytes(*packing);
  const std::optional<std::string> method = text(*packing, "quant_method");
  if (!method) {
    config.fault(*packing, formatted("\"{}\" names no quant_method, and transformers loads no such file", kKey),
                 "the config.json of the weights before they were quantized has none");
    return std::nullopt;
  }
  if (among(kUnpacked, *method)) {
    ConfigRemarks::Packing unpacked;
    unpacked.offset = packing->offset;
    unpacked.method = *method;
    return unpacked;
  }
  config.fault(*packing,
               among(kKnown, *method)
                   ? formatted("\"{}\": weights quantized by {} are not modelled yet", kKey, *method)
                   : formatted("\"{}\": quant_method \"{}\" is none that transformers knows", kKey, *method),
               "the config.json of the weights before they were quantized has none");
  return std::nullopt;
}

void check_unpacked(ConfigReader& config, const ModelSpec& model) {
  const Value* packing = config.root().find(kKey);
  const Value* left_out = packing->find("llm_int8_skip_modules");
  if (left_out == nullptr || !left_out->is(Value::Kind::Array)) return;
  const auto hits = [&](std::string_view name) {
    return std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& parameter) {
      const std::string_view module = std::string_view(parameter.name).substr(0, parameter.name.rfind('.'));
      return module.starts_with(name) || module.ends_with(name);
    });
  };
  bool head = false;
  for (const Value& name : left_out->items) {
    if (!name.is(Value::Kind::String)) continue;
    if (name.string == "lm_head") {
      head = true;
    } else if (hits(name.string)) {
      config.fault(name,
                   formatted("modules that are not packed besides the head are not modelled yet: \"{}\"", name.string));
    }
  }
  if (!head) config.fault(*left_out, "a packed head is not modelled yet");
}

}  // namespace dsplan
