#include "report/plan_file.h"

#include "core/format.h"
#include "io/fields.h"
#include "io/own_file.h"
#include "report/kept_figures.h"

namespace dsplan {
namespace {

// Seconds; no phases and no rates.
void describe_time(Fields& fields, StepTime& time) {
  fields("total", time.total);
  fields("low", time.low);
  fields("high", time.high);
  fields("tokens_per_second", time.tokens_per_second);
  fields("calibrated", time.calibrated);
  fields("basis", time.basis);
}

// A plan is whole: what would be read from other files stands in parts of its own.
void refuse_named_files(ObjectReader& reader, const Value& training) {
  for (const char* key : {"deepspeed", "hardware", "cluster", "calibration", "env"}) {
    const Value* named = training.find(key);
    if (named == nullptr || named->is(Value::Kind::Null)) continue;
    reader.fault(*named, formatted("\"{}\" names a file, and a plan is whole", key),
                 formatted("write the content beside \"training\", as \"{}\"", key));
  }
}

void describe_plan(Fields& fields, SavedPlan& plan) {
  describe_head(fields, "plan", plan.source);
  detail::describe_versions(fields, "written", plan.written);
  fields("fingerprint", plan.fingerprint);
  fields.document("deepspeed", plan.deepspeed);
  fields.document("training", plan.training);
  if (fields.reader() != nullptr) refuse_named_files(*fields.reader(), plan.training.root);
  fields.document("hardware", plan.hardware);
  fields.document("cluster", plan.cluster);
  fields.document("calibration", plan.calibration);
  detail::describe_ranks(fields, plan.ranks, "a rank of a plan");
  const Nested on_one_line{"the time of a plan", FieldLine::Same};
  fields.object("time", plan.time, on_one_line, [&](StepTime& time) { describe_time(fields, time); });
  fields.list("assumed", plan.assumed, {"an assumed input", FieldLine::Same}, [&](ResolvedInput& input) {
    fields("name", input.name);
    fields("value", input.value);
    fields("reason", input.reason);
    if (fields.reader() != nullptr) input.origin = Origin::Assumed;
  });
  fields.object("model", {"the model of a plan"}, [&] {
    fields("name", plan.model_name);
    fields.document("config", plan.model, "the whole config.json");
  });
}

}  // namespace

bool is_plan(const Document& document) { return is_kind(document, "plan"); }

SavedPlan read_plan(const Document& document) {
  expect_object(document, "a plan");
  SavedPlan plan;
  plan.path = document.path;
  read_fields(document, "a plan", [&](Fields& fields) { describe_plan(fields, plan); });
  if (const Value* at = document.root.find("fingerprint")) plan.fingerprint_place = place_at(document, at->offset);
  return plan;
}

std::string plan_json(const SavedPlan& plan) {
  return written([&](Fields& fields) { describe_plan(fields, described(plan)); }, {1, true});
}

}  // namespace dsplan
