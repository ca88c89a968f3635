#include "model/op_graphs/op_graph_names.h"

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace dsplan {

void collect_reads(const OpGraphOp& op, std::vector<const OpGraphName*>& into) {
  for (const OpGraphName& name : op.inputs) into.push_back(&name);
  for (const OpGraphName& name : op.saves) into.push_back(&name);
  for (const OpGraphOp& inner : op.ops) collect_reads(inner, into);
  for (const std::vector<OpGraphOp>& function : op.functions) {
    for (const OpGraphOp& inner : function) collect_reads(inner, into);
  }
}

OpGraphNames::OpGraphNames(const OpGraph& file, Diagnostics& diagnostics) : file_(file), diagnostics_(diagnostics) {
  Names level;
  for (const OpGraphTensor& tensor : file.tensors) declare(tensor.name, 0, true, level);
  declare_ops(file.ops, 0, true, level);
}

void OpGraphNames::declare(const OpGraphName& name, std::size_t top, bool leaf, Names& level) {
  level.insert(name.text);
  const auto [place, fresh] = places_.try_emplace(name.text, Place{name.offset, top, leaf});
  if (fresh) return;
  const Diagnostic first = file_.document.at(place->second.offset, {});
  diagnostics_.add(file_.document.at(name.offset, formatted("\"{}\" is defined twice", name.text),
                                     formatted("first in line {}", first.line)));
}

void OpGraphNames::declare_ops(const std::vector<OpGraphOp>& ops, std::size_t top, bool outermost, Names& level) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const OpGraphOp& op = ops[i];
    const std::size_t owner = outermost ? i : top;
    if (op.kind == OpGraphOp::Kind::Operator) {
      for (const OpGraphName& name : op.outputs) declare(name, owner, false, level);
      continue;
    }
    Names inside;
    declare_ops(op.ops, owner, false, inside);
    for (const std::vector<OpGraphOp>& function : op.functions) declare_ops(function, owner, false, inside);
    declare_returned(op, inside, level);
  }
}

void OpGraphNames::declare_returned(const OpGraphOp& op, const Names& inside, Names& level) {
  Names returned;
  for (const OpGraphName& name : op.outputs) {
    if (!inside.contains(name.text)) {
      const bool given = std::any_of(op.inputs.begin(), op.inputs.end(),
                                     [&](const OpGraphName& input) { return input.text == name.text; });
      diagnostics_.add(file_.document.at(
          name.offset, given ? formatted("{} returning its input \"{}\" is not modelled yet", op.op.text, name.text)
                             : formatted("\"{}\" is not made inside this {}", name.text, op.op.text)));
    } else if (!returned.insert(name.text).second) {
      diagnostics_.add(file_.document.at(name.offset, formatted("\"{}\" is returned twice", name.text)));
    }
    level.insert(name.text);
  }
}

void OpGraphNames::define(const std::string& name, TensorId tensor, StorageId storage, const std::string* same_as) {
  if (same_as != nullptr) {
    const std::size_t object = objects_of_.at(*same_as);
    objects_of_[name] = object;
    ++objects_[object].names;
    return;
  }
  objects_of_[name] = objects_.size();
  objects_.push_back({tensor, storage, 1, false});
  ++lying_in_[storage];
}

void OpGraphNames::define_unknown(const std::string& name) {
  objects_of_[name] = objects_.size();
  objects_.push_back({kNone, kNone, 1, true});
}

// Whether top-level operator `op` needs what `other` makes.
bool OpGraphNames::needs(std::size_t op, std::size_t other) const {
  std::vector<bool> seen(file_.ops.size(), false);
  std::vector<std::size_t> open = {op};
  std::vector<const OpGraphName*> reads;
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    if (at == other) return true;
    if (seen[at]) continue;
    seen[at] = true;
    reads.clear();
    collect_reads(file_.ops[at], reads);
    for (const OpGraphName* name : reads) {
      const auto place = places_.find(name->text);
      if (place != places_.end() && !place->second.leaf) open.push_back(place->second.top);
    }
  }
  return false;
}

OpGraphNames::Found OpGraphNames::look_up(const OpGraphName& name, std::size_t reader) {
  const auto found = objects_of_.find(name.text);
  if (found != objects_of_.end()) return {objects_[found->second].tensor, objects_[found->second].unknown};
  if (diagnostics_.full()) {  // Only counted from here on.
    diagnostics_.add({});
    return {kNone, true};
  }
  const auto place = places_.find(name.text);
  std::string message;
  std::string hint;
  if (place == places_.end()) {
    message = formatted("there is no tensor \"{}\"", name.text);
    hint = nearest_to(name.text);
  } else if (place->second.top > reader || (place->second.top == reader && place->second.offset >= name.offset)) {
    const bool cycle = needs(place->second.top, reader);
    message = cycle ? formatted("a cycle: \"{}\" is made from what needs it here", name.text)
                    : formatted("\"{}\" is used before it is made", name.text);
    const Diagnostic made = file_.document.at(place->second.offset, {});
    hint = formatted("it is made in line {}", made.line);
  } else {
    message = formatted("\"{}\" is made inside operator {} and is not among its outputs", name.text, place->second.top);
  }
  diagnostics_.add(file_.document.at(name.offset, std::move(message), std::move(hint)));
  return {kNone, true};
}

TensorId OpGraphNames::rewrite(const std::string& name, TensorId tensor) {
  Object& object = objects_[objects_of_.at(name)];
  return std::exchange(object.tensor, tensor);
}

TensorId OpGraphNames::forget(const std::string& name) {
  const auto found = objects_of_.find(name);
  if (found == objects_of_.end()) return kNone;
  Object& object = objects_[found->second];
  objects_of_.erase(found);
  if (--object.names > 0 || object.unknown) return kNone;
  --lying_in_[object.storage];
  return object.tensor;
}

bool OpGraphNames::shared(const std::string& name) const {
  return lying_in_.at(objects_[objects_of_.at(name)].storage) > 1;
}

std::string OpGraphNames::nearest_to(const std::string& name) const {
  std::vector<std::string_view> names;
  for (const auto& [known, place] : places_) names.push_back(known);
  std::sort(names.begin(), names.end());
  const std::string_view meant = nearest(name, names);
  return did_you_mean(meant);
}

}  // namespace dsplan
