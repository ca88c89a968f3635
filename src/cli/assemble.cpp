#include "cli/assemble.h"

#include <filesystem>

#include "cli/saved_plan.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/dialects/model_name.h"
#include "io/launch_line.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/module_graph.h"
#include "io/own_file.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "io/training_file.h"
#include "model/checkpoint_names.h"
#include "model/config_remarks.h"
#include "model/families.h"
#include "model/recorded.h"
#include "planner/plan/choose_checkpoint.h"
#include "planner/resolve/programs.h"
#include "planner/resolve/resolve.h"
#include "report/calibration.h"
#include "report/plan_file.h"

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

Place place_of(const Document& document, std::size_t offset) {
  const Diagnostic at = document.at(offset, {});
  return {at.path, at.line, at.column, at.source_line};
}

// bitsandbytes' weights are trained as they are packed. Those of others transformers trains in no form but unpacked
// (the quantizers' is_trainable), which is what dequantize=True of their configuration classes does.
void take_packing(const Document& config, const ConfigRemarks::Packing& packing, Request& request) {
  const Place place = place_of(config, packing.offset);
  if (packing.kind.empty()) {
    request.notices.push_back({Notice::Kind::Announcement,
                               place,
                               formatted("weights quantized by {}: transformers trains them unpacked alone "
                                         "(dequantize=True), in the training's dtype, and so they are predicted",
                                         packing.method),
                               {}});
    return;
  }
  request.quantization = {packing.kind, place};
  if (packing.kind == "int8") return;
  request.double_quant = {packing.nested, place};
  request.quant_compute_dtype = {packing.compute, place};
  request.quant_storage = {packing.storage, place};
}

// Unknown keys that switch nothing on; --strict refuses them too.
void take_remarks(const Document& config, const ConfigRemarks& remarks, Request& request) {
  for (const ConfigRemarks::Key& key : remarks.unknown) {
    const std::string hint = key.message.empty() ? std::string() : formatted("; did you mean \"{}\"?", key.message);
    request.notices.push_back(
        {Notice::Kind::Unknown,
         place_of(config, key.offset),
         formatted("\"{}\" is no key that the model's configuration class knows{}", key.key, hint),
         {}});
  }
  if (remarks.packing) take_packing(config, *remarks.packing, request);
  if (remarks.attention) request.attention = {remarks.attention->message, place_of(config, remarks.attention->offset)};
  for (const ConfigRemarks::Key& gap : remarks.gaps) {
    request.not_modelled.push_back({place_of(config, gap.offset), When::Always, gap.key, gap.message});
  }
  for (const ConfigRemarks::Key& chance : remarks.chances) {
    request.notices.push_back({Notice::Kind::Announcement,
                               place_of(config, chance.offset),
                               formatted("\"{}\" {}: the steps told are those that run all of them, which take most",
                                         chance.key, chance.message),
                               {}});
  }
}

// One label has a loss of its own in transformers, in whose place there is TRL's.
void forget_labels(ConfigRemarks& remarks) {
  std::erase_if(remarks.gaps, [](const ConfigRemarks::Key& gap) {
    return gap.key == "num_labels" || gap.key == "id2label" || gap.key == "problem_type";
  });
}

template <class T>
void lay_packing(const Setting<T>& of_model, Setting<T>& said, std::string_view what, Diagnostics& faults) {
  if (!of_model.given()) return;
  if (said.given() && *said != *of_model) {
    faults.add(said.place.says(
        formatted("{} is another than that of the model's file, whose weights are quantized already", what),
        "transformers takes the file's"));
  }
  said = of_model;
}

// Before a program says what it does with packed weights: weights that are packed in the checkpoint.
void lay_packing(const Request& of_model, Request& request, Diagnostics& faults) {
  lay_packing(of_model.quantization, request.quantization, "the kind of quantization", faults);
  lay_packing(of_model.double_quant, request.double_quant, "double quantization", faults);
  lay_packing(of_model.quant_compute_dtype, request.quant_compute_dtype, "the compute dtype", faults);
  lay_packing(of_model.quant_storage, request.quant_storage, "the storage dtype", faults);
}

void lay_remarks(const Request& of_model, Request& request) {
  if (!request.attention.mentioned()) request.attention = of_model.attention;
  request.notices.insert(request.notices.begin(), of_model.notices.begin(), of_model.notices.end());
  request.not_modelled.insert(request.not_modelled.end(), of_model.not_modelled.begin(), of_model.not_modelled.end());
}

