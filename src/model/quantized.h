// Models whose linear layers hold packed weights, as from_pretrained makes them with a BitsAndBytesConfig and
// prepare_model_for_kbit_training leaves them: everything that is not packed in fp32.
#pragma once

#include <optional>

#include "core/inputs.h"
#include "core/model.h"

namespace dsplan {

// Values that share a scale, and scales that share a second one (bitsandbytes 0.50, functional.py, quantize_4bit).
inline constexpr std::int64_t kQuantizedBlock = 64;
inline constexpr std::int64_t kNestedBlock = 256;

struct Quantization {
  std::string kind;                // "nf4", "fp4".
  bool nested = false;             // The blocks' scales are quantized themselves: double_quant.
  DType compute = DType::Float32;  // In which products run.
  DType storage = DType::UInt8;    // Of the packed elements.
  DType loaded = DType::BFloat16;  // In which the weights were before, and backward unpacks them.
};

// The keys of --set that say it: quantization, double_quant, quant_compute_dtype, quant_storage.
[[nodiscard]] bool is_quantization_key(std::string_view key);
// What they ask for; nullopt where that is nothing. Refuses int8, other values, and the keys without the first.
[[nodiscard]] std::optional<Quantization> quantization_of(const Request& request, DType loaded);

// `model` with every Linear but the head and the adapters packed: [n / 2, 1] bytes, the module's class Linear4bit with
// how it is packed; scales and tables as buffers beside it. Refuses Conv1D and mixtures of experts at `place`.
[[nodiscard]] ModelSpec with_packed_weights(const ModelSpec& model, const Quantization& quantization,
                                            const Place& place);

// Of a module that holds a packed weight; nullopt of any other.
[[nodiscard]] std::optional<Quantization> packing_of(const Module& module);
// Of the first such module.
[[nodiscard]] std::optional<Quantization> packing_of(const ModelSpec& model);
// The values that a packed weight stands for.
[[nodiscard]] Elements unpacked_elements(const Parameter& weight, const Quantization& quantization);

}  // namespace dsplan
