#include "io/module_graph.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "core/format.h"
#include "core/graph.h"
#include "core/op_graph.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

// Slots of a recipe are counted in a byte, inputs of an operator by the bits of a word.
constexpr std::size_t kMostSlots = 200;
constexpr std::size_t kMostInputs = Node::kMostInputs;

DType dtype_of(std::string_view text, std::size_t offset, const Document& document, Diagnostics& diagnostics) {
  std::vector<std::string_view> names;
  for (const OpGraphDType& row : kOpGraphDTypes) {
    names.push_back(row.name);
    if (row.name == text) return row.dtype;
  }
  diagnostics.add(document.at(offset, formatted("no dtype \"{}\"", text), did_you_mean(nearest(text, names))));
  return DType::Float32;
}

// Which of `items` has the name that `value` says, as `name_of` has it; kNone: none, which is a fault.
template <class Items, class NameOf>
std::int32_t find_named(const Items& items, NameOf name_of, const Value& value, std::string_view what,
                        const Document& document, Diagnostics& diagnostics) {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& one) { return one.*name_of == value.string; });
  if (found != items.end()) return static_cast<std::int32_t>(found - items.begin());
  std::vector<std::string_view> names;
  for (const auto& one : items) names.push_back(one.*name_of);
  diagnostics.add(document.at(value.offset, formatted("no {} \"{}\"", what, value.string),
                              did_you_mean(nearest(value.string, names))));
  return kNone;
}

// Autograd lets go of what an operator saves when a gradient comes to it. The last operator, among those that have one,
// to which none does.
std::optional<std::size_t> last_unreached(const std::vector<RecordedOp>& ops, std::int32_t values, std::int32_t loss) {
  std::vector<bool> reached(static_cast<std::size_t>(values), false);
  reached[static_cast<std::size_t>(loss)] = true;
  auto end = reached.end();
  for (std::size_t at = ops.size(); at-- > 0;) {
    const RecordedOp& op = ops[at];
    const auto begin = end - static_cast<std::ptrdiff_t>(op.outs.size());
    const bool comes = std::find(begin, end, true) != end;
    end = begin;
    if (op.differentiable && !comes) return at;
    for (const RecordedGradient& gradient : op.gradients) {
      if (gradient.to >= 0) reached[static_cast<std::size_t>(gradient.to)] = true;
    }
  }
  return std::nullopt;
}

class ModuleGraphReader {
 public:
  ModuleGraphReader(const Document& document, Diagnostics& diagnostics)
      : document_(document), diagnostics_(diagnostics) {}

  ModuleGraph read() {
    ObjectReader reader(document_, document_.root, diagnostics_);
    graph_.source = read_head(reader, "module_graph");
    graph_.torch = reader.string("torch").value_or("");
    if (const std::optional<std::string> dtype = reader.string("dtype")) {
      graph_.dtype = dtype_of(*dtype, document_.root.find("dtype")->offset, document_, diagnostics_);
    } else {
      reader.fault("dtype", "\"dtype\" is missing");
    }
    graph_.micro_batch = reader.required_integer("micro_batch", 1, INT64_MAX, 1);
    graph_.seq = reader.required_integer("seq", 1, INT64_MAX, 1);
    read_tables(reader);
    if (graph_.modules.empty()) return {};  // It was faulted, and operators have modules that they are in.
    graph_.loss = static_cast<std::int32_t>(reader.required_integer("loss", 0, INT32_MAX, 0));
    graph_.loss_stage3 = static_cast<std::int32_t>(reader.required_integer("loss_stage3", 0, INT32_MAX, 0));
    read_stream(reader, "ops", graph_.ops, graph_.loss);
    views_ = false;
    read_stream(reader, "ops_stage3", graph_.ops_stage3, graph_.loss_stage3);
    if (views_) graph_.ops_stage3.clear();  // A saved view keeps what was gathered: model/recorded refuses it.
    reader.refuse_unread("a recorded module");
    return std::move(graph_);
  }

 private:
  void fault(const Value& at, std::string message, std::string hint = {}) {
    diagnostics_.add(document_.at(at.offset, std::move(message), std::move(hint)));
  }

  [[nodiscard]] const std::vector<Value>& list(ObjectReader& reader, std::string_view key, bool required = true) {
    static const std::vector<Value> kNothing;
    if (required && !reader.has(key)) reader.fault(key, formatted("\"{}\" is missing", key));
    const Value* array = reader.array(key);
    return array == nullptr ? kNothing : array->items;
  }

  [[nodiscard]] bool expect_row(const Value& row, std::size_t size, std::string_view what) {
    if (row.is(Value::Kind::Array) && row.items.size() == size) return true;
    fault(row, formatted("{} is a list of {}", what, size));
    return false;
  }

