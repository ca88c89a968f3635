// What passes between memory and NVMe, and through which buffers (DeepSpeed runtime/swap_tensor/utils.py).
#pragma once

#include <cstddef>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

// A file is read whole, and written up to its aligned end.
void read_file(Eager& eager, const Part& to, const Part& file);
void write_file(Eager& eager, const Part& file, const Part& from);

// SwapBufferManager: locked buffers of one size.
class SwapBuffers {
 public:
  SwapBuffers(DType type, Bytes bytes, std::size_t count, Emitter& emitter)
      : type_(type), bytes_(bytes), count_(count), eager_(emitter) {}

  void make();
  [[nodiscard]] Bytes bytes() const { return bytes_; }  // Of each.
  // So many that are free; or all of them.
  [[nodiscard]] std::vector<std::size_t> take(std::size_t count);
  [[nodiscard]] std::vector<std::size_t> take_all() { return take(free_.size()); }
  void give_back(std::vector<std::size_t>& buffers);
  // A stretch of one.
  [[nodiscard]] Part part(std::size_t buffer, Bytes bytes) const { return part(buffer, Bytes(0), bytes); }
  [[nodiscard]] Part part(std::size_t buffer, Bytes offset, Bytes bytes) const {
    return {buffers_[buffer].id(), offset, bytes};
  }

 private:
  DType type_;
  Bytes bytes_;
  std::size_t count_;
  Eager eager_;
  std::vector<Variable> buffers_;
  std::vector<std::size_t> free_;
};

}  // namespace dsplan
