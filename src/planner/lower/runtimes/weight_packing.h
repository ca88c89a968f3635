// How weights are packed as they come to the device: from_pretrained with a BitsAndBytesConfig.
#pragma once

#include <functional>
#include <vector>

#include "core/kernel_scratch.h"
#include "core/model.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"

namespace dsplan {

// from_pretrained takes room for the whole model first and lets go of it (modeling_utils.py,
// caching_allocator_warmup).
void make_room(Eager& eager, Bytes all);

class WeightPacking {
 public:
  // `world`: all ranks; `device`: none where kernels' temporaries are not asked for. What is named must outlive this.
  WeightPacking(Emitter& emitter, const ModelSpec& model, std::int64_t world, const DeviceThreads& device,
                const BuffersOf& buffers)
      : eager_(emitter), model_(model), world_(world), device_(device), buffers_(buffers) {}

  void warm_up(const std::vector<ParameterId>& loaded);
  // The packed weight, which `make` makes.
  [[nodiscard]] Variable pack(ParameterId id, const std::function<Variable()>& make);

 private:
  [[nodiscard]] Variable passing(Bytes bytes, DType dtype);
  void pack_scales(Bytes scales, ModuleId module);
  [[nodiscard]] Variable pack_rows(const Parameter& parameter, DType loaded, const std::function<Variable()>& make);

  Eager eager_;
  const ModelSpec& model_;
  std::int64_t world_;
  DeviceThreads device_;
  const BuffersOf& buffers_;
};

}  // namespace dsplan