  [[nodiscard]] std::int64_t integer(const Value& value, std::int64_t least, std::int64_t most, std::string_view what) {
    if (value.is(Value::Kind::Integer) && value.integer >= least && value.integer <= most) return value.integer;
    fault(value, most < least ? formatted("there is no {} here", what)
                              : formatted("{} is an integer from {} to {}", what, least, most));
    return least;
  }

  // name, dtype, shape: at `row.items[first]` and behind it.
  void read_tensor(const Value& row, std::size_t first, RecordedTensor& tensor) {
    const Value& dtype = row.items[first];
    const Value& shape = row.items[first + 1];
    if (!dtype.is(Value::Kind::String)) return fault(dtype, "a dtype is a string");
    tensor.dtype = dtype_of(dtype.string, dtype.offset, document_, diagnostics_);
    if (!shape.is(Value::Kind::Array)) return fault(shape, "a shape is a list of integers");
    if (shape.items.size() > Shape::kMostDims) {
      return fault(shape, formatted("{} dimensions; at most {} are modelled", shape.items.size(), Shape::kMostDims));
    }
    std::int64_t bytes = bytes_per_element(tensor.dtype);
    for (const Value& item : shape.items) {
      const std::int64_t dim = integer(item, 1, INT64_MAX, "a dimension");
      if (__builtin_mul_overflow(bytes, dim, &bytes)) return fault(shape, "has more bytes than fit in 63 bits");
      tensor.shape.dims[tensor.shape.rank++] = dim;
    }
  }

  void read_tables(ObjectReader& reader) {
    std::set<std::string_view> paths;
    for (const Value& row : list(reader, "modules")) {
      if (!expect_row(row, 2, "a module")) continue;
      const std::string& path = row.items[0].string;
      const std::size_t dot = path.rfind('.');
      const std::string_view parent = dot == std::string::npos ? "" : std::string_view(path).substr(0, dot);
      if (graph_.modules.empty() != path.empty())
        fault(row, "the first module is the root, of the name \"\", and no other");
      if (!path.empty() && !paths.contains(parent))
        fault(row, formatted("module \"{}\" stands before its parent", path));
      if (!paths.insert(path).second) fault(row, formatted("module \"{}\" is there twice", path));
      graph_.modules.push_back({path, row.items[1].string});
    }
    if (graph_.modules.empty()) reader.fault("modules", "there is no module");
    read_parameters(reader, paths);
    read_tied(reader, paths);
    read_born(reader);
    for (const auto& [key, into] : {std::pair("buffers", &graph_.buffers), std::pair("batch", &graph_.batch)}) {
      for (const Value& row : list(reader, key)) {
        if (!expect_row(row, 3, "a tensor")) continue;
        into->emplace_back().name = row.items[0].string;
        read_tensor(row, 1, into->back());
        if (into == &graph_.buffers) check_owner(row, into->back().name, paths);
      }
    }
  }

  void read_parameters(ObjectReader& reader, const std::set<std::string_view>& paths) {
    for (const Value& row : list(reader, "parameters")) {
      if (!expect_row(row, 4, "a parameter")) continue;
      RecordedParameter parameter;
      parameter.name = row.items[0].string;
      read_tensor(row, 1, parameter);
      parameter.trainable = row.items[3].boolean;
      check_owner(row, parameter.name, paths);
      graph_.parameters.push_back(std::move(parameter));
    }
    if (graph_.parameters.empty()) reader.fault("parameters", "there is no parameter");
  }

  // Other names of parameters, which share the storage: they have no number in the stream.
  void read_tied(ObjectReader& reader, const std::set<std::string_view>& paths) {
    own_ = graph_.parameters.size();
    for (const Value& row : list(reader, "tied", false)) {
      if (!expect_row(row, 2, "a tied name")) continue;
      const std::int32_t first =
          find_named(graph_.parameters, &RecordedParameter::name, row.items[1], "parameter", document_, diagnostics_);
      if (first == kNone) continue;
      RecordedParameter again = graph_.parameters[static_cast<std::size_t>(first)];
      again.name = row.items[0].string;
      again.tied_to = first;
      check_owner(row, again.name, paths);
      graph_.parameters.push_back(std::move(again));
    }
  }

  // Which constructors made parameters, where their names do not say it.
  void read_born(ObjectReader& reader) {
    for (const Value& row : list(reader, "born", false)) {
      if (!expect_row(row, 3, "a parameter's maker")) continue;
      const std::int32_t parameter =
          find_named(graph_.parameters, &RecordedParameter::name, row.items[0], "parameter", document_, diagnostics_);
      const std::int32_t maker =
          find_named(graph_.modules, &RecordedModule::path, row.items[1], "module", document_, diagnostics_);
      const auto most = static_cast<std::int64_t>(graph_.modules.size());
      const std::int64_t behind = integer(row.items[2], 0, most, "a number of children");
      if (parameter == kNone || maker == kNone) continue;
      RecordedParameter& made = graph_.parameters[static_cast<std::size_t>(parameter)];
      made.maker = maker;
      made.behind = static_cast<std::int32_t>(behind);
    }
  }