// A recording has one shape, which nobody needs to name.
void lay_recording(const ModuleGraph& recording, const DeepSpeedInput* ds, Request& request) {
  const Place place = option("the recording");
  const bool batch_said = ds != nullptr && (ds->micro_batch.given() || ds->train_batch_size.given());
  if (!request.micro_batch.given() && !batch_said) request.micro_batch = {recording.micro_batch, place};
  if (!request.seq.given() && !request.seq_list.given()) request.seq = {recording.seq, place};
  const bool dtype_said = request.dtype.given() || request.autocast.given() || ds != nullptr;
  if (!dtype_said) request.dtype = {std::string(name(recording.dtype)), place};
}

void read_checkpoint_groups(Request& request) {
  if (!request.checkpoint.given() || request.checkpoint_groups.given()) return;
  if (!is_checkpoint_file(*request.checkpoint)) return;
  request.checkpoint_groups = {read_checkpoint_file(read_document(*request.checkpoint)), request.checkpoint.place};
}

void read_token_counts(Request& request) {
  if (!request.routing.given() || request.token_counts.given() || !is_routing_file(*request.routing)) return;
  request.token_counts = {read_routing_file(read_document(*request.routing)), request.routing.place};
}

// A cloud's name of a machine says how many devices stand in it, and a launch line may say otherwise.
void count_devices(Request& request) {
  const bool counted = request.cluster.given() || request.gpus_per_node.given() || !request.hardware.given();
  const std::int64_t devices = counted ? 0 : devices_of_node(*request.hardware);
  if (devices > 0) request.gpus_per_node = {devices, request.hardware.place};
}

