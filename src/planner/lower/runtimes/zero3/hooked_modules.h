// Which modules carry ZeRO-3's hooks, and what each asks for: all of them, down to leaf modules, which are fetched
// whole (deepspeed/utils/z3_leaf_module.py, runtime/zero/leaf_module_config.py, and parameter_offload.py's
// granularity).
#pragma once

#include <vector>

#include "core/model.h"
#include "core/training.h"
#include "planner/lower/runtimes/zero3/coordinator.h"

namespace dsplan {

// By module: whether it is a leaf. By class, name and suffix as the JSON says, then by granularity: elements per layer
// of a module with all below it, where a module with parameters counts as a layer. Modules below a leaf are not looked
// at. Refuses nothing: what matches nothing has no effect.
[[nodiscard]] std::vector<bool> leaf_modules(const ModelSpec& model, const Zero& zero);

// Own, below (ties once) for every module; `leaf` as given.
[[nodiscard]] std::vector<CoordinatedModule> coordinated_modules(const ModelSpec& model, const std::vector<bool>& leaf);

// By module: false below a leaf.
[[nodiscard]] std::vector<bool> hooked_modules(const ModelSpec& model, const std::vector<bool>& leaf);

// By module: the parameters that the module around it asks others for before it calls it, in order. A graph says by
// Instruction::Kind::Read where exactly, if operators lie between.
[[nodiscard]] std::vector<std::vector<ParameterId>> read_before_call(const ModelSpec& model);

// By module: whether its tensors come by keyword alone (hidden_states=...), of modules with parameters of their own.
// Such a module's backward has no end: PostBackwardFunctionModule lies on what is positional.
[[nodiscard]] std::vector<bool> called_by_keyword(const ModelSpec& model);

// By parameter: its place in the order in which zero.Init numbers them (ds_id), a module's own as its constructor ends,
// behind those of the modules inside it. A model that is cut when it is whole has them in the order of registration.
[[nodiscard]] std::vector<std::int32_t> numbers_of_conversion(const ModelSpec& model, bool under_zero_init);

}  // namespace dsplan
