#include "planner/lower/runtimes/model_loading.h"

#include <utility>

#include "planner/lower/runtime.h"

namespace dsplan {
namespace {

// peft's, which come to a model that is there.
bool is_adapter(const Parameter& parameter) { return parameter.name.find(".lora_") != std::string::npos; }

}  // namespace

void ModelLoading::build_on_host() {
  on_host_.resize(parameters_);
  for (const NamedParameter& p : named_) {
    Variable made = eager_.empty(storage(Elements(p.elements), p.dtype), p.dtype,
                                 {Role::Parameters, "parameter on the host"}, p.id, Space::Pageable);
    eager_.work().write(made).run(Body::LoadParameter, "load parameter");
    on_host_[static_cast<std::size_t>(p.id)] = std::move(made);
  }
}

Variable ModelLoading::make(const Parameter& parameter, ParameterId id, What what) {
  const DType dtype = training_.dtype_of(parameter);
  Variable made = eager_.empty(storage(parameter.shape.elements(), dtype), dtype, what, id);
  eager_.work().write(made).run(Body::LoadParameter, "load parameter");
  return made;
}

void ModelLoading::build_on_device(const ModelSpec& model, const std::function<void(ModuleId)>& buffers_of) {
  constexpr What kTied{Role::Parameters, "weight of its own, until it is tied", "modeling_utils.py, tie_weights"};
  on_device_.resize(parameters_);
  Variables tied;
  const auto make_all = [&](bool adapters) {
    std::size_t next = 0;  // Parameters are in their modules' order.
    for (std::size_t module = 0; module < model.modules.size(); ++module) {
      for (; next < parameters_ && static_cast<std::size_t>(model.parameters[next].module) == module; ++next) {
        const Parameter& parameter = model.parameters[next];
        const auto id = static_cast<ParameterId>(next);
        if (is_adapter(parameter) != adapters) continue;
        if (parameter.tied_to == kNone) {
          on_device_[next] = make(parameter, id, {Role::Parameters, "parameter"});
        } else if (training_.zero.stage == 0) {  // ZeRO gives the hole that it leaves back (empty_cache).
          tied.append(make(parameter, id, kTied));
          eager_.emitter().mark_scratch(tied.ids().back());
        }
      }
      if (!adapters) buffers_of(static_cast<ModuleId>(module));
    }
    tied.reset();
  };
  make_all(false);
  make_all(true);
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
  if (!on_device_.empty()) {
    Variable made = std::move(on_device_[static_cast<std::size_t>(p.id)]);
    eager_.emitter().rename(made.id(), what);
    return made;
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
