// ZeRO-1 and ZeRO-2: how parameters come into the flat buffer (stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__).
#include <utility>

#include "planner/lower/stage12_runtime.h"

namespace dsplan {

// Since 0.18.7 on the device, where there is room for both; before, through the host.
void Stage12Runtime::flatten_parameters() {
  const std::int64_t elements = offset_.back() + trained_.back().elements;
  if (!flattens_on_device(training())) return flatten_on_host(elements);
  const char* device = training().deepspeed < Version{0, 19, 0} ? "GPU" : "cuda";
  flat_ = flatten_trained(whole_, elements, padded_,
                          {std::string("After flattening param group 0 on ") + device,
                           "After Flattening and after emptying param group 0 cache"});
}

// Each parameter goes to the host, and until they are views of the flat buffer one number on the device stands for it.
void Stage12Runtime::flatten_on_host(std::int64_t elements) {
  print("Before moving param group 0 to CPU");
  std::vector<BufferId> away;
  std::vector<BufferId> stand_ins;
  for (const Leaf& leaf : trained_) {
    const BufferId whole = std::exchange(whole_[at(leaf.id)], kNoBuffer);
    away.push_back(emitter_.allocate(emitter_.size(whole), dtype(), Role::Parameters, "parameter on the host", leaf.id,
                                     false, Space::Pageable));
    emitter_.begin();
    emitter_.read(whole);
    emitter_.write(away.back());
    emitter_.compute("copy to host");
    emitter_.release(whole, Reason::LastUse);
    stand_ins.push_back(
        emitter_.allocate(Bytes(4), DType::Float32, Role::Temporaries, "stand-in of a parameter on the host"));
    emitter_.mark_scratch(stand_ins.back());
    emitter_.begin();
    emitter_.write(stand_ins.back());
    emitter_.compute("stand-in");
  }
  print("After moving param group 0 to CPU");
  BufferId zeros = kNoBuffer;
  if (padded_ > elements) {
    zeros = emitter_.allocate(in_model_dtype(padded_ - elements), dtype(), Role::Temporaries,
                              "padding of flat parameters", kNone, false, Space::Pageable);
    emitter_.begin();
    emitter_.write(zeros);
    emitter_.compute("zero padding");
  }
  const BufferId joined = emitter_.allocate(in_model_dtype(padded_), dtype(), Role::Parameters,
                                            "flat parameters on the host", kNone, false, Space::Pageable);
  emitter_.begin();
  read_all(away);
  if (zeros != kNoBuffer) emitter_.read(zeros);
  emitter_.write(joined);
  emitter_.compute("flatten parameters");
  if (zeros != kNoBuffer) emitter_.release(zeros, Reason::LastUse);
  for (const BufferId buffer : away) emitter_.release(buffer, Reason::LastUse);
  flat_ = move_to_device(emitter_, joined, Role::Parameters, "flat parameters");
  print("After flattening and moving param group 0 to GPU");
  print("After Flattening and after emptying param group 0 cache");
  for (const BufferId buffer : stand_ins) emitter_.release(buffer, Reason::PythonFrame);
}

}  // namespace dsplan
