// What real DeepSpeed did (tools/oracles/deepspeed_witness.py), and the same lines as a schedule has them.
#pragma once

#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/format.h"
#include "core/model.h"
#include "core/schedule.h"
#include "io/deepspeed.h"
#include "io/module_graph.h"
#include "io/text.h"
#include "model/families.h"
#include "model/recorded.h"
#include "paths.h"
#include "planner/resolve/resolve.h"

namespace deepspeed_log {

using namespace dsplan;
using Lines = std::vector<std::string>;
namespace fs = std::filesystem;

inline const fs::path kFolder = fs::path(test_paths::source_dir()) / "tests" / "witnesses" / "deepspeed";

struct Run {
  std::string name;
  std::map<std::string, std::string> keys;  // Of the JSON file: the text behind each, which is one line.
  std::vector<Lines> ranks;                 // Lines of the log as written, one list for each rank.

  // `key`'s value, as the member "value" of a document.
  [[nodiscard]] Document document(const std::string& key) const {
    return parse_json(name + ".json", "{\"value\": " + keys.at(key) + "}");
  }
};

inline Run read_run(const std::string& name) {
  Run result{name, {}, {}};
  std::ifstream json(kFolder / (name + ".json"));
  for (std::string line; std::getline(json, line);) {
    const std::size_t colon = line.find("\": ");
    if (colon == std::string::npos) continue;
    std::string text = line.substr(colon + 3);
    if (text.ends_with(',')) text.pop_back();
    result.keys.emplace(line.substr(3, colon - 3), text);
  }
  std::ifstream log(kFolder / (name + ".log"));
  for (std::string line; std::getline(log, line);) {
    if (line.starts_with("## rank ")) {
      const std::size_t as = line.find(" as rank ");
      result.ranks.push_back(as == std::string::npos ? Lines() : result.ranks.at(std::stoul(line.substr(as + 9))));
    } else {
      result.ranks.back().push_back(line);
    }
  }
  return result;
}

inline std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

inline ModelSpec model_of_witness(const Run& witness) {
  const Document config = witness.document("config");
  if (const Value* module = config.root.find("value")->find("module")) {
    const fs::path path = fs::path(test_paths::source_dir()) / "tests" / "witnesses" / "modules" / module->string;
    const std::string file = path.string() + ".json";
    return build_recorded_model(read_module_graph(parse_json(file, read_file(file))), module->string);
  }
  return build_model(parse_json(witness.name + ".json", witness.keys.at("config")), witness.name);
}

// The configuration as dsplan resolves it. The loop's checkpointing and frozen parameters are options.
inline Job job_of_witness(const Run& witness, const ModelSpec& model) {
  const auto given = [](auto value) { return Setting<decltype(value)>(value, Place{"test", 0, 0, {}}); };
  Request request;
  request.gpus = given(std::int64_t{std::stoll(witness.keys.at("world"))});
  request.seq = given(model.recording ? model.recording->seq : std::int64_t{8});
  // On a CPU a fused kernel takes its bias as it lies.
  if (model.family == "t5") request.attention = given(std::string("mem-efficient"));
  const Document loop = witness.document("loop");
  const Value& keys = *loop.root.find("value");
  if (const Value* size = keys.find("image_size")) {
    request.image_size = given(dsplan::formatted("{}x{}", size->items.at(0).integer, size->items.at(1).integer));
  }
  if (const Value* seq = keys.find("seq")) request.seq = given(std::int64_t{seq->integer});
  if (const Value* images = keys.find("images")) request.images = given(std::int64_t{images->integer});
  if (const Value* globs = keys.find("freeze")) {
    std::vector<std::string> freeze;
    for (const Value& glob : globs->items) freeze.push_back(glob.string);
    request.freeze = given(freeze);
  }
  // "after": on the CPU accelerator, whose memory is the device's.
  if (keys.find("init") != nullptr) request.model_init = given(std::string("device"));
  if (const Value* form = keys.find("checkpoint")) {
    request.checkpoint = given(std::string("full"));
    request.checkpoint_impl = given(form->string);
  }
  const DeepSpeedInput input = read_deepspeed(parse_hjson(witness.name, witness.keys.at("deepspeed")));
  return resolve(model, request, &input, nullptr, nullptr);
}

// Frees between two other lines have no order.
class Written {
 public:
  void line(std::string text) {
    flush();
    lines_.push_back(std::move(text));
  }
  void free(std::string text) { freed_.push_back(std::move(text)); }
  [[nodiscard]] Lines take() {
    flush();
    return std::move(lines_);
  }

