#include "report/write_json.h"

#include <algorithm>

#include "core/format.h"
#include "report/write_value.h"

namespace dsplan {
namespace detail {
namespace {

Json optional(const std::optional<Bytes>& bytes) { return bytes ? Json(bytes->value()) : Json(nullptr); }

void add_roles(Json& into, const ByRole& roles) {
  for (std::size_t i = 0; i < kRoles; ++i) into[std::string(name(static_cast<Role>(i)))] = roles.bytes[i].value();
}

Json roles_value(const ByRole& roles) {
  Json value = Json::object();
  add_roles(value, roles);
  return value;
}

Json live_value(const std::vector<LiveBuffer>& buffers) {
  Json list = Json::array();
  for (const LiveBuffer& buffer : buffers) {
    list.push_back({{"name", buffer.name},
                    {"module", buffer.module},
                    {"role", std::string(name(buffer.role))},
                    {"bytes", buffer.bytes.value()},
                    {"count", buffer.count},
                    {"rule", buffer.rule}});
  }
  return list;
}

Json held_value(const HeldForBackward& held) {
  Json modules = Json::array();
  for (const ModuleBytes& module : held.by_module) {
    modules.push_back({{"module", module.module}, {"bytes", module.bytes.value()}});
  }
  return {{"total", held.by_role.total().value()},
          {"by_role", roles_value(held.by_role)},
          {"by_module", std::move(modules)},
          {"largest", live_value(held.largest)}};
}

Json saved_value(const std::vector<SavedTensor>& saved) {
  Json list = Json::array();
  for (const SavedTensor& tensor : saved) {
    list.push_back({{"node", tensor.node},
                    {"module", tensor.module},
                    {"name", tensor.name},
                    {"tensor", tensor.tensor},
                    {"bytes", tensor.bytes.value()},
                    {"count", tensor.count},
                    {"counted_bytes", tensor.counted.value()},
                    {"storage", std::string(name(tensor.storage))}});
  }
  return list;
}

Json above_value(const AboveInputs& above) {
  return {{"after_forward", above.after_forward.value()},
          {"forward_peak", above.forward_peak.value()},
          {"backward_peak", optional(above.backward_peak)},
          {"after_backward", optional(above.after_backward)}};
}

Json peak_value(const Peak& peak) {
  return {{"requested", peak.requested.value()},
          {"allocated", peak.allocated.value()},
          {"active", peak.active.value()},
          {"reserved", optional(peak.reserved)},
          {"reserved_low", optional(peak.reserved_low)},
          {"process", optional(peak.process)},
          {"process_high", optional(peak.process_high)},
          {"phase", peak.phase},
          {"event", peak.event},
          {"event_index", peak.event_index},
          {"by_role", roles_value(peak.by_role)},
          {"live", live_value(peak.live)}};
}

Json spike_value(const LossSpike& spike) {
  return {{"requested", spike.requested.value()}, {"at", spike.event}, {"live", live_value(spike.live)}};
}

Json pins_value(const std::vector<PinningBlock>& pins) {
  Json list = Json::array();
  for (const PinningBlock& pin : pins) {
    list.push_back({{"name", pin.name},
                    {"module", pin.module},
                    {"role", std::string(name(pin.role))},
                    {"address", pin.address.value()},
                    {"requested", pin.requested.value()},
                    {"size", pin.size.value()}});
  }
  return list;
}

Json fragmentation_value(const Fragmentation& f) {
  Json segments = Json::array();
  for (const PinnedSegment& segment : f.segments) {
    segments.push_back({{"address", segment.address.value()},
                        {"size", segment.size.value()},
                        {"free", segment.free.value()},
                        {"blocks", segment.blocks},
                        {"pins", pins_value(segment.pins)}});
  }
  Json remedies = Json::array();
  for (const AllocatorRemedy& remedy : f.remedies) {
    remedies.push_back({{"conf", remedy.conf},
                        {"reserved", remedy.reserved.value()},
                        {"fits", remedy.fits ? Json(*remedy.fits) : Json()}});
  }
  return {{"event", f.event},
          {"event_index", f.event_index},
          {"reserved", f.reserved.value()},
          {"requested", f.requested.value()},
          {"slack", f.slack.value()},
          {"awaiting", f.awaiting.value()},
          {"inactive_split", f.inactive_split.value()},
          {"cached", f.cached.value()},
          {"segments_in_use", f.segments_in_use},
          {"segments", std::move(segments)},
          {"remedies", std::move(remedies)}};
}

Json arena_value(const PlannedArena& arena) {
  return {{"height", arena.height.value()},
          {"lower_bound", arena.lower_bound.value()},
          {"reserved", arena.reserved.value()},
          {"saved", arena.saved().value()},
          {"buffers", arena.buffers}};
}

Json phases_value(const std::vector<Phase>& phases) {
  Json list = Json::array();
  for (const Phase& phase : phases) {
    Json marks = Json::array();
    for (const PhaseMark& mark : phase.marks) {
      marks.push_back({{"name", mark.name},
                       {"requested", mark.requested.value()},
                       {"allocated", mark.allocated.value()},
                       {"active", mark.active.value()},
                       {"reserved", mark.reserved.value()}});
    }
    Json prints = Json::array();
    for (const PhasePrint& print : phase.prints) {
      prints.push_back({{"name", print.name},
                        {"allocated", print.allocated.value()},
                        {"max_allocated", print.peak_allocated.value()},
                        {"reserved", print.reserved.value()},
                        {"max_reserved", print.peak_reserved.value()}});
    }
    Json parts = Json::array();
    for (const PhasePart& part : phase.parts) {
      parts.push_back({{"name", part.name},
                       {"peak_requested", part.peak.requested.value()},
                       {"peak_allocated", part.peak.allocated.value()},
                       {"peak_active", part.peak.active.value()},
                       {"peak_reserved", part.peak.reserved.value()}});
    }
    list.push_back({{"name", phase.name},
                    {"parts", std::move(parts)},
                    {"marks", std::move(marks)},
                    {"see_memory_usage", std::move(prints)},
                    {"peak_requested", phase.peak_requested.value()},
                    {"peak_allocated", phase.peak_allocated.value()},
                    {"peak_active", phase.peak_active.value()},
                    {"peak_reserved", phase.peak_reserved.value()},
                    {"requested_total", optional(phase.requested_total)},
                    {"allocations", phase.allocations ? Json(*phase.allocations) : Json()},
                    {"host_requested_total", optional(phase.host_requested_total)}});
  }
  return list;
}

Json memory_value(const Prediction& prediction) {
  const States& states = prediction.states;
  Json persistent = {{"total", prediction.persistent.by_role.total().value()}};
  add_roles(persistent, prediction.persistent.by_role);
  persistent["allocated"] = optional(prediction.persistent.allocated);
  const HostMemory& host = prediction.host;
  Json memory;
  memory["states"] = {{"parameters", states.parameters.value()},
                      {"gradients", states.gradients.value()},
                      {"optimizer", states.optimizer.value()},
                      {"total", states.total().value()}};
  memory["persistent"] = std::move(persistent);
  memory["held_for_backward"] = prediction.held_for_backward ? held_value(*prediction.held_for_backward) : Json();
  if (prediction.saved && prediction.held_for_backward) {
    memory["held_for_backward"]["saved"] = saved_value(*prediction.saved);
  }
  memory["peak"] = prediction.peak ? peak_value(*prediction.peak) : Json();
  memory["loss_spike"] = prediction.loss_spike ? spike_value(*prediction.loss_spike) : Json();
  if (prediction.fragmentation) memory["fragmentation"] = fragmentation_value(*prediction.fragmentation);
  if (prediction.arena) memory["planned"] = arena_value(*prediction.arena);
  memory["phases"] = prediction.phases.empty() ? Json() : phases_value(prediction.phases);
  memory["host"] = {{"pinned", optional(host.pinned)},
                    {"pinned_requested", optional(host.pinned_requested)},
                    {"pageable", optional(host.pageable)},
                    {"peak", optional(host.peak)},
                    {"per_node", optional(host.per_node)},
                    {"nvme", optional(host.nvme)},
                    {"nvme_per_node", optional(host.nvme_per_node)},
                    {"nvme_read", optional(host.nvme_read)},
                    {"nvme_written", optional(host.nvme_written)},
                    {"verdict", name(host.verdict)},
                    {"verdict_reason", host.verdict_reason},
                    {"nvme_verdict", name(host.nvme_verdict)},
                    {"nvme_verdict_reason", host.nvme_verdict_reason}};
  return memory;
}

// Estimates have no more digits than they deserve, and the same ones on every machine.
double six_digits(double value) {
  if (value == 0) return 0;
  return std::stod(formatted("{:.6g}", value));
}

Json time_value(const StepTime& time) {
  Json phases = Json::array();
  for (const PhaseTime& phase : time.phases) {
    phases.push_back({{"name", phase.name},
                      {"seconds", six_digits(phase.total())},
                      {"compute_seconds", six_digits(phase.compute)},
                      {"recompute_seconds", six_digits(phase.recompute)},
                      {"launch_seconds", six_digits(phase.launch)},
                      {"exposed_seconds", six_digits(phase.exposed)},
                      {"hidden_seconds", six_digits(phase.hidden)},
                      {"host_seconds", six_digits(phase.host)}});
  }
  return {{"basis", time.basis},
          {"calibrated", time.calibrated},
          {"seconds", six_digits(time.total)},
          {"low_seconds", six_digits(time.low)},
          {"high_seconds", six_digits(time.high)},
          {"tokens_per_second", six_digits(time.tokens_per_second)},
          {"model_flops", six_digits(time.model_flops)},
          {"hardware_flops", six_digits(time.hardware_flops)},
          {"mfu", six_digits(time.mfu)},
          {"hfu", six_digits(time.hfu)},
          {"phases", phases}};
}

Json traffic_value(const std::vector<TrafficRow>& rows) {
  Json list = Json::array();
  for (const TrafficRow& row : rows) {
    list.push_back({{"collective", std::string(name(row.collective))},
                    {"group", std::string(name(row.group))},
                    {"phase", std::string(name(row.phase == Pass::Recompute ? Pass::Backward : row.phase))},
                    {"dtype", std::string(name(row.dtype))},
                    {"kind", row.kind == TrafficKind::Data ? "data" : "control"},
                    {"calls", row.calls},
                    {"payload_bytes", row.payload.value()},
                    {"wire_bytes", row.wire.value()}});
  }
  return list;
}

Json terms_value(const std::vector<TrafficTerm>& terms) {
  Json list = Json::array();
  for (const TrafficTerm& term : terms) {
    list.push_back({{"what", term.what}, {"wire_bytes", term.wire.value()}, {"why", term.why}});
  }
  return list;
}

Json advice_value(const std::vector<Advice>& advice) {
  Json list = Json::array();
  for (const Advice& one : advice) {
    list.push_back({{"rule", one.rule}, {"key", one.key}, {"costs_bytes", one.costs.value()}, {"text", one.text}});
  }
  return list;
}

Json fits_value(Verdict verdict) {
  if (verdict == Verdict::Unknown) return nullptr;
  return verdict != Verdict::DoesNotFit;
}

Json assumptions_value(const Job& job) {
  Json list = Json::array();
  for (const ResolvedInput& input : job.assumptions()) {
    list.push_back({{"name", input.name}, {"value", input.value}, {"reason", input.reason}, {"option", input.option}});
  }
  return list;
}

// Paths of all nulls outside arrays.
void find_nulls(const Json& value, const std::string& path, std::vector<std::string>& into) {
  if (value.is_null()) into.push_back(path);
  if (!value.is_object()) return;
  for (const auto& [key, child] : value.items()) find_nulls(child, path.empty() ? key : path + "." + key, into);
}

bool covers(const std::string& what, const std::string& path) {
  return path == what || (path.size() > what.size() && path.starts_with(what) && path[what.size()] == '.');
}

std::string why_absent(const std::string& path, const Prediction& prediction) {
  if (path == "capacity_bytes" || path == "context_bytes") return "no --hardware, --cluster or --capacity";
  if (path == "fits") return prediction.verdict_reason.empty() ? "the verdict is unknown" : prediction.verdict_reason;
  return "not modelled yet";
}

std::vector<Absence> with_nulls(const Prediction& prediction, const Json& value) {
  std::vector<Absence> all = prediction.not_modelled;
  std::vector<std::string> nulls;
  find_nulls(value, {}, nulls);
  for (const std::string& path : nulls) {
    const bool said = std::any_of(all.begin(), all.end(), [&](const Absence& absence) {
      return covers(absence.what, path) || covers(path, absence.what);
    });
    if (!said) all.push_back({path, why_absent(path, prediction)});
  }
  return all;
}

Json without_absences(const Prediction& prediction, const Job& job) {
  Json value;
  value["schema"] = "dsplan.prediction/1";
  value["fingerprint"] = prediction.fingerprint;
  value["model"] = prediction.model;
  value["world_size"] = prediction.world;
  value["rank"] = prediction.rank;
  value["verdict"] = std::string(name(prediction.verdict));
  value["verdict_reason"] = prediction.verdict_reason;
  value["fits"] = fits_value(prediction.verdict);
  value["retries"] = prediction.retries;
  value["retries_low"] = prediction.retries_low;
  value["capacity_bytes"] = optional(prediction.capacity);
  value["reserve_bytes"] = prediction.reserve.value();
  value["context_bytes"] = optional(prediction.context);
  value["communicators_bytes"] = optional(prediction.communicators);
  value["parameters"] = {{"total", prediction.parameters_total.value()},
                         {"trainable", prediction.parameters_trainable.value()}};
  value["memory"] = memory_value(prediction);
  if (prediction.above_inputs) value["above_inputs"] = above_value(*prediction.above_inputs);
  value["communication"] = prediction.communication ? traffic_value(*prediction.communication) : Json();
  if (!prediction.traffic_terms.empty()) value["traffic_terms"] = terms_value(prediction.traffic_terms);
  value["time"] = prediction.time ? time_value(*prediction.time) : Json();
  value["advice"] = advice_value(prediction.advice);
  value["assumptions"] = assumptions_value(job);
  return value;
}

}  // namespace

Json prediction_value(const Prediction& prediction, const Job& job) {
  Json value = without_absences(prediction, job);
  Json list = Json::array();
  for (const Absence& absence : with_nulls(prediction, value)) {
    list.push_back({{"what", absence.what}, {"why", absence.why}});
  }
  value["not_modelled"] = std::move(list);
  return value;
}

}  // namespace detail

namespace {

// Reasons may quote a user's path, which need not be UTF-8.
std::string text_of(const detail::Json& value) {
  return value.dump(2, ' ', false, detail::Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string prediction_json(const Prediction& prediction, const Job& job) {
  return text_of(detail::prediction_value(prediction, job));
}

std::string predictions_json(const std::vector<Prediction>& predictions, const Job& job) {
  detail::Json value = {{"schema", "dsplan.predictions/1"}, {"ranks", detail::Json::array()}};
  for (const Prediction& prediction : predictions) {
    value["ranks"].push_back(detail::prediction_value(prediction, job));
  }
  return text_of(value);
}

// Nulls inside lists are not looked for, and lists are most of a prediction.
std::vector<Absence> all_absences(const Prediction& prediction, const Job& job) {
  Prediction outline = prediction;
  if (outline.peak) outline.peak->live.clear();
  if (outline.loss_spike) outline.loss_spike->live.clear();
  if (outline.held_for_backward) {
    outline.held_for_backward->by_module.clear();
    outline.held_for_backward->largest.clear();
  }
  if (outline.communication) outline.communication->clear();
  if (!outline.phases.empty()) outline.phases.assign(1, Phase{});
  return detail::with_nulls(prediction, detail::without_absences(outline, job));
}

}  // namespace dsplan