  void check_owner(const Value& row, std::string_view name, const std::set<std::string_view>& paths) {
    const std::size_t dot = name.rfind('.');
    const std::string_view owner = dot == std::string_view::npos ? "" : name.substr(0, dot);
    if (!paths.contains(owner)) fault(row, formatted("no module \"{}\" owns \"{}\"", owner, name));
  }

  void read_stream(ObjectReader& reader, std::string_view key, std::vector<RecordedOp>& ops, std::int32_t loss) {
    placed_ = static_cast<std::int32_t>(own_ + graph_.buffers.size() + graph_.batch.size());
    storages_ = placed_;
    values_ = 0;
    lies_.clear();
    dropped_.clear();
    open_.clear();
    const std::vector<Value>& items = list(reader, key);
    for (const Value& item : items) {
      if (!item.is(Value::Kind::Object)) {
        fault(item, "a line of the stream is an object");
        continue;
      }
      ops.push_back(read_op(item));
    }
    if (!open_.empty()) {
      reader.fault(key, formatted("module \"{}\" is entered and never left",
                                  graph_.modules[static_cast<std::size_t>(open_.back())].path));
    }
    if (loss >= values_) return reader.fault(key, formatted("the loss is value {}, and there are {}", loss, values_));
    if (const auto at = last_unreached(ops, values_, loss); at && ops.size() == items.size()) {
      fault(items[*at], "no gradient comes to this operator, so that nothing lets go of what it saves",
            "record it under no_grad, or detached from what autograd follows");
    }
    // What Python still has when the forward is over, a cache of a module's, nothing ever lets go of.
    for (std::int32_t number = placed_; number < storages_; ++number) {
      if (number == lies_[static_cast<std::size_t>(loss)] || dropped_.contains(number)) continue;
      return reader.fault(
          key, formatted("storage {} stays after the forward, and neither autograd nor the loss holds it", number),
          "record a module that keeps no tensors");
    }
  }

  RecordedOp read_op(const Value& item) {
    ObjectReader reader(document_, item, diagnostics_);
    RecordedOp op;
    if (const Value* drop = reader.find("drop")) {
      op.kind = RecordedOp::Kind::Drop;
      op.number = storage(*drop);
      if (op.number < placed_) fault(*drop, "parameters, buffers and the batch do not end");
      dropped_.insert(op.number);
    } else if (const Value* enter = reader.find("enter")) {
      op.kind = RecordedOp::Kind::Enter;
      open_.push_back(op.number = module(*enter));
    } else if (const Value* exit = reader.find("exit")) {
      op.kind = RecordedOp::Kind::Exit;
      op.number = module(*exit);
      if (open_.empty() || open_.back() != op.number) fault(*exit, "it is not the module that was entered last");
      if (!open_.empty()) open_.pop_back();
    } else if (const Value* ask = reader.find("ask")) {
      op.kind = RecordedOp::Kind::Ask;
      op.number = static_cast<std::int32_t>(integer(*ask, 0, static_cast<std::int64_t>(own_) - 1, "a parameter"));
    } else {
      read_run(reader, op);
    }
    reader.refuse_unread("a line of the stream");
    return op;
  }

  void read_run(ObjectReader& reader, RecordedOp& op) {
    if (!reader.has("op"))
      reader.fault("op", "a line is an operator (\"op\"), \"enter\", \"exit\", \"ask\" or \"drop\"");
    op.name = reader.string("op").value_or("");
    op.reads = storages(reader, "reads");
    for (const Value& made : list(reader, "makes")) {
      op.makes.emplace_back(integer(made, 1, INT64_MAX, "a size in bytes"));
      ++storages_;
    }
    op.differentiable = reader.has("outs");
    if (!op.differentiable) return;
    for (const Value& row : list(reader, "outs")) {
      if (!expect_row(row, 3, "an output")) continue;
      RecordedOut out;
      if (row.items[0].is(Value::Kind::Null)) {
        fault(row.items[0], "nobody saw where this result lies");
      } else {
        out.storage = storage(row.items[0]);
      }
      lies_.push_back(out.storage);
      read_tensor(row, 1, out.tensor);
      op.outs.push_back(std::move(out));
    }
    if (op.outs.empty()) reader.fault("outs", "an operator with a gradient has an output");
    op.saves = storages(reader, "saves");
    op.saves_after_kernel = reader.boolean("after").value_or(false);
    views_ = !list(reader, "views", false).empty() || views_;
    read_backward(reader, op);
    for (const Value& row : list(reader, "to")) {
      if (expect_row(row, 4, "a gradient")) op.gradients.push_back(read_gradient(row));
    }
    if (op.gradients.size() + op.reads.size() + op.saves.size() > kMostInputs || op.makes.size() > kMostSlots) {
      reader.fault("op",
                   formatted("more than {} tensors go into one operator, or {} come out", kMostInputs, kMostSlots));
    }
    values_ += static_cast<std::int32_t>(op.outs.size());
  }

