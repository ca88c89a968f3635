#include "cli/sources.h"

#include <algorithm>
#include <filesystem>

#include "cli/saved_plan.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/launch_line.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "io/training_arguments.h"
#include "io/training_file.h"
#include "model/families.h"
#include "report/calibration.h"
#include "report/plan_file.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

// The path as it is from here. What is no file from there may be an id in the local cache of models; a file of that
// name in the current folder is another one, and never taken for it.
std::string seen_from(const std::string& folder, const std::string& said) {
  if (folder.empty() || fs::path(said).is_absolute()) return said;
  std::string there = (fs::path(folder) / said).lexically_normal().string();
  std::error_code failed;
  const bool nowhere = !fs::exists(there, failed) && !fs::exists(said, failed) && !said.ends_with(".json");
  return nowhere ? said : there;
}

Document read_bundled_kind(Bundled kind, const std::string& path) {
  return kind == Bundled::DeepSpeed ? parse_hjson(path, read_file(path)) : read_document(path);
}

std::optional<Bundled> bundled_kind(SourceKind kind) {
  switch (kind) {
    case SourceKind::Model: return Bundled::Model;
    case SourceKind::DeepSpeed: return Bundled::DeepSpeed;
    case SourceKind::Training: return Bundled::Training;
    case SourceKind::Hardware: return Bundled::Hardware;
    case SourceKind::Cluster: return Bundled::Cluster;
    case SourceKind::Checkpoint:
    case SourceKind::Calibration:
    case SourceKind::Command: break;
  }
  return std::nullopt;
}

class SourceReader {
 public:
  SourceReader(const SimulateWords& said, std::string folder) : said_(said), folder_(std::move(folder)) {}

  Sources read(const Words& command) {
    sources_.command = command;
    attempt(faults_, [&] { read_model(); });
    Request request = read_words();
    const auto file = [&](SourceKind kind, const Setting<std::string>& setting) {
      if (setting.given()) attempt(faults_, [&] { read_one(kind, *setting); });
    };
    file(SourceKind::DeepSpeed, request.deepspeed);
    if (request.checkpoint.given() && is_checkpoint_file(*request.checkpoint) && !request.checkpoint_groups.given()) {
      file(SourceKind::Checkpoint, request.checkpoint);
    }
    file(SourceKind::Hardware, request.hardware);
    file(SourceKind::Cluster, request.cluster);
    file(SourceKind::Calibration, request.calibration);
    faults_.throw_if_any();
    return std::move(sources_);
  }

 private:
  void read_model() {
    SourceFile file;
    file.name = said_.model;
    file.bundled = is_bundled(Bundled::Model, said_.model);
    const std::string argument = file.bundled ? said_.model : seen_from(folder_, said_.model);
    ModelFiles files = locate_model(argument);
    std::vector<Notice> notices;
    // Refuses what is no model, and headers that differ.
    if (files.kind != ModelFiles::Kind::Plan) (void)load_model(argument, notices);
    file.model = files.name;
    file.content = std::move(files.document);
    sources_[SourceKind::Model] = std::move(file);
  }

  // What files and launch line say: which further files there are.
  Request read_words() {
    Request below;
    if (said_.options.training.given()) {
      attempt(faults_, [&] {
        const auto& model = sources_[SourceKind::Model];
        if (model && is_plan(model->content)) refuse_training_file(said_);
        read_one(SourceKind::Training, *said_.options.training);
        below = read_training(sources_[SourceKind::Training]->content);
      });
    }
    attempt(faults_, [&] {
      if (!said_.launch.empty()) below = overlay(below, read_launch_line(said_.launch));
    });
    return overlay(below, said_.options);
  }

  void read_one(SourceKind kind, const std::string& said) {
    SourceFile file;
    file.name = said;
    const std::optional<Bundled> own = bundled_kind(kind);
    file.bundled = own && is_bundled(*own, said);
    std::string path = file.bundled ? said : seen_from(folder_, said);
    if (own) path = locate_bundled(*own, path);
    file.content = kind == SourceKind::DeepSpeed ? parse_hjson(path, read_file(path)) : read_document(path);
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

Inputs gather(const Sources& sources, const SimulateWords& said) {
  if (const auto& model = sources[SourceKind::Model]; model && is_plan(model->content)) {
    return gather_plan(read_plan(model->content), sources, said);
  }
  Inputs inputs;
  Diagnostics faults;
  const auto with = [&](SourceKind kind, auto&& read) {
    if (const auto& file = sources[kind]) attempt(faults, [&] { read(*file); });
  };
  with(SourceKind::Model, [&](const SourceFile& file) { inputs.model = build_model(file.content, file.model); });
  Request below;
  with(SourceKind::Training, [&](const SourceFile& file) { below = read_training(file.content); });
  attempt(faults, [&] {
    if (!said.launch.empty()) below = overlay(below, read_launch_line(said.launch));
  });
  inputs.request = overlay(below, said.options);
  Request& request = inputs.request;
  with(SourceKind::DeepSpeed, [&](const SourceFile& file) { inputs.deepspeed = read_deepspeed(file.content); });
  with(SourceKind::Checkpoint, [&](const SourceFile& file) {
    request.checkpoint_groups = {read_checkpoint_file(file.content), request.checkpoint.place};
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

}  // namespace dsplan
