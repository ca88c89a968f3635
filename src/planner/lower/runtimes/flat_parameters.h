// Trained parameters as views of one flat buffer; frozen ones are tensors of their own.
#pragma once

#include <string>
#include <vector>

#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/flat_layout.h"

namespace dsplan {

class FlatParameters {
 public:
  // `layout` must outlive this. `dtype`: of all that is trained.
  FlatParameters(Emitter& emitter, const FlatLayout& layout, DType dtype, std::size_t parameters);

  // The model as the engine was given it, by ParameterId.
  void take(const std::vector<BufferId>& whole);
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const;

  // Originals, padding and the flat buffer coexist; then the parameters become views of it. `printed` is said while all
  // are there.
  void flatten(const std::vector<std::string>& printed = {});
  // Through the host: each parameter goes there, and until they are views of the flat buffer one number on the device
  // stands for it (DeepSpeed before 0.18.7).
  void flatten_on_host();

  [[nodiscard]] BufferId flat() const { return flat_.id(); }
  [[nodiscard]] Part partition() const { return {flat_.id(), bytes(layout_.begin()), bytes(layout_.partition)}; }
  // In place: each rank's partition lies where the whole will have it.
  void all_gather();

 private:
  [[nodiscard]] Bytes bytes(std::int64_t elements) const { return storage(Elements(elements), dtype_); }
  // Zeros that end the flat buffer, made before it (runtime/utils.py, align_dense_tensors); None where none are.
  [[nodiscard]] Variable padding(Space space);

  Eager eager_;
  const FlatLayout& layout_;
  DType dtype_;
  std::vector<Variable> whole_;  // By ParameterId: outside the flat buffer.
  Variable flat_;
};

}  // namespace dsplan
