// Keys of the training file that --set takes as well.
#include <algorithm>
#include <array>

#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {
namespace {

// What --set says of `key`; the last one counts.
Setting<std::string> set_of(const Resolver& resolver, std::string_view key) {
  Setting<std::string> value;
  if (!resolver.request.set.given()) return value;
  for (const std::string& pair : *resolver.request.set) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || std::string_view(pair).substr(0, equals) != key) continue;
    value = {pair.substr(equals + 1), resolver.request.set.place};
  }
  return value;
}

void refuse_other_keys(Resolver& resolver) {
  constexpr std::array<std::string_view, 2> kKeys = {"zero_grad_set_to_none", "model_init"};
  if (!resolver.request.set.given()) return;
  for (const std::string& pair : *resolver.request.set) {
    const std::string_view key = std::string_view(pair).substr(0, pair.find('='));
    if (pair.find('=') != std::string::npos && std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    resolver.not_modelled(resolver.request.set.place, formatted("setting \"{}\"", pair));
  }
}

// zero_grad(set_to_none).
void resolve_zero_grad(Resolver& resolver) {
  Setting<bool> wished = resolver.request.zero_grad_set_to_none;
  if (const Setting<std::string> said = set_of(resolver, "zero_grad_set_to_none"); said.given()) {
    if (*said != "true" && *said != "false") {
      return resolver.fault(said.place, formatted("\"zero_grad_set_to_none={}\" is neither true nor false", *said));
    }
    wished = {*said == "true", said.place};
  }
  if (!wished.given()) return;
  if (resolver.deepspeed() && !*wished) {
    return resolver.not_modelled(wished.place, "zero_grad(set_to_none=False) under DeepSpeed");
  }
  resolver.training().zero_grad_to_none = *wished;
  resolver.given("zero_grad_set_to_none", *wished ? "true" : "false", wished.place, "--training");
}

// Where the model is made. Which of them a script does no file says; under plain PyTorch, and below ZeRO-3, only the
// host's memory depends on it.
void resolve_model_init(Resolver& resolver) {
  const Setting<std::string> said = set_of(resolver, "model_init");
  const Setting<std::string>& wished = said.given() ? said : resolver.request.model_init;
  const bool cuts = resolver.deepspeed() && resolver.stage() == 3;
  Training& training = resolver.training();
  training.model_init = cuts ? ModelInit::ZeroInit : ModelInit::Device;
  if (!wished.given()) {
    if (!resolver.deepspeed()) return;
    resolver.assumed("model_init", std::string(name(training.model_init)),
                     cuts ? "built under zero.Init; else it is whole on each rank first"
                          : "made on the device; else it is in the host's memory first",
                     "--training");
    return;
  }
  for (const ModelInit one : {ModelInit::ZeroInit, ModelInit::Device, ModelInit::Host}) {
    if (*wished != name(one)) continue;
    if (one == ModelInit::ZeroInit && !cuts) {
      return resolver.fault(wished.place, "model_init \"zero_init\" without ZeRO stage 3",
                            "zero.Init cuts parameters as stage 3 does; below it there is nothing to cut");
    }
    training.model_init = one;
    return resolver.given("model_init", *wished, wished.place, "--training");
  }
  resolver.fault(wished.place, formatted("model_init \"{}\" is none of zero_init, device and host", *wished));
}

}  // namespace

void resolve_settings(Resolver& resolver) {
  refuse_other_keys(resolver);
  resolve_zero_grad(resolver);
  resolve_model_init(resolver);
}

}  // namespace dsplan
