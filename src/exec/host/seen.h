// Tensors of a launch seen through views. For src/exec/host and src/cuda only.
#pragma once

#include <vector>

#include "exec/host/args.h"
#include "exec/views.h"

namespace dsplan::exec::host {

[[nodiscard]] Layout layout_of(const dsplan_tensor& tensor);
// The same memory in another layout, `offset` elements further on.
[[nodiscard]] dsplan_tensor seen_as(const dsplan_tensor& tensor, const Layout& layout, std::int64_t offset);
// The steps of a view, as the launch encodes them.
[[nodiscard]] std::vector<ViewStep> steps_of(const Args& args);
// The part of `whole` that has the dimensions of `of`: what stands first in each dimension.
[[nodiscard]] dsplan_tensor corner(dsplan_tensor whole, const dsplan_tensor& of);

}  // namespace dsplan::exec::host
