#include "exec/runner/data.h"

#include "core/error.h"

#include <cmath>

namespace dsplan::exec {
namespace {

// Written for this purpose: repetitive on purpose, so that a few steps of a tiny model learn something of it.
constexpr const char* kText =
    "A plan is a promise about memory. The parameters are there before the first batch, the gradients come and go, "
    "the moments come with the first step and stay. Between forward and backward the activations wait: each layer "
    "keeps what its backward will read, and lets go of it when it has read it. A checkpoint keeps less and computes "
    "more. A shard keeps its part and asks the others for theirs. A bucket fills, is reduced, is emptied, fills again. "
    "What is gathered is used and let go. What is used again soon is kept a little longer. Every byte has an owner, "
    "every owner has a reason, and every reason can be read. The planner says how much; the executor shows how much; "
    "where the two part, one of them is wrong, and the first event at which they part says which. ";

}  // namespace

Text::Text() : Text(kText) {}

Text::Text(std::string text) : text_(std::move(text)) {
  DSPLAN_CHECK(text_.size() >= 2, "a text of at least two bytes");
}

std::vector<std::int64_t> Text::tokens(std::int64_t sample, std::int64_t length, std::int64_t vocabulary) const {
  // A step that has no factor in common with most lengths: samples begin all over the text.
  constexpr std::int64_t kStep = 37;
  std::vector<std::int64_t> ids;
  const auto size = static_cast<std::int64_t>(text_.size());
  for (std::int64_t i = 0; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text_[static_cast<std::size_t>((sample * kStep + i) % size)]);
    ids.push_back(byte % vocabulary);
  }
  return ids;
}

Initial initial_of(const ModelSpec& model, ParameterId parameter) {
  const Parameter& p = model.parameter_at(parameter);
  const std::string& type = model.module_at(p.module).type;
  if (p.name.ends_with("bias") || p.name.find("lora_B") != std::string::npos) return Initial::Zeros;
  return type.find("Norm") != std::string::npos ? Initial::Ones : Initial::Normal;
}

namespace {

// m2m_100: sines of each position, then cosines, and of padding zeros (get_embedding of modeling_m2m_100.py).
std::vector<double> sinusoids(const ModelBuffer& buffer, std::int64_t padding) {
  const std::int64_t width = buffer.shape.dims[1];
  const std::int64_t half = width / 2;
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  std::vector<double> values;
  for (std::int64_t row = 0; row < buffer.shape.dims[0]; ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      const double angle = static_cast<double>(row) * std::exp(-step * static_cast<double>(i % half));
      const double value = i < half ? std::sin(angle) : std::cos(angle);
      values.push_back(row == padding || i == 2 * half ? 0 : value);
    }
  }
  return values;
}

// Which token sees which, those before it or so many of them (gpt_neo; gpt_bigcode's nobody reads).
std::vector<double> seen_tokens(const ModelBuffer& buffer) {
  const std::int64_t side = buffer.shape.dims[buffer.shape.rank - 1U];
  std::vector<double> values;
  for (std::int64_t i = 0; i < buffer.shape.elements().value(); ++i) {
    const std::int64_t back = i / side - i % side;
    values.push_back(back >= 0 && (buffer.window == 0 || back < buffer.window) ? 1 : 0);
  }
  return values;
}

}  // namespace

std::vector<double> values_of(const ModelSpec& model, const ModelBuffer& buffer) {
  const std::int64_t count = buffer.shape.elements().value();
  std::vector<double> values;
  if (buffer.filled) return std::vector<double>(static_cast<std::size_t>(count), *buffer.filled);
  if (buffer.name.ends_with("e_score_correction_bias")) return std::vector<double>(static_cast<std::size_t>(count), 0);
  if (buffer.name.ends_with("embed_scale") && buffer.dtype != DType::Int64) {  // gemma's.
    return {std::sqrt(static_cast<double>(model.dims.hidden))};
  }
  if (buffer.name.ends_with("embed_positions.weights")) return sinusoids(buffer, model.dims.padding);
  if (buffer.name.ends_with("final_logits_bias")) return std::vector<double>(static_cast<std::size_t>(count), 0);
  if (buffer.name.ends_with("token_type_ids")) return std::vector<double>(static_cast<std::size_t>(count), 0);
  if (buffer.name.ends_with("position_ids")) {
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(i));
    return values;
  }
  if (buffer.name.ends_with("transformer.bias") || buffer.name.ends_with("attention.bias")) return seen_tokens(buffer);
  if (!buffer.name.ends_with("inv_freq")) {
    throw Refusal("run", "buffer \"" + buffer.name + "\" cannot be filled yet");
  }
  const double base = buffer.rotary_base > 0 ? buffer.rotary_base : model.dims.rotary_base;
  const std::int64_t turned = buffer.turned > 0 ? buffer.turned : count;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i >= turned) {
      values.push_back(0);
      continue;
    }
    values.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(count)));
  }
  return values;
}

}  // namespace dsplan::exec
