#include "planner/lower/runtimes/zero3/swap_buffers.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan {

void read_file(Eager& eager, const Part& to, const Part& file) {
  eager.work().read(file).write(to).run(Body::FileRead, "read from NVMe");
}

void write_file(Eager& eager, const Part& file, const Part& from) {
  eager.work().read(from).write(file).run(Body::FileWrite, "write to NVMe");
}

void SwapBuffers::make() {
  for (std::size_t at = 0; at < count_; ++at) {
    buffers_.push_back(eager_.empty(
        bytes_, type_,
        {Role::RuntimeBuffers, "swap buffer", "swap_tensor/utils.py, SwapBufferManager.__init__", /*capacity=*/true},
        kNone, Space::Locked));
    free_.push_back(at);
  }
}

std::vector<std::size_t> SwapBuffers::take(std::size_t count) {
  DSPLAN_CHECK(count > 0 && count <= free_.size(), "swap buffers of the optimizer run out");
  std::vector<std::size_t> taken(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void SwapBuffers::give_back(std::vector<std::size_t>& buffers) {
  free_.insert(free_.end(), buffers.begin(), buffers.end());
  buffers.clear();
}

}  // namespace dsplan
