// Frequencies of rotary positions as transformers computes them on the device, operator by operator
// (modeling_rope_utils.py).
#pragma once

#include <functional>
#include <initializer_list>

#include "core/model.h"
#include "model/parts.h"
#include "planner/lower/eager.h"

namespace dsplan {

class RotaryFrequencies {
 public:
  // `parts`: of the model, or none. Both must outlive this.
  RotaryFrequencies(Emitter& emitter, const DecoderParts* parts) : eager_(emitter), parts_(parts) {}

  // What becomes `buffer`, which `keep` makes in the place of the last operator's output; else a variable.
  [[nodiscard]] Variable of(const ModelBuffer& buffer, const std::function<void()>& keep) {
    const std::int64_t count = buffer.shape.elements().value();
    if (!buffer.converted) return divided_by(powers(count, false), count, keep);
    if (buffer.turned > 0) return in_part(count, buffer.turned, keep);
    switch (parts_ != nullptr ? parts_->rotary.scaling : RotaryScaling::Other) {
      case RotaryScaling::Linear: return divided_by(powers(count, true), count, keep);  // Then divided in place.
      case RotaryScaling::Llama3: return by_wavelength(count, keep);
      case RotaryScaling::Yarn: return ramped(count, keep);
      case RotaryScaling::LongRope: return by_factors(count, keep);
      case RotaryScaling::Lengths:
      case RotaryScaling::Other: break;
    }
    if (keep) keep();  // By a function that is not followed.
    return {};
  }

 private:
  // A function's last operator: `keep` makes the buffer of it, else it is a variable.
  [[nodiscard]] Variable returned(std::int64_t count, std::initializer_list<const Variable*> from,
                                  const std::function<void()>& keep) {
    if (!keep) return made(count, DType::Float32, from);
    keep();
    return {};
  }
  // 1.0 / `of`: its reciprocal, times one (torch: _tensor.py, __rdiv__).
  [[nodiscard]] Variable divided_by(const Variable& of, std::int64_t count, const std::function<void()>& keep = {}) {
    const Variable reciprocal = made(count, DType::Float32, {&of});
    return returned(count, {&reciprocal}, keep);
  }
  // base ** (torch.arange(0, dim, 2) / dim), of whole numbers or at once in fp32 (modeling_llama.py,
  // compute_default_rope_parameters).
  [[nodiscard]] Variable powers(std::int64_t count, bool whole) {
    Variable numbers = made(count, whole ? DType::Int64 : DType::Float32);
    if (whole) numbers = made(count, DType::Float32, {&numbers});
    numbers = made(count, DType::Float32, {&numbers});
    Variable raised = made(count, DType::Float32, {&numbers});
    made(1, DType::Float64).reset();  // The base.
    return raised;
  }
  // modeling_rope_utils.py, _compute_proportional_rope_parameters: zeros behind those that turn.
  [[nodiscard]] Variable in_part(std::int64_t count, std::int64_t turned, const std::function<void()>& keep) {
    if (turned == count) return divided_by(powers(count, true), count, keep);
    const Variable turning = divided_by(powers(turned, true), turned);
    const Variable zeros = made(count - turned, DType::Float32);
    return returned(count, {&turning, &zeros}, keep);
  }
  // modeling_rope_utils.py, _compute_longrope_parameters, line by line.
  [[nodiscard]] Variable by_factors(std::int64_t count, const std::function<void()>& keep) {
    const Variable factors = made(count, DType::Float32);
    Variable exponents = made(count, DType::Int64);
    exponents = made(count, DType::Float32, {&exponents});
    exponents = made(count, DType::Float32, {&exponents});
    Variable raised = made(count, DType::Float32, {&exponents});
    made(1, DType::Float64).reset();  // The base.
    const Variable product = made(count, DType::Float32, {&factors, &raised});
    raised.reset();
    return divided_by(product, count, keep);
  }
  // modeling_rope_utils.py, _compute_llama3_parameters, line by line.
  [[nodiscard]] Variable by_wavelength(std::int64_t count, const std::function<void()>& keep) {
    const auto number = [&](const Variable& of) { return made(count, DType::Float32, {&of}); };
    const auto flag = [&](const Variable& of) { return made(count, DType::Bool, {&of}); };
    Variable inverse = divided_by(powers(count, true), count);
    Variable wavelength = divided_by(inverse, count);
    Variable longer = flag(wavelength);
    Variable smaller = number(inverse);
    Variable chosen = made(count, DType::Float32, {&longer, &smaller, &inverse});
    longer.reset();
    smaller.reset();
    Variable smooth = divided_by(wavelength, count);
    smooth = number(smooth);
    smooth = number(smooth);
    Variable first = number(smooth);
    first = made(count, DType::Float32, {&first, &chosen});
    first = number(first);
    Variable second = made(count, DType::Float32, {&smooth, &chosen});
    Variable smoothed = made(count, DType::Float32, {&first, &second});
    first.reset();
    second.reset();
    Variable not_shorter = flag(wavelength);
    not_shorter = flag(not_shorter);
    Variable not_longer = flag(wavelength);
    not_longer = flag(not_longer);
    Variable medium = made(count, DType::Bool, {&not_shorter, &not_longer});
    not_shorter.reset();
    not_longer.reset();
    Variable result = returned(count, {&medium, &smoothed, &chosen}, keep);
    for (Variable* gone : {&chosen, &inverse, &wavelength, &smooth, &smoothed, &medium}) gone->reset();
    return result;
  }
  // modeling_rope_utils.py, _compute_yarn_parameters, line by line.
  [[nodiscard]] Variable ramped(std::int64_t count, const std::function<void()>& keep) {
    const auto number = [&](const Variable& of) { return made(count, DType::Float32, {&of}); };
    Variable raised = powers(count, true);
    Variable apart = divided_by(raised, count);
    Variable together = divided_by(number(raised), count);
    Variable line = made(count, DType::Float32);
    line = number(line);
    line = number(line);
    Variable ramp = number(line);
    line.reset();
    Variable factor = number(ramp);
    ramp.reset();
    Variable rest = number(factor);
    Variable first = made(count, DType::Float32, {&together, &rest});
    rest.reset();
    Variable second = made(count, DType::Float32, {&apart, &factor});
    Variable result = returned(count, {&first, &second}, keep);
    for (Variable* gone : {&first, &second, &raised, &apart, &together, &factor}) gone->reset();
    return result;
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

  Eager eager_;
  const DecoderParts* parts_;
};

}  // namespace dsplan
