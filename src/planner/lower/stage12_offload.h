// ZeRO-1 and ZeRO-2 with the optimizer on the host (stage_1_and_2.py, DeepSpeedZeroOptimizer with cpu_offload).
//
// Master weights, their gradient, the optimizer's state and a 16-bit copy that travels back are the host's; the device
// keeps the flat parameters and one scratch as large as the largest parameter. Each gradient that touches the partition
// leaves the bucket right after its reduction: to the host's sums between boundaries, in fp32 to the gradient at one.
//
// What is pinned is made pageable and copied (pin_memory), so that both are there for a moment. Zeros that are replaced
// before anyone reads them are allocated and not written.
#pragma once

#include <vector>

#include "planner/lower/stage12_runtime.h"

namespace dsplan {

class Stage12Offload final : public Stage12Runtime {
 public:
  Stage12Offload(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void backward_begins(bool boundary) override;
  void step(bool first) override;

 private:
  // The part of a parameter that lies in this rank's partition, in elements: begin in the parameter, begin in the
  // partition, length.
  struct Fragment {
    std::int64_t source = 0;
    std::int64_t target = 0;
    std::int64_t count = 0;
  };
  // A range of a buffer on the device.
  struct Piece {
    BufferId buffer;
    Bytes offset;
    Bytes bytes;
  };

  void create_master() override;
  void create_gradients() override;
  BufferId own_storage(std::size_t parameter, BufferId gradient) override;
  void let_go(std::size_t parameter, BufferId gradient) override;
  void pad_partition() override {}  // The gradient on the host has its padding from the beginning.
  void keep(std::size_t parameter, BufferId from, std::int64_t offset) override;

  [[nodiscard]] bool pins() const { return zero().offload_optimizer.pin_memory; }
  [[nodiscard]] Fragment fragment_of(std::size_t parameter) const;
  // Host memory that begins as zeros. Where it is pinned `*source` becomes what was pinned, else kNoBuffer; without
  // `source` it goes at once.
  BufferId zeros(Bytes bytes, DType type, Role role, Label label, BufferId* source = nullptr);
  // The same with what `from` holds: it is pinned, and goes, or stays as it is.
  BufferId pinned(BufferId from, DType type, Role role, Label label);
  void copy_to_host(BufferId from, BufferId to);
  void create_scratch();
  [[nodiscard]] bool sums_on_host() const;
  void accumulate_on_host(std::size_t parameter, const Piece& gradient, const Piece& own);
  void take_norm(const Piece& piece, std::size_t parameter);
  void scan(const Piece& gradient);
  void take(const Piece& piece, DType type, const Fragment& fragment);
  void share_norm();
  void update(bool first);
  void bring_master();

  BufferId gradient_ = kNoBuffer;        // On the host, as all of these but the scratch and the norms: `.grad`.
  BufferId staging_ = kNoBuffer;         // param_buffer_of_bit16_for_cpu_offload_groups.
  BufferId staging_source_ = kNoBuffer;  // temp_buffer_bit16, a variable of __init__.
  BufferId scratch_ = kNoBuffer;         // temp_grad_buffer_for_gpu_offload.
  std::vector<BufferId> sums_;           // accumulated_grads_in_cpu, by index into trained_.
  std::vector<BufferId> norms_;          // norm_for_param_grads.
  std::int64_t micro_batch_ = -1;        // micro_step_id: ZeRO-1 counts none.
};

}  // namespace dsplan
