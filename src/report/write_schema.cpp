// The schema of "dsplan.prediction/1". It is written by hand beside the writer, and a test walks both.
#include <initializer_list>
#include <utility>

#include "report/write_json.h"
#include "report/write_value.h"

namespace dsplan {
namespace {

using detail::Json;

struct Field {
  const char* key;
  Json type;
};

Json typed(const char* type) { return {{"type", type}}; }
Json count() { return {{"type", "integer"}, {"minimum", 0}}; }
Json count_or_null() { return {{"type", {"integer", "null"}}, {"minimum", 0}}; }
Json one_of(std::initializer_list<const char*> names) {
  return {{"enum", Json(std::vector<std::string>(names.begin(), names.end()))}};
}
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json or_null(Json type) {
  type["type"] = Json::array({type["type"], "null"});
  return type;
}

Json object(std::initializer_list<Field> fields) {
  Json value = {{"type", "object"}, {"additionalProperties", false}, {"required", Json::array()}};
  value["properties"] = Json::object();
  for (const Field& field : fields) {
    value["required"].push_back(field.key);
    value["properties"][field.key] = field.type;
  }
  return value;
}

// Keys that only some predictions have.
Json with_optional(Json value, std::initializer_list<Field> fields) {
  for (const Field& field : fields) value["properties"][field.key] = field.type;
  return value;
}

Json roles() {
  return object({{"parameters", count()},
                 {"gradients", count()},
                 {"optimizer", count()},
                 {"runtime_buffers", count()},
                 {"activations", count()},
                 {"temporaries", count()},
                 {"inputs", count()},
                 {"module_buffers", count()},
                 {"workspace", count()}});
}

// Seconds, or a part of one.
Json real() { return {{"type", "number"}, {"minimum", 0}}; }

Json step_time() {
  const Json phase = object({{"name", one_of({"forward", "backward", "step"})},
                             {"seconds", real()},
                             {"compute_seconds", real()},
                             {"recompute_seconds", real()},
                             {"launch_seconds", real()},
                             {"exposed_seconds", real()},
                             {"hidden_seconds", real()},
                             {"host_seconds", real()}});
  return or_null(object({{"basis", typed("string")},
                         {"calibrated", typed("boolean")},
                         {"seconds", real()},
                         {"low_seconds", real()},
                         {"high_seconds", real()},
                         {"tokens_per_second", real()},
                         {"model_flops", real()},
                         {"hardware_flops", real()},
                         {"mfu", real()},
                         {"hfu", real()},
                         {"phases", list_of(phase)}}));
}

Json live() {
  return list_of(object({{"name", typed("string")},
                         {"module", typed("string")},
                         {"role", typed("string")},
                         {"bytes", count()},
                         {"count", count()},
                         {"rule", typed("string")}}));
}

Json persistent() {
  Json value = object({{"total", count()}});
  const Json all = roles();
  for (const auto& [key, type] : all["properties"].items()) {
    value["required"].push_back(key);
    value["properties"][key] = type;
  }
  value["required"].push_back("allocated");
  value["properties"]["allocated"] = count_or_null();
  return value;
}

Json held() {
  const Json saved = object({{"node", typed("string")},
                             {"module", typed("string")},
                             {"name", typed("string")},
                             {"tensor", typed("string")},
                             {"bytes", count()},
                             {"count", count()},
                             {"counted_bytes", count()},
                             {"storage", one_of({"own", "shared", "parameter"})}});
  return or_null(
      with_optional(object({{"total", count()},
                            {"by_role", roles()},
                            {"by_module", list_of(object({{"module", typed("string")}, {"bytes", count()}}))},
                            {"largest", live()}}),
                    {{"saved", list_of(saved)}}));
}

Json above_inputs() {
  return object({{"after_forward", count()},
                 {"forward_peak", count()},
                 {"backward_peak", count_or_null()},
                 {"after_backward", count_or_null()}});
}

Json peak() {
  return or_null(object({{"requested", count()},
                         {"allocated", count()},
                         {"active", count()},
                         {"reserved", count_or_null()},
                         {"reserved_low", count_or_null()},
                         {"process", count_or_null()},
                         {"process_high", count_or_null()},
                         {"phase", typed("string")},
                         {"event", typed("string")},
                         {"event_index", count()},
                         {"by_role", roles()},
                         {"live", live()}}));
}

Json loss_spike() { return or_null(object({{"requested", count()}, {"at", typed("string")}, {"live", live()}})); }

Json phases() {
  const Json mark = object({{"name", typed("string")},
                            {"requested", count()},
                            {"allocated", count()},
                            {"active", count()},
                            {"reserved", count()}});
  // As DeepSpeed's lines have them: MA, Max_MA, CA and Max_CA.
  const Json print = object({{"name", typed("string")},
                             {"allocated", count()},
                             {"max_allocated", count()},
                             {"reserved", count()},
                             {"max_reserved", count()}});
  // All micro-batches of the phase together.
  const Json part = object({{"name", typed("string")},
                            {"peak_requested", count()},
                            {"peak_allocated", count()},
                            {"peak_active", count()},
                            {"peak_reserved", count()}});
  return or_null(list_of(object({{"name", typed("string")},
                                 {"parts", list_of(part)},
                                 {"marks", list_of(mark)},
                                 {"see_memory_usage", list_of(print)},
                                 {"peak_requested", count()},
                                 {"peak_allocated", count()},
                                 {"peak_active", count()},
                                 {"peak_reserved", count()},
                                 {"requested_total", count_or_null()},
                                 {"allocations", count_or_null()},
                                 {"host_requested_total", count_or_null()}})));
}

// Only with --explain fragmentation.
Json fragmentation() {
  const Json pin = object({{"name", typed("string")},
                           {"module", typed("string")},
                           {"role", typed("string")},
                           {"address", count()},
                           {"requested", count()},
                           {"size", count()}});
  const Json segment =
      object({{"address", count()}, {"size", count()}, {"free", count()}, {"blocks", count()}, {"pins", list_of(pin)}});
  const Json remedy =
      object({{"conf", typed("string")}, {"reserved", count()}, {"fits", Json{{"type", {"boolean", "null"}}}}});
  return object({{"event", typed("string")},
                 {"event_index", count()},
                 {"reserved", count()},
                 {"requested", count()},
                 {"slack", count()},
                 {"awaiting", count()},
                 {"inactive_split", count()},
                 {"cached", count()},
                 {"segments_in_use", count()},
                 {"segments", list_of(segment)},
                 {"remedies", list_of(remedy)}});
}

// Only with --placement planned. `saved` is negative where the plan takes more.
Json planned() {
  return object({{"height", count()},
                 {"lower_bound", count()},
                 {"reserved", count()},
                 {"saved", typed("integer")},
                 {"buffers", count()}});
}

Json memory() {
  Json value =
      object({{"states",
               object({{"parameters", count()}, {"gradients", count()}, {"optimizer", count()}, {"total", count()}})},
              {"persistent", persistent()},
              {"held_for_backward", held()},
              {"peak", peak()},
              {"loss_spike", loss_spike()},
              {"phases", phases()},
              {"host", object({{"pinned", count_or_null()},
                               {"pinned_requested", count_or_null()},
                               {"pageable", count_or_null()},
                               {"peak", count_or_null()},
                               {"per_node", count_or_null()},
                               {"nvme", count_or_null()},
                               {"nvme_per_node", count_or_null()},
                               {"nvme_read", count_or_null()},
                               {"nvme_written", count_or_null()},
                               {"verdict", one_of({"fits", "does_not_fit", "unknown"})},
                               {"verdict_reason", typed("string")},
                               {"nvme_verdict", one_of({"fits", "does_not_fit", "unknown"})},
                               {"nvme_verdict_reason", typed("string")}})}});
  value["properties"]["fragmentation"] = fragmentation();
  value["properties"]["planned"] = planned();
  return value;
}

Json communication() {
  return or_null(list_of(object({{"collective", one_of({"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                        "reduce", "all_to_all", "send_recv"})},
                                 {"group", one_of({"dp", "tp", "sp", "ep", "dp_intra", "dp_inter"})},
                                 {"phase", one_of({"init", "forward", "backward", "step", "save"})},
                                 {"dtype", typed("string")},
                                 {"kind", one_of({"data", "control"})},
                                 {"calls", count()},
                                 {"payload_bytes", count()},
                                 {"wire_bytes", count()}})));
}

}  // namespace

std::string prediction_schema() {
  const Json assumption = object({{"name", typed("string")},
                                  {"value", typed("string")},
                                  {"reason", typed("string")},
                                  {"option", typed("string")}});
  const Json advice = object(
      {{"rule", typed("string")}, {"key", typed("string")}, {"costs_bytes", count()}, {"text", typed("string")}});
  const Json body = object({{"schema", one_of({"dsplan.prediction/1"})},
                            {"fingerprint", typed("string")},
                            {"model", typed("string")},
                            {"world_size", count()},
                            {"rank", count()},
                            {"verdict", one_of({"fits", "fits_with_retries", "does_not_fit", "unknown"})},
                            {"verdict_reason", typed("string")},
                            {"fits", Json{{"type", {"boolean", "null"}}}},
                            {"retries", count()},
                            {"retries_low", count()},
                            {"capacity_bytes", count_or_null()},
                            {"reserve_bytes", count()},
                            {"context_bytes", count_or_null()},
                            {"communicators_bytes", count_or_null()},
                            {"parameters", object({{"total", count()}, {"trainable", count()}})},
                            {"memory", memory()},
                            {"communication", communication()},
                            {"time", step_time()},
                            {"advice", list_of(advice)},
                            {"assumptions", list_of(assumption)},
                            {"not_modelled", list_of(object({{"what", typed("string")}, {"why", typed("string")}}))}});
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "dsplan.prediction/1"},
                 {"description",
                  "What `dsplan simulate --format json` prints; with --rank all these are the items of \"ranks\" in "
                  "{\"schema\": \"dsplan.predictions/1\", \"ranks\": [...]}. All sizes are bytes of one rank."}};
  const Json terms =
      list_of(object({{"what", typed("string")}, {"wire_bytes", typed("integer")}, {"why", typed("string")}}));
  schema.update(with_optional(body, {{"above_inputs", above_inputs()}, {"traffic_terms", terms}}));
  return schema.dump(2) + "\n";
}

}  // namespace dsplan
