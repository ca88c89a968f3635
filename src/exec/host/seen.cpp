#include "exec/host/seen.h"

#include <algorithm>

namespace dsplan::exec::host {

Layout layout_of(const dsplan_tensor& tensor) {
  Layout layout;
  layout.rank = static_cast<std::uint8_t>(tensor.rank);
  std::copy(tensor.dims, tensor.dims + tensor.rank, layout.dims.begin());
  std::copy(tensor.strides, tensor.strides + tensor.rank, layout.strides.begin());
  return layout;
}

dsplan_tensor seen_as(const dsplan_tensor& tensor, const Layout& layout, std::int64_t offset) {
  dsplan_tensor seen = tensor;
  seen.data = static_cast<unsigned char*>(tensor.data) + offset * bytes_per_element(dtype_of(tensor));
  seen.rank = layout.rank;
  std::copy(layout.dims.begin(), layout.dims.end(), seen.dims);
  std::copy(layout.strides.begin(), layout.strides.end(), seen.strides);
  return seen;
}

std::vector<ViewStep> steps_of(const Args& args) {
  std::vector<ViewStep> steps;
  const std::int64_t* code = args.steps();
  for (std::int64_t i = 0; i < args.integer(DSPLAN_STEPS); ++i, code += DSPLAN_STEP_LENGTH) {
    ViewStep step;
    step.kind = static_cast<ViewStep::Kind>(code[0]);
    step.a = static_cast<std::int8_t>(code[1]);
    step.b = static_cast<std::int8_t>(code[2]);
    step.start = code[3];
    step.length = code[4];
    step.shape.rank = static_cast<std::uint8_t>(code[5]);
    std::copy(code + 6, code + 6 + Shape::kMostDims, step.shape.dims.begin());
    steps.push_back(step);
  }
  return steps;
}

dsplan_tensor corner(dsplan_tensor whole, const dsplan_tensor& of) {
  expect(whole.rank == of.rank, "padding keeps the number of dimensions");
  for (std::int32_t d = 0; d < whole.rank; ++d) {
    expect(of.dims[d] <= whole.dims[d], "padding makes nothing smaller");
    whole.dims[d] = of.dims[d];
  }
  return whole;
}

}  // namespace dsplan::exec::host
