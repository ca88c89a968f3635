#include "report/operators_receipt.h"

#include <algorithm>
#include <charconv>

#include "core/format.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

std::optional<DType> dtype_named(std::string_view text) {
  for (DType dtype : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Int64, DType::Int32,
                      DType::Int8, DType::UInt8, DType::Bool}) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

struct TensorWords {
  Tensor tensor;
  std::optional<std::size_t> shared;  // The input whose storage it lies in.
};

// "bf16[6,10]*@in0": dtype, shape, whether it requires a gradient, and the input whose storage it shares.
std::optional<TensorWords> tensor_of(std::string_view text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const std::optional<DType> dtype = dtype_named(text.substr(0, open));
  if (!dtype) return std::nullopt;
  TensorWords words;
  words.tensor.dtype = *dtype;
  const char* at = text.data() + open + 1;
  const char* end = text.data() + close;
  while (at < end) {
    std::int64_t extent = 0;
    const auto [after, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 0 || words.tensor.shape.rank == std::size(words.tensor.shape.dims))
      return std::nullopt;
    words.tensor.shape.dims[words.tensor.shape.rank++] = extent;
    if (after != end && *after != ',') return std::nullopt;
    at = after == end ? end : after + 1;
  }
  std::string_view rest = text.substr(close + 1);
  if (rest.starts_with('*')) {
    words.tensor.requires_grad = true;
    rest.remove_prefix(1);
  }
  if (rest.empty()) return words;
  std::size_t shared = 0;
  if (!rest.starts_with("@in")) return std::nullopt;
  rest.remove_prefix(3);
  const auto [after, error] = std::from_chars(rest.data(), rest.data() + rest.size(), shared);
  if (error != std::errc() || after != rest.data() + rest.size()) return std::nullopt;
  words.shared = shared;
  return words;
}

// Adds one tensor of the case; whether it requires a gradient.
bool add_tensor(const Value& value, Graph& graph, ObjectReader& reader) {
  const std::optional<TensorWords> words = value.is(Value::Kind::String) ? tensor_of(value.string) : std::nullopt;
  if (!words || (words->shared && *words->shared >= graph.tensors.size())) {
    reader.fault(value, "a tensor is written like bf16[6,10], bf16[6,10]* or bf16[60]*@in0");
    return false;
  }
  Tensor tensor = words->tensor;
  if (words->shared) {
    tensor.storage = graph.tensor(TensorId(*words->shared)).storage;
  } else {
    tensor.storage = graph.storages.push({storage(tensor.shape.elements(), tensor.dtype), kNone, kNone});
  }
  graph.operands.push_back(graph.tensors.push(tensor));
  return tensor.requires_grad;
}

std::size_t add_tensors(std::string_view key, Graph& graph, ObjectReader& reader, bool& requires_grad) {
  const Value* list = reader.array(key);
  if (list == nullptr) {
    reader.fault(key, formatted("\"{}\" is missing", key));
    return 0;
  }
  for (const Value& value : list->items) requires_grad |= add_tensor(value, graph, reader);
  return list->items.size();
}

void read_attributes(ObjectReader& reader, Node& node) {
  node.in_place = reader.boolean("in_place").value_or(false);
  node.number = reader.number("number").value_or(0.0);
  node.full_attention = reader.boolean("full").value_or(false);
  node.bounds = static_cast<std::uint8_t>(reader.integer("bounds", 1, 3).value_or(Node::kBothBounds));
  node.gradient_copied = reader.boolean("gradient_copied").value_or(false);
  const std::string kernel = reader.choice("kernel", {"flash", "memory_efficient", "cudnn"}).value_or("");
  if (kernel == "flash") node.attention = AttentionKernel::Flash;
  if (kernel == "memory_efficient") node.attention = AttentionKernel::MemoryEfficient;
  if (kernel == "cudnn") node.attention = AttentionKernel::CuDnn;
  if (reader.choice("product", {"direct"})) node.product = Product::Direct;
  const std::string reduction = reader.choice("reduction", {"mean", "sum", "none"}).value_or("mean");
  node.reduction = reduction == "mean" ? Reduction::Mean : reduction == "sum" ? Reduction::Sum : Reduction::None;
}

Graph read_graph(ObjectReader& reader) {
  Graph graph;
  Node node;
  const std::string op = reader.string("op").value_or("");
  const std::optional<Op> known = operator_named(op);
  if (!known) reader.fault("op", formatted("no operator \"{}\" in the catalogue", op));
  node.op = known.value_or(Op::Input);
  read_attributes(reader, node);
  bool unused = false;
  node.input_count = static_cast<std::uint16_t>(add_tensors("in", graph, reader, unused));
  node.output_count = static_cast<std::uint16_t>(add_tensors("out", graph, reader, node.requires_grad));
  node.grad_enabled = node.requires_grad;
  graph.nodes.push(node);
  return graph;
}