void read_machines(Inputs& inputs, Diagnostics& diagnostics) {
  count_devices(inputs.request);
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

namespace {

bool names_file(const std::string& text) {
  return text == kStandardInput || text.find('/') != std::string::npos || text.ends_with(".json") ||
         text.ends_with(".hjson") || text.ends_with(".yaml") || text.ends_with(".yml");
}

}  // namespace

bool is_checkpoint_file(const std::string& text) {
  return !text.starts_with("keep:") && !text.starts_with("groups:") && names_file(text);  // "keep:linear/2".
}

bool is_routing_file(const std::string& text) { return !text.starts_with("counts:") && names_file(text); }

ModelSpec load_model(const std::string& argument, Request& said, bool rewards) {
  ModelFiles files = locate_model(argument);
  if (files.kind == ModelFiles::Kind::OpGraph) {
    throw Refusal(files.config_path, "is an op-graph, and this command takes a model", "`dsplan simulate` takes both");
  }
  if (files.kind == ModelFiles::Kind::Chain) {
    throw Refusal(files.config_path, "is a chain, and this command takes a model", "`dsplan plan` takes chains");
  }
  if (files.kind == ModelFiles::Kind::Plan) {
    throw Refusal(files.config_path, "is a plan, and this command takes a model", "`dsplan simulate` takes both");
  }
  if (files.kind == ModelFiles::Kind::ModuleGraph) {
    return build_recorded_model(read_module_graph(files.document), files.name);
  }
  ConfigRemarks remarks;
  if (rewards) files.document = with_reward_head(std::move(files.document));
  ModelSpec model = build_model(files.document, files.name, remarks);
  if (rewards) forget_labels(remarks);
  take_remarks(files.document, remarks, said);
  if (!files.safetensors.empty() && !rewards) compare_headers(files, model, said.notices);
  return model;
}

namespace {

// What a launch line or a file says and an option says otherwise.
void tell_what_gives_way(const Request& options, Request& below) {
  const auto tell = [&](const char* what, const Setting<std::int64_t>& above, const Setting<std::int64_t>& under) {
    if (!above.given() || !under.given() || *above == *under) return;
    below.notices.push_back({Notice::Kind::Announcement,
                             under.place,
                             formatted("{} {} gives way to {} of {}", what, *under, *above, above.place.text()),
                             {}});
  };
  tell("GPUs", options.gpus, below.gpus);
  tell("GPUs per node", options.gpus_per_node, below.gpus_per_node);
  tell("micro-batch", options.micro_batch, below.micro_batch);
  tell("accumulation", options.grad_accum, below.grad_accum);
  tell("seq", options.seq, below.seq);
}

// A reward model is made of a language model's configuration.
bool asks_rewards(const Said& below, const Request& options) {
  const std::optional<Loss> loss = trainers_loss(options.loss.value_or(below.request.loss.value_or("")));
  if (loss) return of_rewards(*loss);
  const ForeignInput& foreign = below.foreign;
  if (foreign.program.value_or("") == "axolotl") return foreign.rewards.value_or(false);
  return foreign.trainer.value_or("") == "reward" || foreign.centered.given();
}

void throw_not_modelled(const Request& request) {
  Diagnostics diagnostics;
  for (const NotModelled& one : request.not_modelled) {
    if (one.when != When::Always) continue;
    diagnostics.add(one.place.says(formatted("\"{}\": not modelled yet: {}", one.key, one.feature)));
  }
  diagnostics.throw_if_any();
}

// A file that another one names, and that is nowhere, is missed where it is named.
template <class Do>
void named_at(const Place& place, Do&& act) {
  try {
    act();
  } catch (const Refusal& refusal) {
    if (place.line == 0) throw;
    Diagnostics diagnostics;
    for (const Diagnostic& one : refusal.diagnostics()) {
      diagnostics.add(one.line != 0 ? one : place.says(formatted("\"{}\": {}", one.path, one.message), one.hint));
    }
    diagnostics.throw_if_any();
  }
}

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
  Request of_model;
  Said below;
  attempt(diagnostics, [&] {
    if (!words.launch.empty()) below = read_launch(words.launch, read_document);
  });
  attempt(diagnostics, [&] {
    if (!words.options.training.given()) return;
    const std::string path = locate_bundled(Bundled::Training, *words.options.training);
    below = of_one_job(read_training_document(read_document(path)), below);
  });
  attempt(diagnostics, [&] {
    const bool unread = words.model.empty() && diagnostics.any();
    if (unread) return;  // What would name the model is faulty.
    const bool nameless = words.model.empty() && !below.foreign.model.given();
    if (nameless) throw_not_modelled(below.request);  // What it has instead of a name.
    const std::string name = agreed_model(words.model, below.foreign.model, of_model.notices);
    const Place named = words.model.empty() ? below.foreign.model.place : Place{};
    named_at(named, [&] { inputs.model = load_model(name, of_model, asks_rewards(below, words.options)); });
  });
  tell_what_gives_way(words.options, below.request);
  below.request = overlay(below.request, words.options);
  Request& request = inputs.request = below.request;
  attempt(diagnostics, [&] {
    if (!request.deepspeed.given()) return;
    named_at(request.deepspeed.place, [&] {
      const std::string path = locate_bundled(Bundled::DeepSpeed, *request.deepspeed);
      inputs.deepspeed = read_deepspeed(read_deepspeed_document(path));
    });
  });
  lay_packing(of_model, below.request, diagnostics);
  complete(below, inputs, diagnostics);
  read_what_it_names(inputs, diagnostics);
  diagnostics.throw_if_any();
  lay_remarks(of_model, request);
  return inputs;
}

void complete(Said& said, Inputs& inputs, Diagnostics& diagnostics) {
  if (inputs.model.modules.empty() || diagnostics.any()) return;
  attempt(diagnostics,
          [&] { inputs.request = with_program(said, inputs.model, inputs.deepspeed ? &*inputs.deepspeed : nullptr); });
}

void read_what_it_names(Inputs& inputs, Diagnostics& diagnostics) {
  Request& request = inputs.request;
  attempt(diagnostics, [&] { read_checkpoint_groups(request); });
  attempt(diagnostics, [&] { read_token_counts(request); });
  if (inputs.model.recording)
    lay_recording(*inputs.model.recording, inputs.deepspeed ? &*inputs.deepspeed : nullptr, request);
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

SearchInputs search_inputs(const Inputs& inputs) {
  return {inputs.model, inputs.request, inputs.deepspeed ? &*inputs.deepspeed : nullptr,
          inputs.hardware ? &*inputs.hardware : nullptr, inputs.cluster ? &*inputs.cluster : nullptr};
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

namespace {

namespace fs = std::filesystem;

// The path as it is from here. What is no file from there may be an id in the local cache of models; a file of that
// name in the current folder is another one, and never taken for it.
std::string seen_from(const std::string& folder, const std::string& said) {
  if (folder.empty() || said == kStandardInput || fs::path(said).is_absolute()) return said;
  std::string there = (fs::path(folder) / said).lexically_normal().string();
  std::error_code failed;
  const bool nowhere = !fs::exists(there, failed) && !fs::exists(said, failed) && !said.ends_with(".json");
  return nowhere ? said : there;
}

Document read_bundled_kind(Bundled kind, const std::string& path) {
  return kind == Bundled::DeepSpeed ? read_deepspeed_document(path) : read_document(path);
}

std::optional<Bundled> bundled_kind(SourceKind kind) {
  switch (kind) {
    case SourceKind::Model: return Bundled::Model;
    case SourceKind::DeepSpeed: return Bundled::DeepSpeed;
    case SourceKind::Training: return Bundled::Training;
    case SourceKind::Hardware: return Bundled::Hardware;
    case SourceKind::Cluster: return Bundled::Cluster;
    case SourceKind::Checkpoint:
    case SourceKind::Routing:
    case SourceKind::Calibration:
    case SourceKind::LaunchFile:
    case SourceKind::SecondLaunchFile:
    case SourceKind::Command: break;
  }
  return std::nullopt;
}

class SourceReader {
 public:
  SourceReader(const SimulateWords& said, std::string folder) : said_(said), folder_(std::move(folder)) {}

  Sources read(const Words& command) {
    sources_.command = command;
    const Said below = read_words();
    const Request request = overlay(below.request, said_.options);
    attempt(faults_, [&] {
      if (!said_.model.empty() || !faults_.any()) read_model(below.foreign.model);
    });
    const auto file = [&](SourceKind kind, const Setting<std::string>& setting) {
      if (!setting.given()) return;
      attempt(faults_, [&] { named_at(setting.place, [&] { read_one(kind, *setting); }); });
    };
    file(SourceKind::DeepSpeed, request.deepspeed);
    if (request.checkpoint.given() && is_checkpoint_file(*request.checkpoint) && !request.checkpoint_groups.given()) {
      file(SourceKind::Checkpoint, request.checkpoint);
    }
    if (request.routing.given() && is_routing_file(*request.routing) && !request.token_counts.given()) {
      file(SourceKind::Routing, request.routing);
    }
    file(SourceKind::Hardware, request.hardware);
    file(SourceKind::Cluster, request.cluster);
    file(SourceKind::Calibration, request.calibration);
    faults_.throw_if_any();
    return std::move(sources_);
  }

 private:
  void read_model(const Setting<std::string>& named) {
    std::vector<Notice> told;
    SourceFile file;
    file.name = agreed_model(said_.model, named, told);
    file.bundled = is_bundled(Bundled::Model, file.name);
    const std::string argument = file.bundled ? file.name : seen_from(folder_, file.name);
    ModelFiles files;
    named_at(said_.model.empty() ? named.place : Place{}, [&] { files = locate_model(argument); });
    Request of_model;
    // Refuses what is no model, and headers that differ.
    if (files.kind != ModelFiles::Kind::Plan) (void)load_model(argument, of_model);
    file.model = files.name;
    file.content = std::move(files.document);
    sources_[SourceKind::Model] = std::move(file);
  }

  // What files and launch line say: which further files there are.
  Said read_words() {
    Said below;
    if (said_.options.training.given()) {
      attempt(faults_, [&] {
        if (names_a_plan(said_.model)) refuse_training_file(said_);
        read_one(SourceKind::Training, *said_.options.training);
        below = read_training_document(sources_[SourceKind::Training]->content);
      });
    }
    attempt(faults_, [&] {
      if (said_.launch.empty()) return;
      const ReadNamed read = [this](const std::string& path) { return launched(path); };
      below = of_one_job(below, read_launch(said_.launch, read, LaunchedOn::AnotherMachine));
    });
    return below;
  }

  Document launched(const std::string& path) {
    const bool first = !sources_[SourceKind::LaunchFile];
    const SourceKind kind = first ? SourceKind::LaunchFile : SourceKind::SecondLaunchFile;
    read_one(kind, path);
    return sources_[kind]->content;
  }

  void read_one(SourceKind kind, const std::string& said) {
    SourceFile file;
    file.name = said;
    const std::optional<Bundled> own = bundled_kind(kind);
    file.bundled = own && is_bundled(*own, said);
    std::string path = file.bundled ? said : seen_from(folder_, said);
    if (own) path = locate_bundled(*own, path);
    file.content = kind == SourceKind::DeepSpeed ? read_deepspeed_document(path) : read_document(path);
    sources_[kind] = std::move(file);
  }

  const SimulateWords& said_;
  std::string folder_;
  Sources sources_;
  Diagnostics faults_;
};

}  // namespace

SimulateWords words_at(const Words& command, const Place& place) {
  try {
    return parse_simulate("check", command);
  } catch (const HelpAsked&) {
    throw Refusal({place.says("--help has no place in a baseline")});
  } catch (const Refusal& refusal) {
    std::vector<Diagnostic> faults;
    for (const Diagnostic& fault : refusal.diagnostics()) {
      faults.push_back(place.says(formatted("{}: {}", fault.path, fault.message), fault.hint));
    }
    throw Refusal(std::move(faults));
  }
}

Sources read_sources(const Words& command, const SimulateWords& said, const std::string& folder) {
  return SourceReader(said, folder).read(command);
}

void read_bundled(Sources& sources) {
  for (std::size_t i = 0; i < kSourceFiles; ++i) {
    std::optional<SourceFile>& file = sources.files[i];
    if (!file || !file->bundled) continue;
    const std::optional<Bundled> own = bundled_kind(static_cast<SourceKind>(i));
    if (!own || !is_bundled(*own, file->name)) {
      throw Refusal(file->name,
                    formatted("this dsplan has no bundled {} of that name", name(static_cast<SourceKind>(i))));
    }
    file->content = read_bundled_kind(*own, locate_bundled(*own, file->name));
  }
}

namespace {

// A file that a launch line names, among those that were read when it was.
Document launched(const Sources& sources, const std::string& path) {
  for (const SourceKind kind : {SourceKind::LaunchFile, SourceKind::SecondLaunchFile}) {
    if (sources[kind] && sources[kind]->name == path) return sources[kind]->content;
  }
  throw Refusal(path, "the launch line names this file, and it is not among what was kept");
}

}  // namespace

Inputs gather(const Sources& sources, const SimulateWords& said) {
  if (const auto& model = sources[SourceKind::Model]; model && is_plan(model->content)) {
    return gather_plan(read_plan(model->content), sources, said);
  }
  Inputs inputs;
  Diagnostics faults;
  const auto with = [&](SourceKind kind, auto&& read) {
    if (const auto& file = sources[kind]) attempt(faults, [&] { read(*file); });
  };
  Request of_model;
  Said below;
  with(SourceKind::Training, [&](const SourceFile& file) { below = read_training_document(file.content); });
  attempt(faults, [&] {
    if (said.launch.empty()) return;
    const ReadNamed read = [&](const std::string& path) { return launched(sources, path); };
    below = of_one_job(below, read_launch(said.launch, read, LaunchedOn::AnotherMachine));
  });
  with(SourceKind::Model, [&](const SourceFile& file) {
    if (is_kind(file.content, "module_graph")) {
      inputs.model = build_recorded_model(read_module_graph(file.content), file.model);
      return;
    }
    ConfigRemarks remarks;
    const bool rewards = asks_rewards(below, said.options);
    inputs.model = build_model(rewards ? with_reward_head(file.content) : file.content, file.model, remarks);
    if (rewards) forget_labels(remarks);
    take_remarks(file.content, remarks, of_model);
  });
  tell_what_gives_way(said.options, below.request);
  below.request = overlay(below.request, said.options);
  Request& request = inputs.request = below.request;
  with(SourceKind::DeepSpeed, [&](const SourceFile& file) { inputs.deepspeed = read_deepspeed(file.content); });
  lay_packing(of_model, below.request, faults);
  complete(below, inputs, faults);
  lay_remarks(of_model, request);
  with(SourceKind::Checkpoint, [&](const SourceFile& file) {
    request.checkpoint_groups = {read_checkpoint_file(file.content), request.checkpoint.place};
  });
  with(SourceKind::Routing, [&](const SourceFile& file) {
    request.token_counts = {read_routing_file(file.content), request.routing.place};
  });
  with(SourceKind::Hardware,
       [&](const SourceFile& file) { lay_hardware(file.content, request.hardware.place, inputs); });
  with(SourceKind::Cluster, [&](const SourceFile& file) { inputs.cluster = read_cluster(file.content); });
  with(SourceKind::Calibration, [&](const SourceFile& file) {
    request.measured = {read_calibration(file.content), request.calibration.place};
  });
  read_what_it_names(inputs, faults);
  faults.throw_if_any();
  return inputs;
}

std::vector<std::pair<std::string, std::string>> options_in(const SimulateWords& said) {
  std::vector<std::pair<std::string, std::string>> options;
  const Words words = words_of(said);
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; i += 2) {
    const bool again = !options.empty() && options.back().first == words[i];  // --freeze, --set.
    if (again) {
      options.back().second += " " + words[i + 1];
    } else {
      options.emplace_back(words[i], words[i + 1]);
    }
  }
  if (said.options.rank.given()) options.emplace_back("--rank", *said.options.rank);
  if (!said.launch.empty()) options.emplace_back("the launch line", formatted("{}", joined(said.launch, " ")));
  return options;
}

std::string value_in(const std::vector<std::pair<std::string, std::string>>& options, const std::string& name) {
  const auto found = std::find_if(options.begin(), options.end(), [&](const auto& one) { return one.first == name; });
  return found == options.end() ? std::string() : found->second;
}

}  // namespace dsplan
