// What deepspeed.checkpointing.checkpoint keeps of its arguments (runtime/activation_checkpointing/checkpointing.py of
// DeepSpeed 0.19.8), beside what the tape does for any reentrant checkpoint: slots that all checkpoints of one forward
// share, and the engine that copies arguments to the host while later layers run (offload_activations.py).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"

namespace dsplan {

// Before this version cpu_checkpointing without partitioning made blocking copies in pageable memory.
inline constexpr Version kAsynchronousOffload{0, 19, 6};

// _ActivationOffloadEngine: the newest argument stays on the device, the one before it until the next comes, all older
// ones are on the host, in pinned buffers that a pool of 64 keeps for the next forward.
class ActivationOffload {
 public:
  // `used`: only then does it take a stream.
  ActivationOffload(Emitter& emitter, bool used) : emitter_(emitter) {
    if (used) emitter_.use_streams();
  }

  // Takes a reference of its own on `argument`. Returns what `restore` wants.
  std::uint64_t offload(BufferId argument);
  // The argument, or a copy of it; its one reference passes to the caller.
  [[nodiscard]] BufferId restore(std::uint64_t token);

 private:
  void start(std::uint64_t token, BufferId argument, std::uint64_t newest);
  [[nodiscard]] BufferId host_buffer(BufferId like);
  [[nodiscard]] BufferId bring_back(BufferId host);
  void pool(BufferId host);

  Emitter& emitter_;
  std::uint64_t newest_ = 0;
  std::map<std::uint64_t, BufferId> kept_;  // On the device, not yet under way.
  struct Leaving {
    BufferId argument = kNoBuffer;
    std::optional<ContentId> copied;  // The event behind its copy.
  };
  std::map<std::uint64_t, Leaving> stash_;     // On the device, with a copy under way.
  std::map<std::uint64_t, BufferId> tracked_;  // On the host.
  std::deque<BufferId> pool_;
};

class DeepSpeedCheckpoints {
 public:
  // `asynchronous`: the engine serves cpu_checkpointing without partitioning (0.19.6 and later).
  // `ranks`: the model-parallel size, over which partition_activations cuts.
  DeepSpeedCheckpoints(const DeepSpeedCheckpointing& config, bool asynchronous, std::int64_t ranks, Emitter& emitter)
      : config_(config),
        asynchronous_(asynchronous),
        ranks_(ranks),
        emitter_(emitter),
        engine_(emitter, asynchronous && config.cpu && !config.partition) {}

  // One argument of one checkpoint: what stands for it until backward.
  struct Stored {
    BufferId kept = kNoBuffer;   // The slice, its slot, or the copy on the host. One reference.
    BufferId sizes = kNoBuffer;  // The host's note of its shape. One reference.
    std::uint64_t token = 0;     // Of the engine.
  };

  // Whether arguments lose their storage after the forward.
  [[nodiscard]] bool empties() const { return config_.partition || config_.cpu; }
  // Before the function runs: `position` counts the floating-point arguments of the call.
  [[nodiscard]] Stored store(BufferId argument, std::size_t position);
  // All of one call have been: the function's variable goes, which held the last slice that was copied to a slot.
  void arguments_stored();
  // After it has run and before the argument is emptied.
  void stored(BufferId argument, Stored& one, std::size_t position, std::size_t rank);
  // The first backward drops the lists of slots; what a checkpoint still needs, it holds itself.
  void backward_begins();
  // What the argument is again, with one reference; what stood for it goes.
  [[nodiscard]] BufferId restore(Stored& one);
  // Whether that is this rank's slice alone; then, once every argument of the call is back, the whole, with one
  // reference. The slice is the caller's to release.
  [[nodiscard]] bool gathers() const { return config_.partition && ranks_ > 1; }
  [[nodiscard]] BufferId gather(BufferId part, DType dtype);
  // It is not needed after all.
  void forget(Stored& one);

 private:
  [[nodiscard]] BufferId to_host(BufferId from);
  [[nodiscard]] Variable partition_of(BufferId argument);
  [[nodiscard]] std::int64_t tensor_rank() const;  // That a recording is of.
  [[nodiscard]] BufferId take_slot(BufferId part, std::size_t position);
  void note_sizes(Stored& one, std::size_t position, std::size_t rank);

  const DeepSpeedCheckpointing& config_;
  bool asynchronous_;
  std::int64_t ranks_;
  Emitter& emitter_;
  ActivationOffload engine_;
  // By position: the slots of all checkpoints to come, and how many are taken.
  struct Slots {
    std::vector<BufferId> buffers;
    std::size_t taken = 0;
    BufferId sizes = kNoBuffer;
  };
  std::vector<Slots> slots_;
  BufferId frame_ = kNoBuffer;
};

}  // namespace dsplan
