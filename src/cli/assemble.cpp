#include "cli/assemble.h"

#include "cli/sources.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/launch_line.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "io/training_arguments.h"
#include "io/training_file.h"
#include "model/checkpoint_names.h"
#include "model/families.h"
#include "planner/plan/choose_checkpoint.h"
#include "planner/resolve/resolve.h"
#include "report/calibration.h"

namespace dsplan {
namespace {

void compare_headers(const ModelFiles& files, const ModelSpec& model, std::vector<Notice>& notices) {
  std::vector<CheckpointTensor> tensors;
  for (TensorHeader& header : read_safetensors(files.safetensors)) {
    tensors.push_back(
        {std::move(header.name), std::move(header.dtype), std::move(header.shape), std::move(header.file)});
  }
  const CheckpointComparison comparison = compare_checkpoint(model, tensors);
  for (const std::string& note : comparison.notes) {
    notices.push_back({Notice::Kind::Announcement, option(files.config_path), note, {}});
  }
  std::vector<Diagnostic> differences;
  for (const std::string& difference : comparison.differences) {
    differences.push_back({files.config_path, 0, 0, {}, "its safetensors files differ: " + difference, {}});
  }
  if (!differences.empty()) throw Refusal(std::move(differences));
}

void read_checkpoint_groups(Request& request) {
  if (!request.checkpoint.given() || request.checkpoint_groups.given()) return;
  if (!is_checkpoint_file(*request.checkpoint)) return;
  request.checkpoint_groups = {read_checkpoint_file(read_document(*request.checkpoint)), request.checkpoint.place};
}

void read_machines(Inputs& inputs, Diagnostics& diagnostics) {
  const Request& request = inputs.request;
  attempt(diagnostics, [&] {
    if (request.cluster.given() && !inputs.cluster) inputs.cluster = load_cluster(*request.cluster);
  });
  attempt(diagnostics, [&] {
    if (inputs.hardware) return;
    if (request.hardware.given()) {
      lay_hardware(read_document(locate_hardware(*request.hardware)), request.hardware.place, inputs);
    } else if (inputs.cluster) {
      inputs.hardware = load_hardware(inputs.cluster->hardware);
    }
  });
  attempt(diagnostics, [&] {
    if (!request.calibration.given() || request.measured.given()) return;
    inputs.request.measured = {read_calibration(read_document(*request.calibration)), request.calibration.place};
  });
}

}  // namespace

void lay_hardware(const Document& document, const Place& place, Inputs& into) {
  into.hardware = read_hardware(document);
  if (into.request.calibration.given() || into.request.measured.given()) return;
  if (std::optional<Calibration> inside = calibration_in(document)) into.request.measured = {std::move(*inside), place};
}

Request read_training(const Document& document) {
  return document.root.find("dsplan") != nullptr ? read_training_file(document) : read_training_arguments(document);
}

bool is_checkpoint_file(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json") || text.ends_with(".hjson") ||
         text.ends_with(".yaml") || text.ends_with(".yml");
}

ModelSpec load_model(const std::string& argument, std::vector<Notice>& notices) {
  const ModelFiles files = locate_model(argument);
  if (files.kind == ModelFiles::Kind::OpGraph) {
    throw Refusal(files.config_path, "is an op-graph, and this command takes a model", "`dsplan simulate` takes both");
  }
  if (files.kind == ModelFiles::Kind::Chain) {
    throw Refusal(files.config_path, "is a chain, and this command takes a model", "`dsplan plan` takes chains");
  }
  if (files.kind == ModelFiles::Kind::Plan) {
    throw Refusal(files.config_path, "is a plan, and this command takes a model", "`dsplan simulate` takes both");
  }
  ModelSpec model = build_model(files.document, files.name);
  if (!files.safetensors.empty()) compare_headers(files, model, notices);
  return model;
}

namespace {

// Plans and models that cannot be located go the ordinary way, which says so.
bool names_a_plan(const std::string& argument) {
  if (is_bundled(Bundled::Model, argument)) return false;  // The usual case, without reading it twice.
  try {
    return locate_model(argument).kind == ModelFiles::Kind::Plan;
  } catch (const Refusal&) {
    return false;
  }
}

}  // namespace

Inputs gather(const SimulateWords& words) {
  if (names_a_plan(words.model)) return gather(read_sources({}, words, {}), words);
  Inputs inputs;
  Diagnostics diagnostics;
  std::vector<Notice> notices;
  attempt(diagnostics, [&] { inputs.model = load_model(words.model, notices); });
  Request launch;
  attempt(diagnostics, [&] {
    if (!words.launch.empty()) launch = read_launch_line(words.launch);
  });
  attempt(diagnostics, [&] {
    if (!words.options.training.given()) return;
    const std::string path = locate_bundled(Bundled::Training, *words.options.training);
    launch = overlay(read_training(read_document(path)), launch);
  });
  inputs.request = overlay(launch, words.options);
  Request& request = inputs.request;
  attempt(diagnostics, [&] {
    if (!request.deepspeed.given()) return;
    const std::string path = locate_bundled(Bundled::DeepSpeed, *request.deepspeed);
    inputs.deepspeed = read_deepspeed(parse_hjson(path, read_file(path)));
  });
  read_what_it_names(inputs, diagnostics);
  diagnostics.throw_if_any();
  request.notices.insert(request.notices.begin(), notices.begin(), notices.end());
  return inputs;
}

void read_what_it_names(Inputs& inputs, Diagnostics& diagnostics) {
  Request& request = inputs.request;
  attempt(diagnostics, [&] { read_checkpoint_groups(request); });
  if (!inputs.model.modules.empty()) {
    attempt(diagnostics, [&] { inputs.model = model_of(std::move(inputs.model), request); });
  }
  read_machines(inputs, diagnostics);
}

Job resolve(const Inputs& inputs) {
  Job job = resolve(inputs.model, inputs.request, inputs.deepspeed ? &*inputs.deepspeed : nullptr,
                    inputs.hardware ? &*inputs.hardware : nullptr, inputs.cluster ? &*inputs.cluster : nullptr);
  (void)choose_checkpointing(inputs.model, job);
  return job;
}

std::string render(const std::vector<Notice>& notices) {
  std::string text;
  for (const Notice& notice : notices) {
    const std::string_view kind = notice.kind == Notice::Kind::Announcement ? "note" : name(notice.kind);
    text += formatted("{}: {}: {}", notice.place.text(), kind, notice.message);
    if (notice.bytes) text += formatted(" ({} per rank)", human(*notice.bytes));
    text += '\n';
  }
  return text;
}

}  // namespace dsplan
