// How a task of the program reaches the device: its byte ranges become pieces of this rank's memory, its body becomes a
// launch on the current stream, and single numbers travel between the host and the device.
#pragma once

#include <span>
#include <vector>

#include "exec/device.h"
#include "exec/memory/memory.h"
#include "exec/runner/flat.h"
#include "exec/runner/rank_plan.h"

namespace dsplan::exec {

// What a body is given beside tensors.
struct Parameters {
  std::span<const std::int64_t> integers;
  std::span<const double> numbers;
  dsplan_random random{};
};

// Points to what it was made of.
[[nodiscard]] dsplan_launch launch_of(Body body, std::span<const dsplan_tensor> in, std::span<const dsplan_tensor> made,
                                      const Parameters& parameters = {});

class Launcher {
 public:
  // All must outlive this.
  Launcher(const RankPlan& plan, Device& device, const RankMemory& memory)
      : plan_(plan), device_(device), memory_(memory), scratch_(device, Space::Device, Bytes(kBlockBytes)) {}

  // What the ranges of a task name, in order. `zeros`: the dtype in which stretches of no buffer are counted.
  [[nodiscard]] std::vector<Piece> pieces(Span ranges, DType zeros = DType::UInt8) const;
  [[nodiscard]] Piece piece(const ByteRange& range) const;  // Of a buffer.

  void launch(Body body, std::span<const Piece> in, std::span<const Piece> made, const Parameters& parameters = {});
  // As many bytes as `to` has; both have one dtype.
  void copy(const Piece& from, const Piece& to);

  // These wait until the bytes are there.
  void write(const Piece& target, const void* values, std::int64_t bytes);
  void read(const Piece& source, void* values, std::int64_t bytes);
  [[nodiscard]] double number_at(const Piece& piece);
  void put_number(double value, const Piece& piece);

  // One element of the device's memory for kernels that make a number. It is the executor's own, and not among the
  // plan's bytes; whoever uses it has read it before the next one does.
  [[nodiscard]] Piece scratch(DType dtype) const { return {scratch_.data(), dtype, 1, Space::Device}; }

 private:
  const RankPlan& plan_;
  Device& device_;
  const RankMemory& memory_;
  DeviceBlock scratch_;
};

}  // namespace dsplan::exec
