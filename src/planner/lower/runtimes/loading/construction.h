// In which order constructors make a module's own parameters among its children. Where nothing else is known they come
// first, as named_parameters lists them.
#pragma once

#include <string_view>
#include <vector>

#include "core/model.h"

namespace dsplan {

// By parameter: the child module before whose constructor it is made, `kNone` where it is made before all of them, and
// its own module where behind all of them.
[[nodiscard]] std::vector<ModuleId> made_before(const ModelSpec& model);

}  // namespace dsplan