std::vector<std::string> read_words(ObjectReader& reader, std::string_view key) {
  std::vector<std::string> words;
  const Value* list = reader.array(key);
  if (list == nullptr) return words;
  for (const Value& value : list->items) {
    if (!value.is(Value::Kind::String)) reader.fault(value, formatted("\"{}\" lists strings", key));
    words.push_back(value.string);
  }
  return words;
}

// "linear bf16[6,10]* bf16[4,10]", and what else tells the case from its neighbours.
std::string title_of(const Value& entry) {
  std::string text;
  for (const Member& member : entry.members) {
    const Value& value = member.value;
    if (member.key == "out") break;
    if (member.key == "op") text = value.string;
    if (member.key == "in") {
      for (const Value& tensor : value.items) text += " " + tensor.string;
    } else if (member.key != "op") {
      text += " " + member.key;
      if (value.is(Value::Kind::String)) text += "=" + value.string;
      if (value.is(Value::Kind::Integer) || value.is(Value::Kind::Real)) text += formatted("={}", value.real);
    }
  }
  return text;
}

void read_failed(ObjectReader& reader, OperatorRuns& runs) {
  const Value* list = reader.array("failed");
  if (list == nullptr) return;
  for (const Value& entry : list->items) {
    if (!entry.is(Value::Kind::Object)) {
      reader.fault(entry, "\"failed\" lists objects");
      continue;
    }
    ObjectReader row(reader.document(), entry, reader.diagnostics());
    FailedRun failed;
    failed.key = row.string("case").value_or("");
    failed.error = row.string("error").value_or("");
    failed.operation = failed.key.substr(0, failed.key.find('/'));
    row.refuse_unread("a failed case");
    runs.failed.push_back(std::move(failed));
  }
}

}  // namespace

OperatorRun read_operator_run(const Document& document, const Value& entry, Diagnostics& diagnostics) {
  OperatorRun run;
  if (!entry.is(Value::Kind::Object)) {
    diagnostics.add(document.at(entry.offset, "\"cases\" lists objects"));
    return run;
  }
  ObjectReader reader(document, entry, diagnostics);
  run.graph = read_graph(reader);
  run.title = title_of(entry);
  run.words.forward = reader.string("forward").value_or("");
  run.words.backward = reader.string("backward").value_or("");
  run.words.saved = read_words(reader, "saved");
  run.words.passes = read_words(reader, "passes");
  run.artefact = reader.boolean("artefact").value_or(false);
  // For whoever looks for the cause of a difference; nothing is compared with them.
  for (const char* key : {"no_gradient", "moves", "workspaces"}) reader.accept(key);
  reader.refuse_unread("a case");
  return run;
}

OperatorRuns read_operator_runs(const Document& document) {
  expect_object(document, "a file of measured operators");
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  OperatorRuns runs;
  runs.path = document.path;
  if (reader.string("schema").value_or("") != kOperatorRunsSchema) {
    reader.fault("schema", formatted("measured operators have the schema \"{}\"", kOperatorRunsSchema));
  }
  runs.device = reader.choice("device", {"cuda", "fake", "simulated"}).value_or("");
  const std::optional<std::string> level = reader.choice("level", {"kernel", "dispatch"});
  if (runs.device.empty() || !level) reader.fault("device", "\"device\" and \"level\" say who watched");
  runs.level = level.value_or("") == "kernel" ? RunLevel::Kernel : RunLevel::Dispatch;
  runs.torch = reader.string("torch").value_or("");
  runs.complete = reader.boolean("complete").value_or(true);
  for (const char* key : {"source", "environment", "artefacts"}) reader.accept(key);
  // Sizes that the matrix libraries keep; the cases' own words do not hold them.
  reader.accept("workspaces");
  read_failed(reader, runs);
  if (const Value* steps = reader.array("optimizers")) {
    for (const Value& entry : steps->items) {
      runs.optimizers.push_back(read_optimizer_run(document, entry, diagnostics));
      if (diagnostics.full()) break;
    }
  }
  if (const Value* cases = reader.array("cases")) {
    for (const Value& entry : cases->items) {
      runs.runs.push_back(read_operator_run(document, entry, diagnostics));
      if (diagnostics.full()) break;
    }
  }
  reader.refuse_unread("a file of measured operators");
  diagnostics.throw_if_any();
  return runs;
}

// The optimizer steps of "dsplan.operator_runs/1".

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
  for (int k = 0; k <= static_cast<int>(kLastOptimizer); ++k) {
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
  optimizer.paged = reader.boolean("paged").value_or(false);
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