  void read_backward(ObjectReader& reader, RecordedOp& op) {
    std::vector<bool> alive;
    for (const Value& item : list(reader, "back")) {
      const std::string_view text = item.string;
      std::int64_t number = 0;
      const char* end = text.data() + text.size();
      const bool sound = text.size() > 1 && (text[0] == '+' || text[0] == '-') && text[1] != '-' &&
                         std::from_chars(text.data() + 1, end, number).ptr == end;
      if (!sound) {
        fault(item, "a step of a backward function is \"+BYTES\" or \"-SLOT\"");
      } else if (text[0] == '+') {
        op.backward.push_back({RecordedStep::Kind::Make, 0, Bytes(number)});
        alive.push_back(true);
      } else if (number >= static_cast<std::int64_t>(alive.size()) || !alive[static_cast<std::size_t>(number)]) {
        fault(item, formatted("slot {} is not there", number));
      } else {
        op.backward.push_back({RecordedStep::Kind::Drop, static_cast<std::int32_t>(number), {}});
        alive[static_cast<std::size_t>(number)] = false;
      }
    }
    slots_ = std::move(alive);
    if (slots_.size() > kMostSlots - std::min(kMostSlots, op.makes.size())) {
      reader.fault("back", formatted("more than {} tensors in one backward function", kMostSlots));
    }
  }

  RecordedGradient read_gradient(const Value& row) {
    RecordedGradient gradient;
    const auto parameters = static_cast<std::int64_t>(own_);
    gradient.to = static_cast<std::int32_t>(integer(row.items[0], -parameters, values_ - 1, "where a gradient goes"));
    if (row.items[1].is(Value::Kind::Null)) {
      fault(row.items[1], "this gradient lies in memory that its function neither made nor was given");
      return gradient;
    }
    const auto slots = static_cast<std::int64_t>(slots_.size());
    gradient.from = static_cast<std::int32_t>(integer(row.items[1], -1, slots - 1, "where a gradient lies"));
    if (gradient.from >= 0 && !slots_[static_cast<std::size_t>(gradient.from)]) {
      fault(row.items[1], formatted("slot {} has been let go of, or is the gradient of another input", gradient.from),
            "two gradients in one tensor are not modelled yet");
    }
    if (gradient.from >= 0) slots_[static_cast<std::size_t>(gradient.from)] = false;
    gradient.whole = integer(row.items[2], 0, 1, "whole") == 1;
    gradient.view = integer(row.items[3], 0, 1, "a view") == 1;
    return gradient;
  }

  std::vector<std::int32_t> storages(ObjectReader& reader, std::string_view key) {
    std::vector<std::int32_t> numbers;
    for (const Value& item : list(reader, key)) numbers.push_back(storage(item));
    return numbers;
  }

  std::int32_t storage(const Value& value) {
    const auto number = static_cast<std::int32_t>(integer(value, 0, storages_ - 1, "a storage"));
    if (dropped_.contains(number)) fault(value, formatted("storage {} has ended above", number));
    return number;
  }

  std::int32_t module(const Value& value) {
    return static_cast<std::int32_t>(
        integer(value, 0, static_cast<std::int64_t>(graph_.modules.size()) - 1, "a module"));
  }

  const Document& document_;
  Diagnostics& diagnostics_;
  ModuleGraph graph_;
  std::size_t own_ = 0;  // Parameters that are tied to none.
  std::int32_t placed_ = 0;
  std::int32_t storages_ = 0;
  std::int32_t values_ = 0;
  std::set<std::int32_t> dropped_;
  std::vector<std::int32_t> lies_;  // The storage of each value.
  std::vector<std::int32_t> open_;
  bool views_ = false;       // Autograd saves a view of a parameter.
  std::vector<bool> slots_;  // Of the backward function under way: still to be given to an input.
};

}  // namespace

ModuleGraph read_module_graph(const Document& document) {
  expect_object(document, "a recorded module");
  Diagnostics diagnostics;
  ModuleGraph graph = ModuleGraphReader(document, diagnostics).read();
  diagnostics.throw_if_any();
  return graph;
}

}  // namespace dsplan