 private:
  void flush() {
    std::sort(freed_.begin(), freed_.end());
    for (std::string& text : freed_) lines_.push_back(std::move(text));
    freed_.clear();
  }
  Lines lines_;
  Lines freed_;
};

inline std::int64_t bytes_of(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> kWidth = {{"bf16", 2},  {"fp16", 2},  {"fp32", 4}, {"fp64", 8},
                                                             {"uint8", 1}, {"int64", 8}, {"bool", 1}, {"int32", 4}};
  return kWidth.at(dtype);
}

// Numbers of the framework that no schedule has: counters, flags, lists of norms.
inline bool is_bookkeeping(const std::string& where, const std::string& op) {
  static const std::set<std::string> kFunctions = {"ops/adam/fused_adam.py:__init__",
                                                   "s12:has_overflow",
                                                   "s12:has_overflow_partitioned_grads_serial",
                                                   "ru:has_overflow",
                                                   "s12:complete_grad_norm_calculation_for_cpu_offload",
                                                   "ru:clip_grad_norm_",
                                                   "ru:get_flattened_grad_norm"};
  // Scalars that say no more than a dtype.
  const bool swapper = where.starts_with("runtime/swap_tensor/");
  if (swapper && (where.ends_with(":__init__") || where.ends_with(":reserve_partitioned_swap_space")) &&
      op == "zeros") {
    return true;
  }
  if (where == "ru:get_weight_norm" && op == "lift_fresh") return true;
  if (where == "s3:has_overflow" && op != "isinf" && op != "isnan") return true;
  return kFunctions.contains(where) || op == "stack" || op == "pow" || where.find(":assert_") != std::string::npos;
}

// Allocations and frees of the runtime's own storages, frees of parameters and of gradients, and collectives, up to
// the end of step `steps` (counted from 1).
inline Lines moves_of(const Lines& log, int steps) {
  Written out;
  std::map<std::string, std::string> storages;  // Number -> what its free says.
  for (const std::string& text : log) {
    const std::vector<std::string> word = words(text);
    const char first = text[0];
    if (first == '#') {
      if (text == dsplan::formatted("# end {}", steps - 1)) break;
      if (word[1] != "construct" && word[1] != "end") out.line(text);
    } else if (first == '+') {
      if (is_bookkeeping(word[3], word[4])) continue;
      storages[word[0].substr(1)] = dsplan::formatted("free {} {}", word[1], word[2]);
      out.line(dsplan::formatted("alloc {} {}", word[1], word[2]));
    } else if (first == 'p' && word.size() == 4) {
      storages[word[0].substr(1)] = "free parameter " + word[3];
    } else if (first == 'g') {
      storages[word[0].substr(1)] = "free gradient " + word[3];
    } else if (first == '-') {
      std::istringstream numbers(text.substr(1));
      for (std::string number; std::getline(numbers, number, ',');) {
        if (storages.contains(number)) out.free(storages[number]);
      }
    } else if (word[0] == "read" || word[0] == "write") {
      out.line(dsplan::formatted("{} {}", word[0], word[1]));
    } else if (word[0] == "c") {
      const std::int64_t bytes = std::stoll(word[3]) * bytes_of(word[2]);
      // DeepSpeed broadcasts bytes.
      out.line(word[1] == "broadcast" ? dsplan::formatted("broadcast {}", bytes)
                                      : dsplan::formatted("{} {} {}", word[1], word[2], bytes));
    }
  }
  return out.take();
}

// The same of a schedule's first `steps` optimizer steps (one or two).
class Ours {
 public:
  Ours(const Schedule& schedule, const std::vector<int>& numbers) : schedule_(schedule), numbers_(numbers) {
    out_.line("# init");
    replay(schedule, *this);
  }

  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (is_gradient(buffer)) ++gradients_[buffer.parameter];
    if (is_own(buffer)) {
      own_.insert(event.buffer);
      out_.line(dsplan::formatted("alloc {} {}", buffer.size.value(), dsplan::name(buffer.dtype)));
    }
  }
  void on(std::size_t, const Release& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (own_.contains(event.buffer)) {
      out_.free(dsplan::formatted("free {} {}", buffer.size.value(), dsplan::name(buffer.dtype)));
    } else if (is_gradient(buffer)) {
      // What is added to another of its kind and goes was never `.grad` itself.
      const bool other = --gradients_[buffer.parameter] > 0;
      const bool added = work_ == "accumulate gradient" || work_ == "add" || work_ == "clone";
      if (!other || !added) out_.free(dsplan::formatted("free gradient {}", number(buffer)));
    } else if (buffer.parameter != kNone && buffer.role == Role::Parameters && number(buffer) >= 0) {
      // What was tied away went with the model's constructor, before the witness's log begins.
      out_.free(dsplan::formatted("free parameter {}", number(buffer)));
    }
  }
  void on(std::size_t, const Compute& event) {
    work_ = event.work;
    const auto moved = [&](Span span, const char* what) {
      for (const Access& access : schedule_.range(span)) {
        if (schedule_.buffers[access.buffer].space != Space::Nvme) continue;
        out_.line(dsplan::formatted("{} {}", what, access.bytes.value()));
      }
    };
    moved(event.reads, "read");
    moved(event.writes, "write");
  }
  void on(std::size_t, const RecordEvent&) {}
  void on(std::size_t, const WaitEvent&) {}
  void on(std::size_t, const EmptyCache&) {}
  void on(std::size_t, const Enter&) {}
  void on(std::size_t, const Exit&) {}
  void on(std::size_t, const Communicate& event) {
    if (event.collective == Collective::Broadcast) {
      out_.line(dsplan::formatted("broadcast {}", event.payload.value()));
    } else {
      out_.line(dsplan::formatted("{} {} {}", dsplan::name(event.collective), dsplan::name(event.dtype),
                                  event.payload.value()));
    }
  }
  void on(std::size_t, const Mark& event) {
    if (event.stretch == Stretch::Init) return;
    const int step = event.stretch == Stretch::FirstStep ? 0 : 1;
    switch (event.moment) {
      case Moment::ForwardBegins: out_.line(dsplan::formatted("# forward {}.{}", step, event.micro_batch)); break;
      case Moment::BackwardBegins: out_.line(dsplan::formatted("# backward {}.{}", step, event.micro_batch)); break;
      case Moment::StepBegins:
        stepping_ = true;
        out_.line(dsplan::formatted("# step {}", step));
        break;
      case Moment::StepEnds: stepping_ = false; break;
      case Moment::StretchBegins: setup_ = false; break;
      default: break;
    }
  }
  [[nodiscard]] Lines take() { return out_.take(); }

