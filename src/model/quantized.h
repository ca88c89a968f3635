// Models whose linear layers hold packed weights, as from_pretrained makes them with a BitsAndBytesConfig. What is not
// packed is in fp32 where prepare_model_for_kbit_training ran, else as it was loaded.
#pragma once

#include <optional>

#include "core/inputs.h"
#include "core/model.h"

namespace dsplan {

// Values that share a scale, and scales that share a second one (bitsandbytes 0.50, functional.py, quantize_4bit).
inline constexpr std::int64_t kQuantizedBlock = 64;
inline constexpr std::int64_t kNestedBlock = 256;

struct Quantization {
  std::string kind;                // "nf4", "fp4", "int8".
  bool nested = false;             // The blocks' scales are quantized themselves: double_quant.
  DType compute = DType::Float32;  // In which products run.
  DType storage = DType::UInt8;    // Of the packed elements.
  DType loaded = DType::BFloat16;  // In which the weights were before, and backward unpacks them.
  bool prepared = true;            // By prepare_model_for_kbit_training.

  // LLM.int8: a byte for each value and a scale for each row. What is said of 4-bit weights alone has no meaning here.
  [[nodiscard]] bool eight_bits() const { return kind == "int8"; }
  // Of what is not packed.
  [[nodiscard]] DType others() const { return prepared ? DType::Float32 : loaded; }
};

// What a request asks for; nullopt where that is nothing. Refuses other values, and what says how weights are packed
// where none are, or how 4-bit weights are where they have 8.
[[nodiscard]] std::optional<Quantization> quantization_of(const Request& request, DType loaded);

// `model` with every Linear but the head and the adapters packed: [n / 2, 1] bytes, the module's class Linear4bit with
// how it is packed, or the weight's own shape in int8 and Linear8bitLt; scales and tables as buffers beside it. Refuses
// Conv1D and mixtures of experts at `place`.
[[nodiscard]] ModelSpec with_packed_weights(const ModelSpec& model, const Quantization& quantization,
                                            const Place& place);

// Of a module that holds a packed weight; nullopt of any other.
[[nodiscard]] std::optional<Quantization> packing_of(const Module& module);
// Of the first such module.
[[nodiscard]] std::optional<Quantization> packing_of(const ModelSpec& model);
// Scales and tables, which no module lists among its buffers: they hang on the weight.
[[nodiscard]] bool is_packing_state(const ModelSpec& model, const ModelBuffer& buffer);
// The values that a packed weight stands for.
[[nodiscard]] Elements unpacked_elements(const Parameter& weight, const Quantization& quantization);

}  // namespace dsplan
