#include "planner/predict/live_buffers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/format.h"
#include "sim/memory.h"

namespace dsplan {
namespace {

const std::string kNowhere;

ModuleId module_of(const ModelSpec& model, const Buffer& buffer) {
  if (buffer.parameter != kNone) return model.parameter_at(buffer.parameter).module;
  return buffer.module;
}

// The module that sums stand under: the layer, or the module itself outside of layers.
std::string summed_under(const ModelSpec& model, ModuleId module) {
  while (module != kNone) {
    const Module& m = model.module_at(module);
    const bool is_layer = m.layer != kNone && (m.parent == kNone || model.module_at(m.parent).layer == kNone);
    if (m.layer == kNone || is_layer) return m.path;
    module = m.parent;
  }
  return kNowhere;
}

std::size_t mark_of(const Schedule& schedule, Moment moment) {
  for (std::size_t at = schedule.events.size(); at-- > 0;) {
    const auto* mark = std::get_if<Mark>(&schedule.events[at]);
    if (mark != nullptr && mark->stretch == Stretch::SecondStep && mark->moment == moment) return at;
  }
  return 0;
}

}  // namespace

std::string module_path(const ModelSpec& model, const Buffer& buffer) {
  const ModuleId module = module_of(model, buffer);
  return module == kNone ? kNowhere : model.module_at(module).path;
}

std::string in_every_layer(const ModelSpec& model, ModuleId module) {
  if (module == kNone) return kNowhere;
  const Module& m = model.module_at(module);
  std::string path = m.path;
  if (m.layer == kNone) return path;
  const std::string number = std::to_string(m.layer);
  for (std::size_t at = path.find(number); at != std::string::npos; at = path.find(number, at + 1)) {
    const bool alone =
        (at == 0 || path[at - 1] == '.') && (at + number.size() == path.size() || path[at + number.size()] == '.');
    if (!alone) continue;
    path.replace(at, number.size(), "*");
    break;
  }
  return path;
}

std::vector<LiveBuffer> group_live(const Schedule& schedule, const ModelSpec& model,
                                   const std::vector<BufferId>& live) {
  using Key = std::tuple<std::string_view, std::string, Role, std::int64_t>;
  // Names are made once per module, not per buffer.
  std::vector<std::string> names(model.modules.size() + 1);
  std::vector<bool> named(model.modules.size() + 1, false);
  struct Alike {
    std::int64_t count = 0;
    std::string_view rule;  // Who makes them; the first that says so speaks for all.
  };
  std::map<Key, Alike> groups;
  for (BufferId id : live) {
    const Buffer& buffer = schedule.buffers[id];
    const ModuleId module = module_of(model, buffer);
    const auto slot = static_cast<std::size_t>(module + 1);
    if (!named[slot]) {
      names[slot] = in_every_layer(model, module);
      named[slot] = true;
    }
    Alike& alike = groups[{buffer.label, names[slot], buffer.role, buffer.size.value()}];
    ++alike.count;
    if (alike.rule.empty()) alike.rule = buffer.source;
  }
  std::vector<LiveBuffer> rows;
  for (const auto& [key, alike] : groups) {
    const auto& [label, module, role, size] = key;
    rows.push_back({std::string(label), module, role, Bytes(size), alike.count, std::string(alike.rule)});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const LiveBuffer& a, const LiveBuffer& b) { return a.bytes * a.count > b.bytes * b.count; });
  if (rows.size() > 40) rows.resize(40);
  return rows;
}

HeldForBackward held_for_backward(const Schedule& schedule, const ModelSpec& model) {
  const std::size_t begins = mark_of(schedule, Moment::BackwardBegins);
  const std::size_t step_begins = std::min(begins, mark_of(schedule, Moment::StretchBegins));
  // Made since the step began, still there, and not part of what survives it.
  Indexed<BufferId, bool> held(schedule.buffers.size(), false);
  for (std::size_t at = step_begins; at < begins; ++at) {
    if (const auto* made = std::get_if<Allocate>(&schedule.events[at])) held[made->buffer] = true;
    if (const auto* freed = std::get_if<Release>(&schedule.events[at])) held[freed->buffer] = false;
  }
  for (BufferId survivor : schedule.survivors) held[survivor] = false;
  std::vector<BufferId> list;
  for (const BufferId id : held.ids()) {
    if (held[id] && schedule.buffers[id].space == Space::Device) list.push_back(id);
  }
  return held_in(schedule, model, list);
}

HeldForBackward held_in(const Schedule& schedule, const ModelSpec& model, const std::vector<BufferId>& list) {
  HeldForBackward result;
  std::map<std::string, Bytes> by_module;
  for (BufferId id : list) {
    const Buffer& buffer = schedule.buffers[id];
    result.by_role[buffer.role] += buffer.size;
    by_module[summed_under(model, module_of(model, buffer))] += buffer.size;
  }
  result.largest = group_live(schedule, model, list);
  for (const auto& [module, bytes] : by_module) result.by_module.push_back({module, bytes});
  std::stable_sort(result.by_module.begin(), result.by_module.end(),
                   [](const ModuleBytes& a, const ModuleBytes& b) { return a.bytes > b.bytes; });
  return result;
}

LossSpike loss_spike(const Schedule& schedule, const ModelSpec& model) {
  const auto counts = [&](BufferId id) {
    const Buffer& buffer = schedule.buffers[id];
    return buffer.of_loss && buffer.role != Role::Inputs && buffer.space == Space::Device;  // The loss itself is not.
  };
  LossSpike spike;
  Bytes now;
  std::size_t when = 0;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    if (const auto* freed = std::get_if<Release>(&schedule.events[at])) {
      if (counts(freed->buffer)) now -= schedule.buffers[freed->buffer].size;
    }
    const auto* made = std::get_if<Allocate>(&schedule.events[at]);
    if (made == nullptr || !counts(made->buffer)) continue;
    now += schedule.buffers[made->buffer].size;
    if (now <= spike.requested) continue;
    spike.requested = now;
    when = at;
  }
  if (spike.requested == Bytes(0)) return spike;
  std::vector<BufferId> live = live_after(schedule, when);
  std::erase_if(live, [&](BufferId id) { return !counts(id); });
  spike.live = group_live(schedule, model, live);
  spike.event = describe_moment(schedule, model, when);
  return spike;
}

}  // namespace dsplan