 private:
  [[nodiscard]] static bool is_gradient(const Buffer& buffer) {
    return buffer.parameter != kNone && buffer.role == Role::Gradients;
  }
  [[nodiscard]] int number(const Buffer& buffer) const {
    return numbers_.at(static_cast<std::size_t>(buffer.parameter));
  }
  // Parameters and gradients that the framework's user or autograd made are followed by name.
  [[nodiscard]] bool is_own(const Buffer& buffer) const {
    const std::string label = buffer.label;
    if (label == "global gradient norm" || label == "overflow buffer of FusedAdam") return false;
    if (label == "copy between devices") return false;  // A CPU accelerator has one device.
    if (label == "absolute gradients") return false;    // Within isinf.
    if (label == "overflow flag" || label == "gradient norms") return false;
    if (label == "root of a norm" || label == "mask of an invalid norm") return false;
    if (label == "overflow found" || label == "clip factor") return false;
    if (label == "table of positions") return false;  // The log begins behind the modules.
    if (label == "gradient norm" && buffer.size <= Bytes(8)) return false;
    switch (buffer.role) {
      case Role::Parameters: return buffer.parameter == kNone;
      case Role::Gradients: return buffer.parameter == kNone;
      case Role::Optimizer:
      case Role::RuntimeBuffers: return true;
      case Role::Temporaries: return setup_ || stepping_;
      default: return false;
    }
  }

  const Schedule& schedule_;
  const std::vector<int>& numbers_;
  Written out_;
  std::set<BufferId> own_;
  std::string_view work_;                 // The latest.
  std::map<ParameterId, int> gradients_;  // How many of a parameter's are there.
  bool setup_ = true;
  bool stepping_ = false;
};

// The first place at which two lists part, with what stands before it; empty if they are equal.
inline std::string first_difference(const Lines& witness, const Lines& ours) {
  std::size_t at = 0;
  while (at < witness.size() && at < ours.size() && witness[at] == ours[at]) ++at;
  if (at == witness.size() && at == ours.size()) return {};
  std::string text =
      dsplan::formatted("the lists part at {} of {} (witness) and {} (dsplan):\n", at, witness.size(), ours.size());
  for (std::size_t i = at < 6 ? 0 : at - 6; i < at + 10; ++i) {
    text += dsplan::formatted("  {} {:<40} | {}\n", i == at ? ">" : " ", i < witness.size() ? witness[i] : "",
                              i < ours.size() ? ours[i] : "");
  }
  return text;
}

// Position of each of `model`'s parameters in the witness's list; -1 for ties.
inline std::vector<int> numbers_of(const Run& witness, const ModelSpec& model) {
  std::map<std::string, int> positions;
  const Document parameters = witness.document("parameters");
  for (const Value& name : parameters.root.find("value")->items) {
    positions.emplace(name.string, static_cast<int>(positions.size()));
  }
  std::vector<int> result;
  for (const Parameter& parameter : model.parameters) {
    result.push_back(parameter.tied_to == kNone ? positions.at(parameter.name) : -1);
  }
  return result;
}

}  // namespace deepspeed_log
