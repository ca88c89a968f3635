#include "report/plan_file.h"

#include "core/format.h"
#include "core/receipt.h"
#include "io/measured_file.h"
#include "io/own_file.h"
#include "io/place.h"
#include "report/kept_figures.h"

namespace dsplan {
namespace {

class Reader {
 public:
  explicit Reader(const Document& document) : document_(document) {}

  SavedPlan read() {
    ObjectReader reader(document_, document_.root, faults_);
    SavedPlan into;
    into.path = document_.path;
    into.source = read_head(reader, "plan");
    faults_.throw_if_any();  // What another version holds is not for us to judge.
    detail::need(reader, {"written", "fingerprint", "model", "deepspeed", "training", "hardware", "cluster",
                          "calibration", "ranks", "time", "assumed"});
    for (const char* key : {"written", "model", "training", "ranks", "assumed"}) {
      if (document_.root.find(key) != nullptr && !reader.has(key)) {
        reader.fault(key, formatted("\"{}\" must not be null", key));
      }
    }
    if (const Value* written = reader.object("written")) {
      into.written = detail::read_versions(document_, *written, faults_);
    }
    into.fingerprint = detail::kept_text(reader, "fingerprint");
    if (const Value* at = document_.root.find("fingerprint")) into.fingerprint_place = place_at(document_, at->offset);
    if (const Value* model = reader.object("model")) read_model(*model, into);
    into.deepspeed = part(reader, "deepspeed");
    if (const Value* training = reader.object("training")) read_training(*training, into);
    into.hardware = part(reader, "hardware");
    into.cluster = part(reader, "cluster");
    into.calibration = part(reader, "calibration");
    if (const Value* ranks = reader.array("ranks")) into.ranks = detail::read_ranks(reader, *ranks, "a plan");
    if (const Value* time = reader.object("time")) into.time = read_time(*time);
    if (const Value* list = reader.array("assumed")) into.assumed = read_assumed(*list);
    reader.refuse_unread("a plan");
    faults_.throw_if_any();
    return into;
  }

 private:
  [[nodiscard]] Document inside(const Value& value) const { return {document_.path, document_.text, value}; }

  std::optional<Document> part(ObjectReader& reader, std::string_view key) {
    const Value* value = reader.object(key);
    return value == nullptr ? std::nullopt : std::optional(inside(*value));
  }

  void read_model(const Value& value, SavedPlan& into) {
    ObjectReader reader(document_, value, faults_);
    detail::need(reader, {"name", "config"});
    into.model_name = detail::kept_text(reader, "name");
    const Value* config = reader.object("config");
    if (config != nullptr) into.model = inside(*config);
    if (config == nullptr && !reader.has("config")) reader.fault("config", "\"config\" must be the whole config.json");
    reader.refuse_unread("the model of a plan");
  }

  StepTime read_time(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    detail::need(reader, {"total", "low", "high", "tokens_per_second", "calibrated", "basis"});
    StepTime time;
    const auto positive = [&](const char* key) {
      const double number = reader.number(key).value_or(0);
      if (number < 0) reader.fault(key, formatted("\"{}\" must not be negative", key));
      return number;
    };
    time.total = positive("total");
    time.low = positive("low");
    time.high = positive("high");
    time.tokens_per_second = positive("tokens_per_second");
    time.calibrated = reader.boolean("calibrated").value_or(false);
    time.basis = detail::kept_text(reader, "basis");
    reader.refuse_unread("the time of a plan");
    return time;
  }

  std::vector<ResolvedInput> read_assumed(const Value& list) {
    std::vector<ResolvedInput> inputs;
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "an assumed input", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      detail::need(reader, {"name", "value", "reason"});
      ResolvedInput input;
      input.name = detail::kept_text(reader, "name");
      input.value = detail::kept_text(reader, "value");
      input.reason = detail::kept_text(reader, "reason");
      input.origin = Origin::Assumed;
      reader.refuse_unread("an assumed input");
      inputs.push_back(std::move(input));
    }
    return inputs;
  }

  // A plan is whole: what would be read from other files stands in parts of its own.
  void read_training(const Value& value, SavedPlan& into) {
    into.training = inside(value);
    for (const char* key : {"deepspeed", "hardware", "cluster", "calibration", "env"}) {
      const Value* named = value.find(key);
      if (named == nullptr || named->is(Value::Kind::Null)) continue;
      faults_.add(document_.at(named->offset, formatted("\"{}\" names a file, and a plan is whole", key),
                               formatted("write the content beside \"training\", as \"{}\"", key)));
    }
  }

  const Document& document_;
  Diagnostics faults_;
};

std::string part_text(const std::optional<Document>& part, std::size_t indent) {
  std::string text;
  if (!part) return "null";
  detail::write_value(part->root, indent, text);
  return text;
}

// Seconds.
std::string time_text(const std::optional<StepTime>& time) {
  if (!time) return "null";
  const auto number = [](double real) {
    Value value;
    value.kind = Value::Kind::Real;
    value.real = real;
    return canonical_json(value);
  };
  return formatted(R"({{"total": {}, "low": {}, "high": {}, "tokens_per_second": {}, "calibrated": {}, "basis": {}}})",
                   number(time->total), number(time->low), number(time->high), number(time->tokens_per_second),
                   time->calibrated, detail::quoted(time->basis));
}

std::string assumed_text(const std::vector<ResolvedInput>& inputs) {
  std::string text = "[";
  for (const ResolvedInput& input : inputs) {
    text += formatted("{}\n  {{\"name\": {}, \"value\": {}, \"reason\": {}}}", text.size() == 1 ? "" : ",",
                      detail::quoted(input.name), detail::quoted(input.value), detail::quoted(input.reason));
  }
  return text + (inputs.empty() ? "]" : "\n ]");
}

}  // namespace

bool is_plan(const Document& document) {
  if (!document.root.is(Value::Kind::Object) || document.root.find("dsplan") == nullptr) return false;
  const Value* kind = document.root.find("kind");
  return kind != nullptr && kind->is(Value::Kind::String) && kind->string == "plan";
}

SavedPlan read_plan(const Document& document) {
  expect_object(document, "a plan");
  return Reader(document).read();
}

std::string plan_json(const SavedPlan& plan) {
  const auto member = [](std::string_view key, const std::string& value) {
    return formatted(" \"{}\": {},\n", key, value);
  };
  std::string text = formatted("{{\n \"dsplan\": {},\n \"kind\": \"plan\",\n", kFileVersion);
  text += member("source", detail::quoted(plan.source));
  text += member("written", detail::versions_text(plan.written));
  text += member("fingerprint", detail::quoted(plan.fingerprint));
  text += member("deepspeed", part_text(plan.deepspeed, 1));
  text += member("training", part_text(plan.training, 1));
  text += member("hardware", part_text(plan.hardware, 1));
  text += member("cluster", part_text(plan.cluster, 1));
  text += member("calibration", part_text(plan.calibration, 1));
  text += member("ranks", detail::ranks_text(plan.ranks));
  text += member("time", time_text(plan.time));
  text += member("assumed", assumed_text(plan.assumed));
  text += formatted(" \"model\": {{\n  \"name\": {},\n  \"config\": {}\n }}\n}}\n", detail::quoted(plan.model_name),
                    part_text(plan.model, 2));
  return text;
}

}  // namespace dsplan
