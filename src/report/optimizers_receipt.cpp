// The optimizer steps of "dsplan.operator_runs/1".
#include <algorithm>

#include "report/operators_receipt.h"

#include "core/format.h"

namespace dsplan {
namespace {

std::vector<std::string> lines_of(ObjectReader& reader, std::string_view key) {
  std::vector<std::string> lines;
  const Value* list = reader.array(key);
  if (list == nullptr) {
    reader.fault(key, formatted("\"{}\" is missing", key));
    return lines;
  }
  for (const Value& value : list->items) {
    if (!value.is(Value::Kind::String)) reader.fault(value, formatted("\"{}\" lists strings", key));
    lines.push_back(value.string);
  }
  sort_frees(lines);
  return lines;
}

OptimizerLog log_of(ObjectReader& reader, std::string_view key) {
  OptimizerLog log;
  const Value* part = reader.object(key);
  if (part == nullptr) {
    reader.fault(key, formatted("\"{}\" is missing", key));
    return log;
  }
  ObjectReader step(reader.document(), *part, reader.diagnostics());
  log.lines = lines_of(step, "log");
  // Below zero where the step frees what was there before it.
  log.peak = step.required_integer("peak", INT64_MIN, INT64_MAX, 0);
  for (const char* other : {"held", "host_tensors"}) step.accept(other);
  step.refuse_unread("a step");
  return log;
}

void read_parameters(ObjectReader& reader, OptimizerRun& run) {
  const Value* list = reader.array("parameters");
  if (list == nullptr) return reader.fault("parameters", "\"parameters\" is missing");
  for (const Value& entry : list->items) {
    OptimizerRun::Given given;
    const Value* shape = entry.is(Value::Kind::Object) ? entry.find("shape") : nullptr;
    const Value* dtype = entry.is(Value::Kind::Object) ? entry.find("dtype") : nullptr;
    bool known = shape != nullptr && shape->is(Value::Kind::Array) && dtype != nullptr &&
                 shape->items.size() <= std::size(given.shape.dims);
    if (known) {
      for (const Value& extent : shape->items) {
        known = known && extent.is(Value::Kind::Integer) && extent.integer >= 0;
        given.shape.dims[given.shape.rank++] = extent.integer;
      }
      const auto named = {DType::Float32, DType::Float16, DType::BFloat16};
      const auto found =
          std::find_if(named.begin(), named.end(), [&](DType one) { return name(one) == dtype->string; });
      known = known && found != named.end();
      if (known) given.dtype = *found;
    }
    if (!known) reader.fault(entry, "a parameter is written like {\"shape\": [64, 96], \"dtype\": \"bf16\"}");
    run.parameters.push_back(given);
  }
}

void read_optimizer(ObjectReader& reader, Optimizer& optimizer) {
  const std::string kind = reader.string("optimizer").value_or("adamw");
  bool known = false;
  for (int k = 0; k <= static_cast<int>(OptimizerKind::RmsProp); ++k) {
    if (name(static_cast<OptimizerKind>(k)) != kind) continue;
    optimizer.kind = static_cast<OptimizerKind>(k);
    known = true;
  }
  if (!known) reader.fault("optimizer", formatted("no optimizer \"{}\"", kind));
  const std::string form = reader.choice("implementation", {"fused", "foreach", "for-loop"}).value_or("foreach");
  for (Implementation one : {Implementation::Fused, Implementation::Foreach, Implementation::ForLoop}) {
    if (name(one) == form) optimizer.implementation = one;
  }
  optimizer.momentum = reader.number("momentum").value_or(0);
  optimizer.weight_decay = reader.number("weight_decay").value_or(0);
}

std::string title_of_step(const Value& entry) {
  std::string text;
  for (const auto& [key, offset, value] : entry.members) {
    if (value.is(Value::Kind::Array) || value.is(Value::Kind::Object)) continue;
    text += formatted("{}{}=", text.empty() ? "" : " ", key);
    if (value.is(Value::Kind::String)) text += value.string;
    if (value.is(Value::Kind::Bool)) text += value.boolean ? "true" : "false";
    if (value.is(Value::Kind::Integer) || value.is(Value::Kind::Real)) text += formatted("{}", value.real);
  }
  return text;
}

}  // namespace

OptimizerRun read_optimizer_run(const Document& document, const Value& entry, Diagnostics& diagnostics) {
  OptimizerRun run;
  if (!entry.is(Value::Kind::Object)) {
    diagnostics.add(document.at(entry.offset, "\"optimizers\" lists objects"));
    return run;
  }
  ObjectReader reader(document, entry, diagnostics);
  const std::string action = reader.choice("action", {"clip", "zero_grad", "grad_scaler"}).value_or("");
  if (action == "clip") run.action = OptimizerRun::Action::Clip;
  if (action == "zero_grad") run.action = OptimizerRun::Action::ZeroGrad;
  if (action == "grad_scaler") run.action = OptimizerRun::Action::LossScaler;
  run.title = title_of_step(entry);
  read_optimizer(reader, run.optimizer);
  read_parameters(reader, run);
  run.embedding = reader.integer("embedding", 0, INT64_MAX).value_or(-1);
  run.optimizer.embeddings_32bit = run.embedding >= 0;
  run.keep = reader.boolean("keep").value_or(false);
  run.clip = reader.boolean("clip").value_or(false);
  run.set_to_none = reader.boolean("set_to_none").value_or(true);
  run.logs[0].lines = lines_of(reader, "constructed");
  run.logs[1] = log_of(reader, "first");
  run.logs[2] = log_of(reader, "second");
  // "dtypes" names the list of parameters; "workspaces" belong to the libraries.
  for (const char* key : {"dtypes", "workspaces"}) reader.accept(key);
  reader.refuse_unread("an optimizer step");
  return run;
}

}  // namespace dsplan
