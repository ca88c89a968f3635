// Options that name something dsplan does not do yet. They are refused, never ignored.
#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {

namespace {

// transformers hands all tokens of all experts to one grouped product, whose sizes depend on tokens times experts per
// token alone (integrations/moe.py): without expert parallelism no rule that drops no token moves a byte.
void resolve_routing(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.routing;
  if (!wished.given()) return;
  if (resolver.model.dims.experts == 0) {
    return resolver.fault(wished.place,
                          formatted("routing \"{}\", but {} has no experts", *wished, resolver.model.name));
  }
  if (*wished != "balanced" && *wished != "worst") {
    return resolver.not_modelled(wished.place, formatted("expert routing \"{}\"", *wished));
  }
  resolver.given("routing", *wished, wished.place, "--routing");
  resolver.announce(wished.place, "routing moves no byte: one grouped product takes the tokens of all experts");
}

}  // namespace

void refuse_unmodelled_options(Resolver& resolver) {
  const Request& request = resolver.request;
  const auto refuse = [&resolver](const auto& setting, std::string_view what) {
    if (setting.given()) resolver.not_modelled(setting.place, what);
  };
  const auto refuse_degree = [&resolver](const Setting<std::int64_t>& degree, std::string_view what) {
    if (degree.value_or(1) > 1) resolver.not_modelled(degree.place, formatted("{} = {}", what, *degree));
  };
  resolve_routing(resolver);
  refuse(request.sweep, "a sweep");
  refuse(request.env, "an environment file");
  refuse_degree(request.sp, "sequence parallelism, sp");
  refuse_degree(request.ep, "expert parallelism, ep");
  if (resolver.deepspeed() && request.param_groups.value_or("single") != "single") {
    resolver.not_modelled(request.param_groups.place,
                          formatted("param_groups \"{}\" under DeepSpeed", *request.param_groups));
  }
}

}  // namespace dsplan
