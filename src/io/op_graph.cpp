#include "io/op_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/format.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

class GraphReader {
 public:
  GraphReader(const Document& document, Diagnostics& diagnostics) : document_(document), diagnostics_(diagnostics) {}

  void read(ObjectReader& reader, OpGraph& graph) {
    graph.source = read_head(reader, "graph");
    if (!reader.has("tensors"))
      reader.fault("tensors", "\"tensors\" is missing: what is there before the first operator?");
    if (const Value* tensors = reader.object("tensors")) read_tensors(*tensors, graph);
    if (!reader.has("ops")) reader.fault("ops", "\"ops\" is missing");
    if (const Value* ops = reader.array("ops")) graph.ops = read_ops(*ops);
    graph.outputs = read_names(reader, "outputs", true);
    if (const Value* hold = reader.object("hold")) read_hold(*hold, graph);
    graph.keep_outputs = reader.boolean("keep_outputs").value_or(false);
    graph.autograd_grad = read_names(reader, "autograd_grad", false);
    graph.seed_base = reader.integer("seed_base", 0, INT64_MAX);
    reader.refuse_unread("the op-graph");
  }

 private:
  void fault(std::size_t offset, std::string message, std::string hint = {}) {
    diagnostics_.add(document_.at(offset, std::move(message), std::move(hint)));
  }

  [[nodiscard]] bool expect_object(const Value& value, std::string_view what) {
    if (value.is(Value::Kind::Object)) return true;
    fault(value.offset, formatted("{} must be an object, not {}", what, describe(value.kind)));
    return false;
  }

  void read_tensors(const Value& tensors, OpGraph& graph) {
    for (const Member& member : tensors.members) {
      if (member.key.empty()) fault(member.key_offset, "a tensor needs a name");
      if (!expect_object(member.value, formatted("tensor \"{}\"", member.key))) continue;
      ObjectReader reader(document_, member.value, diagnostics_);
      OpGraphTensor tensor;
      tensor.name = {member.key, member.key_offset};
      tensor.requires_grad = reader.boolean("requires_grad").value_or(false);
      read_dtype(reader, tensor);
      read_shape(reader, tensor);
      reader.refuse_unread("a tensor");
      graph.tensors.push_back(std::move(tensor));
    }
  }

  void read_dtype(ObjectReader& reader, OpGraphTensor& tensor) {
    if (!reader.has("dtype")) reader.fault("dtype", "\"dtype\" is missing");
    const std::optional<std::string> text = reader.string("dtype");
    if (!text) return;
    std::string_view word = *text;
    if (word.starts_with("torch.")) word.remove_prefix(6);
    std::vector<std::string_view> names;
    for (const OpGraphDType& row : kOpGraphDTypes) {
      names.push_back(row.name);
      if (row.name != word) continue;
      tensor.dtype = row.dtype;
      return;
    }
    std::string hint = did_you_mean(nearest(word, names));
    if (hint.empty()) hint = "float16, bfloat16, float32, float64, int64, int32, int8, uint8 and bool are modelled";
    reader.fault("dtype", formatted("no dtype \"{}\"", *text), std::move(hint));
  }

  void read_shape(ObjectReader& reader, OpGraphTensor& tensor) {
    if (!reader.has("shape")) reader.fault("shape", "\"shape\" is missing; a scalar has []");
    const Value* shape = reader.array("shape");
    if (shape == nullptr) return;
    if (shape->items.size() > Shape::kMostDims) {
      reader.fault(*shape, formatted("{} dimensions; at most {} are modelled", shape->items.size(), Shape::kMostDims));
      return;
    }
    std::int64_t bytes = bytes_per_element(tensor.dtype);
    for (const Value& item : shape->items) {
      if (!item.is(Value::Kind::Integer)) {
        const bool huge = item.is(Value::Kind::Real) && item.huge;
        reader.fault(item, huge ? std::string("this dimension does not fit in 63 bits")
                                : formatted("a dimension must be an integer, not {}", describe(item.kind)));
        return;
      }
      if (item.integer < 1) {
        reader.fault(item, item.integer == 0 ? std::string("a tensor without elements is not modelled")
                                             : formatted("a dimension must be at least 1, not {}", item.integer));
        return;
      }
      if (__builtin_mul_overflow(bytes, item.integer, &bytes)) {
        reader.fault(*shape, formatted("tensor \"{}\" has more bytes than fit in 63 bits", tensor.name.text));
        return;
      }
      tensor.shape.dims[tensor.shape.rank++] = item.integer;
    }
  }

  std::vector<OpGraphName> names_of(const Value& array, std::string_view key) {
    std::vector<OpGraphName> names;
    for (const Value& item : array.items) {
      if (item.is(Value::Kind::String) && !item.string.empty()) {
        names.push_back({item.string, item.offset});
      } else {
        fault(item.offset, item.is(Value::Kind::String)
                               ? std::string("a name must not be empty")
                               : formatted("\"{}\" holds names, not {}", key, describe(item.kind)));
      }
    }
    return names;
  }

