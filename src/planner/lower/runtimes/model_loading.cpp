#include "planner/lower/runtimes/model_loading.h"

#include <utility>

#include "planner/lower/runtime.h"

namespace dsplan {

void ModelLoading::build_on_host() {
  on_host_.resize(parameters_);
  for (const NamedParameter& p : named_) {
    Variable made = eager_.empty(storage(Elements(p.elements), p.dtype), p.dtype,
                                 {Role::Parameters, "parameter on the host"}, p.id, Space::Pageable);
    eager_.work().write(made).run(Body::LoadParameter, "load parameter");
    on_host_[static_cast<std::size_t>(p.id)] = std::move(made);
  }
}

void ModelLoading::print_model_given() {
  if (training_.runtime != Runtime::DeepSpeed) return;
  eager_.emitter().print("DeepSpeed Engine: After args sanity test");
  eager_.emitter().print("DeepSpeed Engine: Before configure distributed model");
}

std::vector<BufferId> ModelLoading::give_to_engine(What what) {
  std::vector<BufferId> whole(parameters_, kNoBuffer);
  const auto load_all = [&] {
    for (const NamedParameter& p : named_) whole[static_cast<std::size_t>(p.id)] = load(p, what).hand_over();
  };
  const bool moves = !on_host_.empty();
  if (!moves) load_all();
  print_model_given();
  if (moves) load_all();  // self.module.to(self.device)
  for (const NamedParameter& p : named_) broadcast(whole[static_cast<std::size_t>(p.id)], training_.dtype);
  if (training_.runtime == Runtime::DeepSpeed) {
    eager_.emitter().print("DeepSpeed Engine: After configure distributed model");
  }
  return whole;
}

Variable ModelLoading::load(const NamedParameter& p, What what) {
  if (!on_host_.empty()) {
    const BufferId source = on_host_[static_cast<std::size_t>(p.id)].hand_over();
    return {eager_.emitter(), move_to_device(eager_.emitter(), source, what, p.id)};
  }
  Variable made = eager_.empty(storage(Elements(p.elements), p.dtype), p.dtype, what, p.id);
  eager_.work().write(made).run(Body::LoadParameter, "load parameter");
  return made;
}

void ModelLoading::broadcast(BufferId buffer, DType type) {
  if (ranks_ == 1) return;
  const bool as_bytes = training_.runtime == Runtime::DeepSpeed && training_.deepspeed >= Version{0, 19, 8};
  eager_.work().read(buffer).write(buffer).collective(Collective::Broadcast, as_bytes ? DType::UInt8 : type,
                                                      eager_.emitter().size(buffer));
}

}  // namespace dsplan