  std::vector<OpGraphName> read_names(ObjectReader& reader, std::string_view key, bool required) {
    if (required && !reader.has(key)) reader.fault(key, formatted("\"{}\" is missing", key));
    const Value* array = reader.array(key);
    if (array == nullptr) return {};
    if (required && array->items.empty()) reader.fault(*array, formatted("\"{}\" is empty", key));
    return names_of(*array, key);
  }

  void read_outputs(ObjectReader& reader, OpGraphOp& op) {
    const bool one = reader.has("output");
    const bool several = reader.has("outputs");
    if (one && several) reader.fault("outputs", "\"output\" and \"outputs\" exclude each other");
    if (!one && !several) reader.fault("output", "\"output\" is missing: what is the result called?");
    if (several) op.outputs = read_names(reader, "outputs", true);
    const std::optional<std::string> name = reader.string("output");
    if (!name) return;
    if (name->empty()) reader.fault("output", "a name must not be empty");
    op.outputs = {{*name, reader.value().find("output")->offset}};
  }

  std::vector<OpGraphOp> read_ops(const Value& array) {
    std::vector<OpGraphOp> ops;
    for (const Value& item : array.items) {
      if (expect_object(item, "an operator")) ops.push_back(read_op(item));
    }
    return ops;
  }

  OpGraphOp read_op(const Value& value) {
    ObjectReader reader(document_, value, diagnostics_);
    OpGraphOp op;
    op.op.offset = value.offset;
    if (!reader.has("op")) reader.fault("op", "\"op\" is missing: which operator?");
    if (std::optional<std::string> name = reader.string("op")) op.op = {*name, value.find("op")->offset};
    op.inputs = read_names(reader, "inputs", true);
    read_outputs(reader, op);
    op.no_grad = reader.boolean("no_grad").value_or(false);
    if (op.op.text == "checkpoint") {
      read_checkpoint(reader, op);
    } else if (op.op.text == "checkpoint_sequential") {
      read_sequential(reader, op);
    } else if (op.op.text == "custom") {
      read_custom(reader, op);
    } else {
      op.in_place = reader.boolean("in_place").value_or(false);
      for (const Member* member : reader.unread()) op.attributes.push_back(*member);
    }
    return op;
  }

  void read_inner(ObjectReader& reader, OpGraphOp& op) {
    if (!reader.has("ops")) reader.fault("ops", "\"ops\" is missing: what runs inside?");
    const Value* ops = reader.array("ops");
    if (ops == nullptr) return;
    if (ops->items.empty()) reader.fault(*ops, "\"ops\" is empty");
    op.ops = read_ops(*ops);
  }

  void read_checkpoint(ObjectReader& reader, OpGraphOp& op) {
    op.kind = OpGraphOp::Kind::Checkpoint;
    op.reentrant = reader.boolean("reentrant").value_or(false);
    op.preserve_rng_state = reader.boolean("preserve_rng_state").value_or(true);
    op.kept = read_names(reader, "save", false);
    read_inner(reader, op);
    reader.refuse_unread("a checkpoint");
  }

  void read_sequential(ObjectReader& reader, OpGraphOp& op) {
    op.kind = OpGraphOp::Kind::CheckpointSequential;
    op.reentrant = reader.boolean("reentrant").value_or(false);
    op.preserve_rng_state = reader.boolean("preserve_rng_state").value_or(true);
    op.segments = reader.required_integer("segments", 1, INT64_MAX, 1);
    if (!reader.has("functions")) reader.fault("functions", "\"functions\" is missing: a list of lists of operators");
    if (const Value* functions = reader.array("functions")) {
      for (const Value& item : functions->items) {
        if (!item.is(Value::Kind::Array) || item.items.empty()) {
          reader.fault(item, "a function is a list of operators, at least one");
        } else {
          op.functions.push_back(read_ops(item));
        }
      }
    }
    reader.refuse_unread("a checkpoint_sequential");
  }

  void read_custom(ObjectReader& reader, OpGraphOp& op) {
    op.kind = OpGraphOp::Kind::Custom;
    op.saves = read_names(reader, "saves", false);
    read_inner(reader, op);
    reader.refuse_unread("a custom function");
  }

  void read_hold(const Value& hold, OpGraph& graph) {
    ObjectReader reader(document_, hold, diagnostics_);
    for (const Member& member : hold.members) {
      const std::optional<std::int64_t> until = reader.integer(member.key, 0, INT64_MAX);
      if (member.value.is(Value::Kind::Null))
        reader.fault(member.value, "\"hold\" holds numbers of operators, not null");
      if (until) graph.hold.push_back({{member.key, member.key_offset}, *until});
    }
  }

  const Document& document_;
  Diagnostics& diagnostics_;
};

}  // namespace

OpGraph read_op_graph(Document document, std::string name) {
  expect_object(document, "an op-graph");
  OpGraph graph;
  graph.name = std::move(name);
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  GraphReader(document, diagnostics).read(reader, graph);
  diagnostics.throw_if_any();
  graph.document = std::move(document);
  return graph;
}

}  // namespace dsplan
